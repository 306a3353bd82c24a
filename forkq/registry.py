"""The jobs, hooks and handlers that the app has registered.

Only registered jobs run. A name in a payload is looked up here and never imported.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from .errors import ForkqError, InvalidJob, InvalidSchedule, UnknownJob, nearest, shown
from .values import replace
from .wire.payload import KEY

if TYPE_CHECKING:
    from .features.arguments.reader import ArgumentReader
    from .features.version.parts import Upgrades
    from .wire.positions import Parameters

Event: TypeAlias = Literal["startup", "quiet", "shutdown", "exit", "fork", "leader"]
EventHandler: TypeAlias = "Callable[[], Any]"
Payload: TypeAlias = "dict[str, Any]"
RetryIn: TypeAlias = "Callable[[int, BaseException, Payload], Any]"
Exhausted: TypeAlias = "Callable[[Payload, BaseException], Any]"
DeathHandler: TypeAlias = "Callable[[Payload, BaseException], Any]"
DuplicateHandler: TypeAlias = "Callable[[Payload, str], Any]"
MakeReader: TypeAlias = "Callable[[], ArgumentReader]"
ErrorContext: TypeAlias = "dict[str, Any]"
ErrorHandler: TypeAlias = "Callable[[BaseException, ErrorContext], Any]"

# What ``lazy_kind`` says of ``async def`` functions, and of those that ``yield``.
ASYNC: Final = "async"
GENERATOR: Final = "a generator"
ASYNC_GENERATOR: Final = "an async generator"
EVENTS: Final = ("startup", "quiet", "shutdown", "exit", "fork", "leader")


class Verdict(str):
    """The type of DISCARD and KILL, which a hook may return instead of a delay."""

    __slots__ = ()


DISCARD: Final = Verdict("DISCARD")
"""Returned by ``retry_in`` or ``retries_exhausted``: the job is dropped, and not kept as dead."""
KILL: Final = Verdict("KILL")
"""Returned by ``retry_in``: the job is not retried, and goes to the dead set at once."""


class DefinedAt(msgspec.Struct, frozen=True):
    """The line of a definition. ``run`` is the ``__spec__`` of its module: each run of the module's
    code has one of its own, so a reload makes a new one."""

    file: str
    line: int
    run: object

    def is_beside(self, other: DefinedAt) -> bool:
        """Whether this definition and ``other`` are in one run of one module. There the later one
        hides the earlier one."""
        return self.run is other.run and self.file == other.file and self.line != other.line


class JobSpec(msgspec.Struct, frozen=True):
    """One registered job. ``make`` takes a CurrentJob and returns the function to call with the
    arguments; ``options`` are the default keys of its payloads; ``retry_on``, if it is not empty,
    are the only errors after which it is tried again, ``discard_on`` those that drop it; ``where``
    is the full name of its definition, in ``module`` at ``place``; ``arity``, ``parameters`` and
    ``defaults`` are ``arity``, ``names`` and ``defaults`` of its ``Parameters``; ``is_async``: the
    function is ``async def``, so a call of it returns a coroutine; ``is_iterable``: it does its
    work item by item, and goes on from its cursor; ``reader`` makes its arguments of those in a
    payload, if the types of its parameters count; ``make_reader`` makes the reader of a job that
    does not say whether they do; ``upgrades`` makes its arguments of those of an older version, if
    it has versions."""

    name: str
    make: Callable[[Any], Callable[..., Any]]
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    retry_in: RetryIn | None = None
    retries_exhausted: Exhausted | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    discard_on: tuple[type[BaseException], ...] = ()
    where: str = ""
    arity: tuple[int, float] = (0, float("inf"))
    module: str = ""
    parameters: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict)
    place: DefinedAt | None = None
    is_async: bool = False
    is_iterable: bool = False
    reader: ArgumentReader | None = None
    make_reader: MakeReader | None = None
    upgrades: Upgrades | None = None

    @property
    def where_defined(self) -> str:
        """The full name of the definition, and its line."""
        return f"{self.where} ({self.place.file}:{self.place.line})" if self.place else self.where

    @property
    def takes(self) -> str:
        """How many arguments the job takes, in words: ``1 argument``, ``1 to 2 arguments``, ``at
        least 1 argument``."""
        fewest, most = self.arity
        is_open = most == float("inf")
        last = fewest if is_open else most
        first = "at least " if is_open else "" if fewest == most else f"{fewest} to "
        return f"{first}{last:g} argument{'s' * (last != 1)}"

    def is_again(self, known: JobSpec) -> bool:
        """Whether this is the definition that ``known`` is, executed once more."""
        beside = self.place and known.place and self.place.is_beside(known.place)
        return self.where == known.where and not beside

    @property
    def is_secret(self) -> bool:
        """Whether all arguments of the job are secret."""
        return bool(self.options.get("secret"))


class PeriodicSpec(msgspec.Struct, frozen=True):
    """One periodic job of the app: ``entry`` is its Entry (cron/entry.py, not imported here: it is
    not light); ``job`` is what it pushes, ``target`` the decorated job class or function;
    ``has_zone``: whether the definition names a time zone."""

    name: str
    entry: Any
    job: JobSpec
    target: object
    has_zone: bool = True


_jobs: dict[str, JobSpec] = {}
# Whether jobs are typed that do not say so. None: no configuration was read yet.
types_all: bool | None = None
# The names of the jobs that are defined with a time limit.
with_time_limit: set[str] = set()
periodic: dict[str, PeriodicSpec] = {}
_log: Final = logging.getLogger("forkq")
_events: dict[Event, list[EventHandler]] = {name: [] for name in EVENTS}
death_handlers: list[DeathHandler] = []
duplicate_handlers: list[DuplicateHandler] = []
error_handlers: list[ErrorHandler] = []
# What integrations put around each hook and handler: a Flask app context, a database session.
around_hooks: list[Callable[[], AbstractContextManager[object]]] = []

Handler = TypeVar("Handler", bound=Callable[..., Any])
Result = TypeVar("Result")


def define(spec: JobSpec, parameters: Parameters, typed: bool | None, version: int) -> JobSpec:
    """Registers a job. Returns its spec, which has a reader if the job is ``typed``, and upgrades
    if it is not of the first ``version``."""
    if typed not in (None, True, False):
        raise InvalidJob(f"{spec.where}: `typed` is {shown(typed)}; pass True or False")

    def make() -> ArgumentReader:
        from .features.arguments.reader import ArgumentReader  # noqa: PLC0415 - few jobs are typed

        return ArgumentReader(spec.name, parameters, has_result=not spec.is_iterable)

    if version != 1:
        spec = _versioned(spec, version)
    if typed:
        spec = as_typed(spec, make())
    elif typed is None:
        spec = replace(spec, make_reader=make)
    add(spec)
    return spec


def _versioned(spec: JobSpec, version: int) -> JobSpec:
    """Makes a job of that version of ``spec``. Raises InvalidJob for what is no version."""
    from .features.version.parts import NEED, Upgrades, is_version  # noqa: PLC0415 - few have them
    from .wire.marks import with_needs  # noqa: PLC0415

    if not is_version(version):
        raise InvalidJob(f"{spec.where}: `version` is {shown(version)}; pass a whole number from 1")
    marks = with_needs(spec.options.get(KEY), {NEED: version})
    return replace(
        spec, options={**spec.options, KEY: marks}, upgrades=Upgrades(spec.name, version)
    )


def upgrade_of(spec: JobSpec, version: int) -> Callable[[Handler], Handler]:
    """Decorator that registers how a job of ``version`` becomes one of the next. Raises InvalidJob
    for a job without versions, and for one that is not an older one."""
    if spec.upgrades is None:
        raise InvalidJob(f"job {spec.name!r} has no older version: write version=2 in its head")
    add = spec.upgrades.add(version)

    def register(step: Handler) -> Handler:
        refuse_lazy(
            step, f"upgrade({version}) of the job {spec.name!r},", "make it a plain function"
        )
        return add(step)

    return register


def add(spec: JobSpec) -> None:
    """Registers ``spec``. Two different definitions under one name are an error: the order of
    imports must not decide which one runs. A reloaded module replaces its own definition."""
    known = _jobs.get(spec.name)
    if known is not None and not spec.is_again(known):
        raise ForkqError(
            f"two jobs are named {spec.name!r}: {known.where_defined} and {spec.where_defined}; "
            "give one of them another name="
        )
    refuse_unique_by(spec, spec.options.get("forkq", {}).get("needs", {}).get("unique_by"))
    if types_all and spec.make_reader is not None:
        spec = as_typed(spec, spec.make_reader())
    _jobs[spec.name] = spec
    if "timeout" in spec.options or "hard_timeout" in spec.options:
        with_time_limit.add(spec.name)
    else:
        with_time_limit.discard(spec.name)


def as_typed(spec: JobSpec, reader: ArgumentReader) -> JobSpec:
    """Makes a typed job of ``spec``."""
    return replace(spec, reader=reader, defaults=reader.plain(spec.defaults))


def type_all(*, on: bool) -> None:
    """Makes jobs typed, or not, that do not say so themselves (``typed_args``). Raises InvalidJob
    for a parameter that cannot be typed."""
    global types_all  # noqa: PLW0603 - a process has one configuration
    if on == bool(types_all):
        types_all = on
        return
    types_all = on
    for name, spec in [*_jobs.items()]:
        if spec.make_reader is not None:
            _jobs[name] = as_typed(spec, spec.make_reader()) if on else replace(spec, reader=None)


def reader_of(name: str) -> ArgumentReader | None:
    """What makes the arguments of the job called ``name``; None if it is not typed."""
    spec = _jobs.get(name)
    return None if spec is None else spec.reader


def add_periodic(spec: PeriodicSpec) -> None:
    """Registers a periodic job. Two different definitions under one name are an error, even on the
    same job. A reloaded module makes new job objects, and so replaces its own definition."""
    known = periodic.get(spec.name)
    reloaded = known and spec.job.is_again(known.job) and known.target is not spec.target
    if known is not None and not reloaded and known.entry != spec.entry:
        raise InvalidSchedule(
            f"two periodic jobs are named {spec.name!r}: on {known.job.where_defined} and on "
            f"{spec.job.where_defined}; give one of them another name="
        )
    periodic[spec.name] = spec


def find(name: str) -> JobSpec | None:
    """The job called ``name``, if the app has registered one."""
    return _jobs.get(name)


def lookup(name: str) -> JobSpec:
    """The job called ``name``. Raises UnknownJob."""
    spec = _jobs.get(name)
    if spec is None:
        raise UnknownJob(
            f"no job is registered as {name!r}; import its module in the app that "
            "`app` in forkq.toml, or `forkq start -r`, names"
        )
    return spec


def refuse_max_runtime(options: Mapping[str, Any], name: str) -> None:
    """Raises InvalidJob for a bound that a job which is not iterable would not keep. ``name`` is
    that of the job."""
    if "max_runtime" in options:
        raise InvalidJob(
            f"{name}: `max_runtime` is of iterable jobs, which stop between two items; pass "
            "`timeout`, or make it one (iterable=True, forkq.IterableJob)"
        )


def check_options_of(name: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidJob for an option that the job ``name`` cannot have, if it is known here."""
    spec = find(name)
    if spec is not None and not spec.is_iterable:
        refuse_max_runtime(options, name)
    if spec is not None:
        refuse_unique_by(spec, options.get("unique_by"))


