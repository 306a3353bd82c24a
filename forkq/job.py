"""Defining jobs: a class with ``perform``, or a decorated function. Client side.

The parameters of ``perform`` reach the callers: type checkers see ``perform_async("a.png", 200)``
with the types that the job declares, and a call that does not fit is refused when it is pushed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from . import registry
from .client import default
from .errors import ForkqError, InvalidJob
from .payload import Job as Payload
from .payload import validate
from .registry import JobSpec
from .times import Moment, due

P = ParamSpec("P")
R = TypeVar("R")

# What a job may say of its payloads; anything else in a definition is a typo.
OPTIONS: Final = frozenset(
    {"queue", "retry", "dead", "backtrace", "retry_queue", "retry_for", "tags", "log_level"}
)

_NAMED: Final = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class Running:
    """The job that this thread performs: what ``forkq.current_job()`` returns."""

    __slots__ = ("payload",)

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    def __repr__(self) -> str:
        return f"<forkq job {self.payload.get('class')} {self.jid}>"

    @property
    def jid(self) -> str:
        """Its id."""
        return cast("str", self.payload.get("jid", ""))

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return cast("str", self.payload.get("queue", ""))

    @property
    def retry_count(self) -> int | None:
        """How many retries have failed: None at the first run, 0 at the first retry."""
        return cast("int | None", self.payload.get("retry_count"))


_running: ContextVar[Running | None] = ContextVar("forkq_running", default=None)


def begin(payload: Payload) -> Running:
    """Makes ``payload`` this thread's current job; called by the processor, and by it alone."""
    view = Running(payload)
    _running.set(view)
    return view


def end() -> None:
    """This thread performs no job any more."""
    _running.set(None)


def current_job() -> Running:
    """The job that this thread performs. Raises ForkqError outside of one."""
    found = _running.get()
    if found is None:
        raise ForkqError("current_job() was called outside of a running job")
    return found


