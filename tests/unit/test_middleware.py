"""Middleware: its order, outermost first, and what passes through it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from forkq.errors import Cancelled, ForkqError, Shutdown
from forkq.middleware import AroundMiddleware, Chain, Middleware


def named(name: str, trace: list[str]) -> Middleware:
    def member(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        trace.append(f"{name} in")
        try:
            return call()
        finally:
            trace.append(f"{name} out")

    return member


@pytest.fixture
def trace() -> list[str]:
    return []


def test_the_first_appended_is_the_outermost(trace: list[str]) -> None:
    chain = Chain()
    chain.append(named("a", trace))
    chain.append(named("b", trace))
    assert chain.run({}, lambda: trace.append("core")) is None
    assert trace == ["a in", "b in", "core", "b out", "a out"]


def test_prepend_before_after_and_remove_place_members(trace: list[str]) -> None:
    a, b, c, d, e = (named(name, trace) for name in "abcde")
    chain = Chain()
    chain.append(c)
    chain.prepend(a)
    chain.before(c, b)
    chain.after(c, e)
    chain.after(c, d)
    assert list(chain) == [a, b, c, d, e]
    chain.remove(c)
    assert list(chain) == [a, b, d, e]
    chain.clear()
    assert len(chain) == 0


def test_adding_works_as_a_decorator() -> None:
    chain = Chain()

    @chain.append
    def member(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        return call()

    assert list(chain) == [member]


def test_members_see_and_change_the_job_and_the_result() -> None:
    chain = Chain()

    @chain.append
    def double(job: dict[str, Any], call: Callable[[], Any], /) -> Any:
        job["seen"] = True
        return call() * 2

    job: dict[str, Any] = {}
    assert chain.run(job, lambda: 21) == 42
    assert job == {"seen": True}


def test_a_member_that_does_not_call_ends_the_way(trace: list[str]) -> None:
    chain = Chain()
    chain.append(lambda job, call: None)
    chain.append(named("never", trace))
    assert chain.run({}, lambda: 1) is None
    assert trace == []


def test_an_exception_passes_through_all_of_them(trace: list[str]) -> None:
    chain = Chain()
    chain.append(named("a", trace))

    def core() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        chain.run({}, core)
    assert trace == ["a in", "a out"]


def test_a_chain_without_members_just_calls() -> None:
    assert Chain().run({}, lambda: 7) == 7


def test_a_place_next_to_an_unknown_member_is_refused() -> None:
    chain = Chain()
    unknown = named("x", [])
    for act in (lambda: chain.before(unknown, unknown), lambda: chain.after(unknown, unknown),
                lambda: chain.remove(unknown)):  # fmt: skip
        with pytest.raises(ForkqError, match="not in this middleware chain"):
            act()


# The form that yields


def yielding(name: str, trace: list[str]) -> AroundMiddleware:
    def member(job: dict[str, Any], /) -> Iterator[None]:
        trace.append(f"{name} in")
        try:
            yield
        finally:
            trace.append(f"{name} out")

    return member


def inside(chain: Chain, job: dict[str, Any], core: Callable[[], Any]) -> Any:
    """As what is awaited inside of the chain."""
    with chain.around(job) as layers:
        layers.result = result = core()
        return result


EACH_WAY = pytest.mark.parametrize("run", [Chain.run, inside], ids=["called", "awaited"])
Run = Callable[[Chain, dict[str, Any], Callable[[], Any]], Any]


def test_both_forms_stand_in_one_order(trace: list[str]) -> None:
    chain = Chain()
    chain.append(yielding("a", trace))
    chain.append(named("b", trace))
    chain.append(yielding("c", trace))
    assert chain.run({}, lambda: 7) == 7
    assert trace == ["a in", "b in", "c in", "c out", "b out", "a out"]
    assert chain.with_call() == ["named.<locals>.member"]


@EACH_WAY
def test_a_generator_sees_job_and_result(run: Run) -> None:
    seen, chain = [], Chain()

    @chain.append
    def member(job: dict[str, Any]) -> Generator[None, Any, None]:
        job["began"] = True
        seen.append((job["class"], (yield)))

    job: dict[str, Any] = {"class": "Job"}
    assert run(chain, job, lambda: 42) == 42
    assert seen == [("Job", 42)]
    assert job["began"]


@EACH_WAY
@pytest.mark.parametrize("error", [KeyError, StopIteration, Shutdown, Cancelled])
def test_an_error_is_raised_at_the_yield_and_goes_on(
    run: Run, trace: list[str], error: type[BaseException]
) -> None:
    chain, seen = Chain(), []
    chain.append(yielding("a", trace))

    @chain.append
    def member(job: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as found:
            seen.append(type(found))
            raise

    def core() -> None:
        raise error

    with pytest.raises(error) as raised:
        run(chain, {}, core)
    assert type(raised.value) is error
    assert seen == [error]
    assert trace == ["a in", "a out"]
    frames = [entry.name for entry in raised.traceback]
    assert frames[-1] == "core"
    assert "member" not in frames


@EACH_WAY
def test_a_generator_may_deal_with_an_error_or_raise_another(run: Run) -> None:
    def deals(job: dict[str, Any]) -> Iterator[None]:
        with suppress(KeyError):
            yield

    def turns(job: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise ValueError("turned") from error

    for member in (deals, turns):
        chain = Chain()
        chain.append(member)
        if member is deals:
            assert run(chain, {}, partial(dict.pop, {}, "x")) is None
        else:
            with pytest.raises(ValueError, match="turned"):
                run(chain, {}, partial(dict.pop, {}, "x"))


@EACH_WAY
def test_a_generator_must_yield_once(run: Run) -> None:
    def never(job: dict[str, Any]) -> Iterator[None]:
        if job:
            yield

    def twice(job: dict[str, Any]) -> Iterator[None]:
        yield
        yield

    ran: list[int] = []
    for member, what in ((never, "ends before its `yield`"), (twice, "yields a second time")):
        chain = Chain()
        chain.append(member)
        with pytest.raises(ForkqError, match=f"the middleware .*{what}: it must yield once"):
            run(chain, {}, lambda: ran.append(1))
    assert ran == [1]


@EACH_WAY
def test_those_outside_of_one_that_fails_at_its_start_hear_of_it(
    run: Run, trace: list[str]
) -> None:
    chain = Chain()
    chain.append(yielding("a", trace))

    @chain.append
    def fails(job: dict[str, Any]) -> Iterator[None]:
        if "session" not in job:
            raise KeyError("session")
        yield

    with pytest.raises(KeyError):
        run(chain, {}, lambda: trace.append("core"))
    assert trace == ["a in", "a out"]


def test_what_waits_runs_nothing_if_a_middleware_hides_that_another_has_failed() -> None:
    chain, ran = Chain(), []

    @chain.append
    def hides(job: dict[str, Any]) -> Iterator[None]:
        with suppress(KeyError):
            yield

    @chain.append
    def fails(job: dict[str, Any]) -> Iterator[None]:
        if "session" not in job:
            raise KeyError("session")
        yield

    with pytest.raises(ForkqError, match="hides the error"):
        inside(chain, {}, lambda: ran.append(1))
    assert ran == []


def test_a_context_variable_of_a_generator_is_set_for_what_is_inside() -> None:
    color: ContextVar[str] = ContextVar("color", default="none")
    chain = Chain()

    @chain.append
    def paints(job: dict[str, Any]) -> Iterator[None]:
        token = color.set("red")
        yield
        color.reset(token)

    assert (chain.run({}, color.get), color.get()) == ("red", "none")


def test_a_middleware_that_takes_call_is_named_where_a_coroutine_would_run() -> None:
    chain = Chain()
    chain.append(named("a", []))
    with pytest.raises(ForkqError, match=r"named\.<locals>\.member cannot be around"):
        chain.around({})


class WithCall:
    def __call__(self, job: dict[str, Any]) -> Iterator[None]:
        yield

    def method(self, job: dict[str, Any], more: int = 0) -> Iterator[None]:
        yield


def test_methods_objects_and_partials_have_the_form_of_their_function() -> None:
    chain = Chain()
    for member in (WithCall(), WithCall().method, partial(WithCall().method, more=1)):
        chain.append(member)
    assert chain.with_call() == []
    assert inside(chain, {}, lambda: 7) == chain.run({}, lambda: 7) == 7


def test_a_middleware_that_would_run_nothing_is_refused_with_the_form_to_write() -> None:
    async def waits(job: dict[str, Any], call: Callable[[], Any]) -> Any: ...

    async def steps(job: dict[str, Any]) -> Any:
        yield

    def too_much(job: dict[str, Any], call: object) -> Iterator[None]:
        yield

    wrong: Any = [
        (waits, "is async: a call of it runs nothing; write `def` with one `yield`"),
        (steps, "is an async generator: a call of it runs nothing; write `def` with one `yield`"),
        (too_much, r"is called with \(job\): missing a required argument: 'call'"),
        (contextmanager(yielding("a", [])), r"without @contextmanager"),
    ]
    for member, text in wrong:
        with pytest.raises(ForkqError, match=text):
            Chain().append(member)