def refuse_unique_by(spec: JobSpec, by: Sequence[str] | Callable[..., Any] | None) -> None:
    """Raises InvalidJob if ``by`` names what is no parameter of the job, or is a function that does
    not take its arguments: a push would be the first to fail."""
    if callable(by):
        _refuse_call(spec, by)
        return
    for each in by or ():
        if each not in spec.parameters:
            near = nearest(each, spec.parameters)
            raise InvalidJob(
                f"job {spec.name!r}: `unique_by` names {shown(each)}, which is none of its "
                f"parameters ({', '.join(spec.parameters)})"
                + (f"; is {near!r} meant?" * bool(near))
            )


def _refuse_call(spec: JobSpec, by: Callable[..., Any]) -> None:
    """Raises InvalidJob if the function does not take as many arguments as a push may give."""
    fewest, most = spec.arity
    longest = len(spec.parameters) + fewest if most == float("inf") else most
    for count in (fewest, int(longest)):
        if said := _misfit(by, count):
            raise InvalidJob(
                f"job {spec.name!r}: `unique_by` gets the arguments of the job, which takes "
                f"{spec.takes}, and {name_of(by)} does not take {count:,} ({said}); give it the "
                "parameters of the job, with their defaults"
            )


def _misfit(function: Callable[..., Any], count: int) -> str:
    """Why the function cannot be called with so many arguments; "" if it can."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return ""  # written in C, and Python does not know its parameters
    except TypeError as error:
        return str(error)
    return ""


def names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_jobs)


def modules() -> list[str]:
    """The names of the modules that define jobs, in order of registration."""
    return list(dict.fromkeys(spec.module for spec in _jobs.values() if spec.module))


def lazy_kind(function: object) -> str:
    """What ``function`` is if a call of it runs no line of it: "async", "a generator" or "an async
    generator". Else ""."""
    for test, kind in (
        (inspect.iscoroutinefunction, ASYNC),
        (inspect.isasyncgenfunction, ASYNC_GENERATOR),
        (inspect.isgeneratorfunction, GENERATOR),
    ):
        if test(function) or test(type(function).__call__):
            return kind
    return ""