class Performs(Protocol[P]):
    """Whatever has a ``perform``: the shape by which type checkers carry its parameters."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


class Pusher(Generic[P]):
    """A job with its options, ready to be pushed."""

    __slots__ = ("_options", "_signature", "name")

    def __init__(self, name: str, signature: inspect.Signature, options: Mapping[str, Any]) -> None:
        self.name = name
        self._signature = signature
        self._options = options

    def perform_async(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Pushes the job to its queue. Returns its jid, or "" if a middleware vetoed it."""
        return self._push(args, kwargs, {})

    def perform_in(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Schedules the job ``moment`` from now (seconds or a timedelta). Returns its jid."""
        return self._push(args, kwargs, {"at": _moment(moment)})

    def perform_at(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Schedules the job at ``moment`` (an aware datetime or epoch seconds). Returns its jid."""
        return self._push(args, kwargs, {"at": _moment(moment)})

    def perform_bulk(
        self, rows: Iterable[Sequence[Any]], *, at: Moment | Sequence[Moment] | None = None
    ) -> list[str]:
        """Pushes one job per argument list, 1,000 a round trip. Returns their jids."""
        checked = [self._bind(_row(self.name, row), {}) for row in rows]
        when = {} if at is None else {"at": at}
        return default().push_bulk({**self._options, "class": self.name, "args": checked, **when})

    def set(self, **options: Any) -> Pusher[P]:
        """The same job with other options (``queue``, ``retry``, ``tags``, ...) for this push.

        Keys that forkq does not know travel in the payload, as they do in Sidekiq.
        """
        changed = {**self._options, **options}
        validate({**changed, "class": self.name, "args": []}, "off")
        return Pusher(self.name, self._signature, changed)

    def _push(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> str:
        bound = self._bind(args, kwargs)
        return default().push({**self._options, "class": self.name, "args": bound, **extra}) or ""

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The positional arguments as they will travel. Raises InvalidJob if they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidJob(f"job {self.name!r} takes {self._signature}: {error}") from None
        named = [
            name for name in bound.arguments if self._signature.parameters[name].kind in _NAMED
        ]
        if named:
            raise InvalidJob(
                f"job {self.name!r} takes {self._signature}: {', '.join(named)} can only be "
                "given by name, but a payload carries positions; make it a positional parameter"
            )
        if bound.kwargs:  # given by name behind one that was not given at all
            bound.apply_defaults()
        return list(bound.args)


class _PerformAsync:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[P, str]:
        return cast("Callable[P, str]", _pusher(owner).perform_async)


class _PerformLater:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(
        self, job: object, owner: Callable[[], Performs[P]]
    ) -> Callable[Concatenate[Moment, P], str]:
        return cast("Callable[Concatenate[Moment, P], str]", getattr(_pusher(owner), self._name))


class _PerformBulk:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[..., list[str]]:
        return _pusher(owner).perform_bulk


class _Set:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[..., Pusher[P]]:
        return cast("Callable[..., Pusher[P]]", _pusher(owner).set)


def _pusher(owner: Any) -> Pusher[Any]:
    found = owner.__dict__.get("_pusher")
    if found is None:
        raise ForkqError(f"{owner.__qualname__} has no perform(); define it in the class")
    return cast("Pusher[Any]", found)


class Job:
    """The base of job classes.

    ``class Thumbnail(forkq.Job, queue="images", retry=5)`` registers it under ``name`` (default:
    module.qualname) with those options. A class without ``perform`` is a base for others, which
    inherit its options.

    Hooks, all optional: ``retry_in(count, exception, job)`` returns seconds, DISCARD or KILL;
    ``retries_exhausted(job, exception)`` may return DISCARD.
    """

    perform: Callable[..., Any]

    perform_async = _PerformAsync()
    perform_in = _PerformLater("perform_in")
    perform_at = _PerformLater("perform_at")
    perform_bulk = _PerformBulk()
    set = _Set()

    _running: Running | None = None
    _options: ClassVar[Mapping[str, Any]] = {}

    @property
    def job(self) -> Running:
        """The job being performed. Raises ForkqError on an instance that forkq did not make."""
        if self._running is None:
            raise ForkqError(f"this {type(self).__qualname__} performs no job; forkq gives it one")
        return self._running

    @property
    def jid(self) -> str:
        """The id of the job being performed."""
        return self.job.jid

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.job.queue

    @property
    def retry_count(self) -> int | None:
        """How many retries have failed: None at the first run, 0 at the first retry."""
        return self.job.retry_count

    def __init_subclass__(cls, *, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__()
        cls._options = {**cls._options, **_checked(options, cls)}
        if not hasattr(cls, "perform"):
            return
        name = name or _full_name(cls)
        signature = _signature(cls.perform, skip_self=not _is_static(cls, "perform"))
        cls._pusher = Pusher[Any](name, signature, cls._options)  # type: ignore[attr-defined]
        registry.add(_spec_of_class(cls, name, _arity(signature)))


class FunctionJob(Pusher[P], Generic[P, R]):
    """A decorated function: still callable, and a job."""

    __slots__ = ("__wrapped__", "spec")

    def __init__(self, function: Callable[P, R], spec: JobSpec) -> None:
        super().__init__(spec.name, _signature(function, skip_self=False), spec.options)
        self.__wrapped__ = function
        self.spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here and now."""
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<forkq job {self.name}>"


@overload
def job(function: Callable[P, R], /) -> FunctionJob[P, R]: ...


@overload
def job(
    *,
    name: str | None = None,
    retry_in: registry.RetryIn | None = None,
    retries_exhausted: registry.Exhausted | None = None,
    **options: Any,
) -> Callable[[Callable[P, R]], FunctionJob[P, R]]: ...


def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry_in: registry.RetryIn | None = None,
    retries_exhausted: registry.Exhausted | None = None,
    **options: Any,
) -> Any:
    """Decorator, with or without options: makes a function a job, registered as ``name`` (default:
    module.qualname)."""

    def register(function: Callable[..., Any]) -> FunctionJob[..., Any]:
        spec = JobSpec(
            name=name or _full_name(function),
            make=lambda _running: function,
            options=_checked(options, function),
            retry_in=retry_in,
            retries_exhausted=retries_exhausted,
            where=_full_name(function),
            arity=_arity(_signature(function, skip_self=False)),
        )
        registry.add(spec)
        return FunctionJob(function, spec)

    return register if function is None else register(function)


def _spec_of_class(cls: type[Job], name: str, arity: tuple[int, float]) -> JobSpec:
    def make(view: Running) -> Callable[..., Any]:
        instance = cls()
        instance._running = view
        return instance.perform

    def hook(attribute: str) -> Callable[..., Any] | None:
        if not hasattr(cls, attribute):
            return None

        def call(*arguments: Any) -> Any:
            return getattr(cls(), attribute)(*arguments)  # may be a plain, static or class method

        return call

    return JobSpec(
        name=name,
        make=make,
        options=cls._options,
        retry_in=hook("retry_in"),
        retries_exhausted=hook("retries_exhausted"),
        where=_full_name(cls),
        arity=arity,
    )


def _checked(options: Mapping[str, Any], thing: Any) -> dict[str, Any]:
    """The options of a definition. Raises InvalidJob for a typo or an impossible value."""
    odd = sorted(set(options) - OPTIONS)
    if odd:
        raise InvalidJob(
            f"{thing.__qualname__}: there is no job option {odd[0]!r}; use one of "
            f"{', '.join(sorted(OPTIONS))} (or .set({odd[0]}=...) to send a key of your own)"
        )
    validate({**options, "class": thing.__qualname__, "args": []}, "off")
    return dict(options)


def _moment(moment: Moment) -> Moment:
    """``moment`` itself. Raises InvalidJob if it is none: None must not mean now."""
    due(moment)
    return moment


def _row(name: str, row: Any) -> tuple[Any, ...]:
    if not isinstance(row, list | tuple):
        raise InvalidJob(f"job {name!r}: perform_bulk takes a list of arguments each, not {row!r}")
    return tuple(row)


def _refuse_lazy(function: Callable[..., Any]) -> None:
    """Calling a coroutine or generator function runs nothing of it: the job would be done without
    having begun."""
    for test, kind in (
        (inspect.iscoroutinefunction, "async"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if test(function):
            raise InvalidJob(
                f"{function.__qualname__} is {kind}: forkq would call it, and nothing would run; "
                "make it a plain function (with asyncio.run(...) inside, if it needs async code)"
            )


def _signature(function: Callable[..., Any], *, skip_self: bool) -> inspect.Signature:
    _refuse_lazy(function)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if skip_self else 0 :]
    return signature.replace(parameters=parameters)


def _arity(signature: inspect.Signature) -> tuple[int, float]:
    """The fewest and the most positional arguments that fit."""
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    open_ended = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    fewest = sum(p.default is p.empty for p in positional)
    return fewest, float("inf") if open_ended else len(positional)


def _is_static(cls: type, attribute: str) -> bool:
    return isinstance(inspect.getattr_static(cls, attribute), staticmethod | classmethod)


def _full_name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
