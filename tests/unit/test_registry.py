"""The registry: names are looked up, never imported; one name means one job."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import forkq
from forkq import registry
from forkq.errors import ForkqError, InvalidSchedule, UnknownJob
from forkq.middleware import Chain
from forkq.registry import EVENTS, JobSpec, PeriodicSpec


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of this test's own."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "periodic", {})
    monkeypatch.setattr(registry, "_events", {name: [] for name in EVENTS})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])


def spec(name: str, where: str = "app.jobs.A") -> JobSpec:
    return JobSpec(name, lambda running: print, where=where)


def test_a_registered_job_is_found_by_its_name() -> None:
    registry.add(spec("B"))
    registry.add(spec("A", "app.jobs.C"))
    assert registry.lookup("A").where == "app.jobs.C"
    assert registry.names() == ["A", "B"]


def test_an_unknown_name_is_never_imported() -> None:
    sys.modules.pop("antigravity", None)
    for name in ("antigravity", "antigravity.fly", "os.system", "", "no\nname"):
        with pytest.raises(UnknownJob, match="no job is registered as"):
            registry.lookup(name)
    assert "antigravity" not in sys.modules


def test_two_jobs_of_one_name_are_refused_and_both_named() -> None:
    registry.add(spec("Mail", "app.one.Mail"))
    with pytest.raises(ForkqError, match=r"app\.one\.Mail and app\.two\.Mail"):
        registry.add(spec("Mail", "app.two.Mail"))


def test_a_reloaded_module_replaces_its_own_job() -> None:
    registry.add(spec("Mail"))
    again = spec("Mail")
    registry.add(again)
    assert registry.lookup("Mail") is again


SHADOWED = [
    pytest.param(
        """
        @forkq.job
        def send(): pass
        @forkq.job(queue="other")
        def send(): pass
        """,
        (2, 4),
        id="functions",
    ),
    pytest.param(
        """
        @forkq.job(name="Send")
        def send_mail(): pass
        class Sender(forkq.Job, name="Send"):
            def perform(self): pass
        """,
        (2, 4),
        id="names",
    ),
    pytest.param(
        """
        class Send(forkq.Job):
            def perform(self): pass
        class Send(forkq.Job):
            def perform(self): pass
        """,
        (2, 4),
        id="classes",
    ),
    pytest.param(
        """
        class Base(forkq.Job):
            def perform(self): pass
        class Send(Base): pass
        class Send(Base): pass
        """,
        (4, 5),
        id="classes that inherit all",
    ),
    pytest.param(
        """
        @forkq.job
        def send(): pass
        class send(forkq.Job):
            def perform(self): pass
        """,
        (2, 4),
        id="a function and a class",
    ),
    pytest.param(
        """
        from functools import wraps
        def logged(function):
            @wraps(function)
            def call(): return function()
            return call
        @forkq.job
        @logged
        def send(): pass
        @forkq.job
        @logged
        def send(): pass
        """,
        (7, 10),
        id="functions behind a decorator",
    ),
    pytest.param(
        """
        @forkq.every("@daily", name="nightly")
        @forkq.job(name="A")
        def send(): pass
        @forkq.every("@hourly", name="nightly")
        @forkq.job(name="B")
        def send(): pass
        """,
        (2, 5),
        id="periodic jobs",
    ),
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module ``mailing``, to be written and imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts within one second
    yield tmp_path / "mailing.py"
    sys.modules.pop("mailing", None)


@pytest.mark.parametrize(("text", "lines"), SHADOWED)
def test_two_definitions_of_one_name_in_one_module_are_refused_with_their_lines(
    module: Path, text: str, lines: tuple[int, int]
) -> None:
    """The second would take the jobs of the first."""
    module.write_text("import forkq" + dedent(text))
    with pytest.raises(ForkqError, match=r"two .*jobs are named .*another name=") as caught:
        importlib.import_module("mailing")
    for line in lines:
        assert f"{module}:{line}" in str(caught.value)


@pytest.mark.parametrize("again", [importlib.reload, lambda _: None], ids=["reload", "import"])
@pytest.mark.parametrize(
    "definition",
    [
        "@forkq.job\ndef send(): pass\n",
        "class send(forkq.Job):\n    def perform(self): pass\n",
        "@forkq.every('@daily')\n@forkq.job\ndef send(): pass\n",
    ],
    ids=["function", "class", "periodic"],
)
def test_a_module_that_was_edited_may_be_loaded_again(
    module: Path, definition: str, again: Callable[[ModuleType], object]
) -> None:
    module.write_text(f"import forkq\n{definition}")
    before = importlib.import_module("mailing")
    old = registry.lookup("mailing.send")
    module.write_text(f"import forkq\n\n\n{definition}")
    importlib.invalidate_caches()
    if again(before) is None:
        del sys.modules["mailing"]
        importlib.import_module("mailing")
    new = registry.lookup("mailing.send")
    assert old.place is not None
    assert new.place is not None
    assert new.place.line == old.place.line + 2


def test_a_definition_that_is_executed_twice_is_one() -> None:
    """As in a function that makes a job, or a cell of a notebook."""
    for _ in range(2):

        @forkq.job(name="Again")
        def again() -> None: ...


def test_a_periodic_job_may_be_defined_again_only_by_a_reload() -> None:
    """A reload makes new objects of the same name and place; the same entry twice does no harm."""
    target, reloaded = object(), object()
    one, two = spec("A", "app.A"), spec("B", "app.B")
    registry.add_periodic(PeriodicSpec("nightly", 1, one, target))
    registry.add_periodic(PeriodicSpec("nightly", 1, one, target))
    registry.add_periodic(PeriodicSpec("nightly", 2, one, reloaded))
    assert registry.periodic["nightly"].entry == 2
    for job, thing in ((one, reloaded), (two, target)):
        with pytest.raises(InvalidSchedule, match=rf"app\.A and on {job.where}"):
            registry.add_periodic(PeriodicSpec("nightly", 3, job, thing))
    assert registry.periodic["nightly"].entry == 2


@pytest.mark.parametrize("event", EVENTS)
def test_lifecycle_handlers_are_kept_in_order(event: registry.Event) -> None:
    calls: list[Callable[[], Any]] = [lambda: 1, lambda: 2]
    for call in calls:
        assert registry.on(event)(call) is call
    assert registry.handlers(event) == tuple(calls)


def test_a_misspelt_event_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ForkqError, match=r"'start'.*startup, quiet, shutdown, exit, fork"):
        registry.on("start")  # type: ignore[arg-type]


def test_death_and_error_handlers_are_kept_in_order() -> None:
    registry.on_death(max)
    registry.on_death(min)
    registry.on_error(print)
    assert registry.death_handlers == [max, min]
    assert registry.error_handlers == [print]


def on_startup(hook: Callable[..., Any]) -> object:
    return registry.on("startup")(hook)


def as_retry_in(hook: Callable[..., Any]) -> object:
    return forkq.job(retry_in=hook)(lambda: None)


def as_retries_exhausted(hook: Callable[..., Any]) -> object:
    return forkq.job(retries_exhausted=hook)(lambda: None)


def as_method(hook: Callable[..., Any]) -> object:
    methods = {"perform": lambda self: None, "retry_in": hook}
    return type("Hooked", (forkq.Job,), methods)


def beside(place: str) -> Callable[[Callable[..., Any]], object]:
    """Adds a middleware before or after another one."""
    chain = Chain()
    neighbour = chain.append(lambda job, call: call())
    return lambda hook: getattr(chain, place)(neighbour, hook)


async def coroutine(*_: Any) -> None: ...


def generator(*_: Any) -> Iterator[None]:
    yield


async def async_generator(*_: Any) -> AsyncIterator[None]:
    yield


class AsyncCall:
    async def __call__(self, *_: Any) -> None: ...


TAKES_HOOKS: list[Any] = [
    on_startup,
    registry.on_death,
    registry.on_error,
    as_retry_in,
    as_retries_exhausted,
    as_method,
    Chain().append,
    Chain().prepend,
    beside("before"),
    beside("after"),
]


# A child runs coroutines in its event loop, and a middleware may yield once.
TAKES: dict[str, list[Any]] = {registry.ASYNC: [on_startup], registry.GENERATOR: TAKES_HOOKS[6:]}


@pytest.mark.parametrize("add", TAKES_HOOKS)
def test_a_hook_that_a_call_would_fail_on_is_refused_when_it_is_added(add: Any) -> None:
    """It would be called when a job runs or fails."""

    def hook(a: Any, b: Any, c: Any, d: Any, e: Any) -> None: ...

    with pytest.raises(ForkqError, match=r"hook is called with.*: missing a required argument"):
        add(hook)
    with pytest.raises(ForkqError, match=r"no_hook.* is not a callable object"):
        add("no_hook")


@pytest.mark.parametrize("hook", [coroutine, generator, async_generator, AsyncCall()])
def test_a_hook_of_which_a_call_runs_nothing_is_refused(hook: Any) -> None:
    """A job would seem done that has not run."""
    refused = r"is (async|a generator|an async generator): a call of"
    taken = TAKES.get(registry.lazy_kind(hook), [])
    for add in [add for add in TAKES_HOOKS if add not in taken]:
        with pytest.raises(ForkqError, match=refused):
            add(hook)


def test_the_error_says_how_a_hook_is_called() -> None:
    def pager() -> None: ...

    with pytest.raises(ForkqError, match=r"pager is called with \(job, exception\): too many"):
        registry.on_death(pager)
    with pytest.raises(ForkqError, match=r"is called with \(self, count, exception, job\)"):
        as_method(lambda self, count: 1)
    with pytest.raises(ForkqError, match=r"is called without arguments: missing"):
        on_startup(lambda child: None)


def test_a_hook_in_c_that_tells_no_parameters_is_taken() -> None:
    hook: Callable[..., Any] = {}.pop
    assert registry.on_death(hook) is hook


@pytest.mark.parametrize(
    ("arity", "text"),
    [
        ((1, 1), "1 argument"),
        ((0, 2), "0 to 2 arguments"),
        ((1, float("inf")), "at least 1 argument"),
    ],
)
def test_how_many_arguments_a_job_takes(arity: tuple[int, float], text: str) -> None:
    assert JobSpec("Job", lambda running: print, arity=arity).takes == text