def is_async(function: object) -> bool:
    """Whether ``function`` is ``async def``."""
    return lazy_kind(function) == ASYNC


def name_of(function: object) -> str:
    """The name of a function or another callable, for the text of an error."""
    return getattr(function, "__qualname__", None) or repr(function)


def refuse_lazy(function: object, what: str, remedy: str, allowed: Collection[str] = ()) -> None:
    """Raises ForkqError if a call would run nothing of ``function``, unless its kind
    (``lazy_kind``) is among those ``allowed``."""
    kind = lazy_kind(function)
    if kind and kind not in allowed:
        raise ForkqError(
            f"{what} {name_of(function)} is {kind}: a call of it runs nothing; {remedy}"
        )


def check_hook(
    function: Callable[..., Any], what: str, *arguments: str, lazy: Collection[str] = ()
) -> None:
    """Raises ForkqError if a call with these arguments would fail, or would run nothing: it is
    called when a job runs or fails, and that is too late to hear of it. ``lazy``: the kinds
    (``lazy_kind``) that are allowed all the same."""
    refuse_lazy(function, what, "make it a plain function", lazy)
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return  # written in C, and Python does not know its parameters
    except TypeError as error:
        given = f"with ({', '.join(arguments)})" if arguments else "without arguments"
        raise ForkqError(f"{what} {name_of(function)} is called {given}: {error}") from None


def on(event: Event) -> Callable[[Handler], Handler]:
    """Decorator: calls the function, without arguments, in the child when ``event`` happens. It may
    be ``async def``, but for ``fork``: then it runs in the event loop of the child."""
    if event not in EVENTS:
        raise ForkqError(f"there is no lifecycle event {event!r}; use one of {', '.join(EVENTS)}")

    def register(handler: Handler) -> Handler:
        lazy = () if event == "fork" else (ASYNC,)
        check_hook(handler, f"the {event} handler", lazy=lazy)
        _events[event].append(handler)
        return handler

    return register


def handlers(event: Event) -> tuple[EventHandler, ...]:
    """The app's functions to call at ``event``, in order of registration."""
    return tuple(_events[event])


def call_hook(hook: Callable[..., Result], *arguments: Any) -> Result:
    """Calls a hook or a handler of the app, after a failure: the context of the job is gone then,
    so it gets one of its own. Raises what the hook raises."""
    with ExitStack() as contexts:
        for enter in around_hooks:
            contexts.enter_context(enter())
        return hook(*arguments)
    raise AssertionError("a context suppresses no error")


def on_death(handler: Handler) -> Handler:
    """Decorator: calls ``handler(job, exception)`` when a job will not be retried any more."""
    check_hook(handler, "the death handler", "job", "exception")
    death_handlers.append(handler)
    return handler


def on_duplicate(handler: Handler) -> Handler:
    """Decorator: calls ``handler(job, holder)`` in the process that pushes, when a unique job that
    has waited for a commit is a duplicate: it was not pushed, though its jid was returned before.
    ``holder`` is the jid of the job that has its lock; "" if its throttle keeps it out. What the
    handler raises is logged."""
    check_hook(handler, "the duplicate handler", "job", "holder")
    duplicate_handlers.append(handler)
    return handler


def tell_duplicate(jid: str, payload: bytes, holder: str) -> None:
    """Logs that the job of a push was not pushed, and calls the handlers for that."""
    if holder:
        _log.warning("job %s is a duplicate, and was not pushed: job %s waits", jid, holder)
    else:
        _log.warning("job %s was not pushed: its throttle has let as many through as it may", jid)
    if not duplicate_handlers:
        return
    from .features.marked import readable  # noqa: PLC0415 - most apps have no such handler

    for handler in duplicate_handlers:
        try:
            call_hook(handler, readable(payload), holder)
        except Exception:  # noqa: BLE001 - code of the app; it is logged
            _log.exception("the handler of a duplicate has failed: job %s", jid)


def on_error(handler: Handler) -> Handler:
    """Decorator: calls ``handler(exception, context)`` for every error a child meets. Of a failed
    job, the context has the ``job`` and its ``outcome``: "retried", "dead", "dropped" (it had no
    more attempts, and is not kept), "expired" (its retry would be too late) or "discarded" (a hook
    of the app said DISCARD)."""
    check_hook(handler, "the error handler", "exception", "context")
    error_handlers.append(handler)
    return handler
