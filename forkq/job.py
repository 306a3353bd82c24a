"""Defining jobs: a class with ``perform``, or a decorated function. Client side."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from . import registry
from .current_job import CurrentJob
from .errors import InvalidJob, MissingAttribute, nearest, shown
from .job_methods import (
    AwaitPerformAsync,
    AwaitPerformBulk,
    AwaitPerformLater,
    Elsewhere,
    PerformAsync,
    PerformAsyncOnCommit,
    PerformBulk,
    PerformLater,
    Prepare,
    SetOptions,
)
from .push import CALLS_ELSEWHERE, OPTIONS_ELSEWHERE, Pusher, parameters_of
from .registry import ASYNC, ASYNC_GENERATOR, GENERATOR, DefinedAt, JobSpec
from .values import replace
from .wire.options import OPTIONS
from .wire.positions import Parameters
from .wire.validation import with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .wire.options import JobOptions


# What a definition takes beside the options of its pushes.
_MORE = (
    "name",
    "iterable",
    "typed",
    "version",
    "retry_on",
    "discard_on",
    "retry_in",
    "retries_exhausted",
)
_HOOKS: Final = {
    "retry_in": ("count", "exception", "job"),
    "retries_exhausted": ("job", "exception"),
}


class Cancel:
    """``Pusher.cancel`` of a job class."""

    def __get__(self, job: object, owner: Any) -> Callable[..., str]:
        return cast("Callable[..., str]", owner.set().cancel)


def take_result(jid: str, timeout: float | None = None) -> Any:
    """What the job ``jid`` has returned (``result_ttl``). Waits up to ``timeout`` seconds until it
    has ended, by default for as long as that takes. ``forkq.result`` says what this raises."""
    from .results.waiting import result  # noqa: PLC0415 - a push needs none of it

    return result(jid, timeout)


async def await_result(jid: str, timeout: float | None = None) -> Any:
    """``result``, awaited by an event loop of asyncio, which it never holds up."""
    from .results.waiting import aresult  # noqa: PLC0415 - a push needs none of it

    return await aresult(jid, timeout)


Errors: TypeAlias = "type[BaseException] | Sequence[type[BaseException]]"

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
S = TypeVar("S")


class Job:
    """The base of job classes.

    ``class Thumbnail(forkq.Job, queue="images", retry=5)`` registers it under ``name`` (default:
    module.qualname) with those options. A class without ``perform`` is a base for others, which
    inherit its options.

    ``retry_on`` are the only errors after which it is tried again; any other buries it at once.
    ``discard_on`` are errors that drop it, as DISCARD does. Each is an exception class or several.

    Hooks, all optional: ``retry_in(count, exception, job)`` returns a timedelta, which is exact,
    seconds, to which forkq adds a jitter, DISCARD or KILL; ``retries_exhausted(job, exception)``
    may return DISCARD.
    """

    perform: Callable[..., Any]

    perform_async = PerformAsync()
    perform_async_on_commit = PerformAsyncOnCommit()
    perform_in = PerformLater("perform_in")
    perform_at = PerformLater("perform_at")
    perform_bulk = PerformBulk()
    aperform_async = AwaitPerformAsync()
    aperform_in = AwaitPerformLater("aperform_in")
    aperform_at = AwaitPerformLater("aperform_at")
    aperform_bulk = AwaitPerformBulk()
    s = Prepare()
    set = SetOptions()
    cancel = Cancel()
    result = staticmethod(take_result)
    aresult = staticmethod(await_result)

    _running: CurrentJob | None = None
    _options: ClassVar[Mapping[str, Any]] = {}
    _retry_on: ClassVar[tuple[type[BaseException], ...]] = ()
    _discard_on: ClassVar[tuple[type[BaseException], ...]] = ()
    _is_iterable: ClassVar[bool] = False
    _typed: ClassVar[bool | None] = None
    _spec: ClassVar[JobSpec | None] = None

    @property
    def job(self) -> CurrentJob:
        """The job being performed. Raises MissingAttribute on an instance that no child made."""
        if self._running is None:
            raise MissingAttribute(
                f"{type(self).__qualname__}: self.job is only set while a child runs the job"
            )
        return self._running

    @property
    def jid(self) -> str | None:
        """The id of the job being performed; None on an instance that no child made."""
        return None if self._running is None else self._running.jid

    @property
    def queue(self) -> str | None:
        """The queue that the job came from; None on an instance that no child made."""
        return None if self._running is None else self._running.queue

    @property
    def retry_count(self) -> int | None:
        """How many retries have failed: None at the first run, 0 at the first retry."""
        return None if self._running is None else self._running.retry_count

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Reports the progress of this job (``CurrentJob.progress``), for ``forkq running``.

        Does nothing on an instance that no child made, so that tests may call ``perform``.
        """
        if self._running is not None:
            self._running.progress(done, total, note)

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        retry_on: Errors | None = None,
        discard_on: Errors | None = None,
        typed: bool | None = None,
        version: int = 1,
        **options: Unpack[JobOptions],
    ) -> None:
        super().__init_subclass__()
        cls._options = _checked(options, cls, cls._options)
        if retry_on is not None:
            cls._retry_on = _errors("retry_on", retry_on, cls)
        if discard_on is not None:
            cls._discard_on = _errors("discard_on", discard_on, cls)
        if typed is not None:
            cls._typed = typed
        _refuse_both(cls._retry_on, cls._discard_on, cls)
        if not cls._is_iterable:
            registry.refuse_max_runtime(cls._options, cls.__qualname__)
        parameters = cls._parameters()
        if parameters is None:
            return
        name = name or _full_name(cls)
        spec = _spec_of_class(cls, name, parameters)
        cls._spec = spec = registry.define(spec, parameters, cls._typed, version)
        cls._pusher = Pusher[Any](name, parameters, spec.options, spec.reader)  # type: ignore[attr-defined]

    @classmethod
    def upgrade(cls, version: int) -> Callable[[Callable[Q, S]], Callable[Q, S]]:
        """Decorator, behind the class: the function takes the arguments of a job of that older
        ``version``, and returns a list of those of the next one (docs/changing-jobs.md)."""
        if cls._spec is None:
            raise MissingAttribute(f"{cls.__qualname__} has no perform(); define it in the class")
        return registry.upgrade_of(cls._spec, version)

    @classmethod
    def _is_async(cls) -> bool:
        """Whether the job is a coroutine."""
        return registry.is_async(cls.perform)

    @classmethod
    def _parameters(cls) -> Parameters | None:
        """The parameters of the job; None if this class is a base of jobs. Raises InvalidJob."""
        if not hasattr(cls, "perform"):
            return None
        if not callable(cls.perform):
            raise InvalidJob(f"{cls.__qualname__}.perform is {cls.perform!r}, which is no function")
        return parameters_of(cls.perform, skip_self=not is_static(cls, "perform"))


for _name in CALLS_ELSEWHERE:
    setattr(Job, _name, Elsewhere(_name, Job))


class FunctionJob(Pusher[P], Generic[P, R]):
    """A decorated function: still callable, and a job."""

    # No __slots__: tests patch ``perform_async`` of one job, and update_wrapper needs a __dict__.
    __wrapped__: Callable[P, R]

    result = staticmethod(take_result)
    aresult = staticmethod(await_result)

    def __init__(self, function: Callable[P, R], spec: JobSpec, parameters: Parameters) -> None:
        super().__init__(spec.name, parameters, spec.options, spec.reader)
        update_wrapper(self, function)
        self.spec = spec

    def __get__(self, instance: object, owner: type | None = None) -> FunctionJob[P, R]:
        """Returns the job itself. With this method ``inspect.isroutine`` is true, and so ``help``
        and Sphinx document a job as the function that it is."""
        return self

    def __reduce__(self) -> str:
        """Pickled by its name, as the function would be: a process pool may call it."""
        return str(self.__wrapped__.__qualname__)

    def upgrade(self, version: int) -> Callable[[Callable[Q, S]], Callable[Q, S]]:
        """Decorator: the function takes the arguments of a job of that older ``version``, and
        returns a list of those of the next one (docs/changing-jobs.md)."""
        return registry.upgrade_of(self.spec, version)

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
    retry_on: Errors = (),
    discard_on: Errors = (),
    iterable: bool = False,
    typed: bool | None = None,
    version: int = 1,
    **options: Unpack[JobOptions],
) -> Callable[[Callable[P, R]], FunctionJob[P, R]]: ...


def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry_in: registry.RetryIn | None = None,
    retries_exhausted: registry.Exhausted | None = None,
    retry_on: Errors = (),
    discard_on: Errors = (),
    iterable: bool = False,
    typed: bool | None = None,
    version: int = 1,
    **options: Unpack[JobOptions],
) -> Any:
    """Decorator, with or without options: makes a function a job, registered as ``name`` (default:
    module.qualname). A job class takes the same, and ``set`` takes the options for one push.

    ``retry_on`` are the only errors after which the job is tried again; any other buries it at
    once. ``discard_on`` are errors that drop it. Each is an exception class or several. More:
    docs/iterable.md (``iterable``), typed-arguments.md (``typed``), changing-jobs.md (``version``).
    """
    for what, hook in (("retry_in", retry_in), ("retries_exhausted", retries_exhausted)):
        if hook is not None:
            registry.check_hook(hook, what, *_HOOKS[what])

    def register(function: Callable[..., Any]) -> FunctionJob[..., Any]:
        _refuse_no_function(function)
        parameters = parameters_of(function, skip_self=False, takes_cursor=iterable)
        spec = replace(
            _spec_of_function(function, name, parameters, options, iterable=iterable),
            retry_in=retry_in,
            retries_exhausted=retries_exhausted,
            retry_on=_errors("retry_on", retry_on, function),
            discard_on=_errors("discard_on", discard_on, function),
        )
        _refuse_both(spec.retry_on, spec.discard_on, function)
        spec = registry.define(spec, parameters, typed, version)
        return FunctionJob(function, spec, parameters)

    return register if function is None else register(function)


def _makes_generator(function: Callable[..., Any]) -> Callable[[CurrentJob], Callable[..., Any]]:
    """What makes the function that runs a generator from its cursor on. Raises InvalidJob."""
    from .iteration import run_async_generator, run_generator  # noqa: PLC0415 - few are iterable

    kind = registry.lazy_kind(function)
    if kind not in (GENERATOR, ASYNC_GENERATOR):
        raise InvalidJob(
            f"{function.__qualname__} has iterable=True and is no generator: `yield` its cursor "
            "after each step"
        )
    run: Callable[..., Any] = run_generator if kind == GENERATOR else run_async_generator
    return lambda running: partial(run, running, function)


def _spec_of_function(
    function: Callable[..., Any],
    name: str | None,
    parameters: Parameters,
    options: Mapping[str, Any],
    *,
    iterable: bool,
) -> JobSpec:
    """The spec of a function, without its hooks. Raises InvalidJob."""
    if not iterable:
        registry.refuse_max_runtime(options, function.__qualname__)
    return JobSpec(
        name=name or _full_name(function),
        make=_makes_generator(function) if iterable else lambda _running: function,
        is_iterable=iterable,
        options=_checked(options, function),
        where=_full_name(function),
        arity=parameters.arity,
        module=function.__module__,
        parameters=parameters.names,
        defaults=parameters.defaults,
        place=place_of_function(function),
        is_async=registry.lazy_kind(function) in (ASYNC, ASYNC_GENERATOR),
    )


def _spec_of_class(cls: type[Job], name: str, parameters: Parameters) -> JobSpec:
    def make(view: CurrentJob) -> Callable[..., Any]:
        instance = cls()
        instance._running = view
        return instance.perform

    def hook(attribute: str) -> Callable[..., Any] | None:
        if not hasattr(cls, attribute):
            return None
        first = () if is_static(cls, attribute) else ("self",)
        registry.check_hook(getattr(cls, attribute), attribute, *first, *_HOOKS[attribute])

        def call(*arguments: Any) -> Any:
            return getattr(cls(), attribute)(*arguments)  # may be a plain, static or class method

        return call

    return JobSpec(
        name=name,
        make=make,
        options=cls._options,
        retry_in=hook("retry_in"),
        retries_exhausted=hook("retries_exhausted"),
        retry_on=cls._retry_on,
        discard_on=cls._discard_on,
        where=_full_name(cls),
        arity=parameters.arity,
        module=cls.__module__,
        parameters=parameters.names,
        defaults=parameters.defaults,
        place=_place_of_class(cls),
        is_async=cls._is_async(),
        is_iterable=cls._is_iterable,
    )


def _checked(
    options: Mapping[str, Any], thing: Any, inherited: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """The options of a definition and those that it inherits. Raises InvalidJob for a typo or an
    impossible value."""
    odd = sorted(options.keys() - OPTIONS.keys())
    said = [f"{key}: {OPTIONS_ELSEWHERE[key]}" for key in odd if key in OPTIONS_ELSEWHERE]
    if said:
        raise InvalidJob(f"{thing.__qualname__}: options of another library; {'; '.join(said)}")
    if odd:
        near = nearest(odd[0], (*OPTIONS, *_MORE))
        meant = "" if near is None else f"is {near!r} meant? "
        raise InvalidJob(
            f"{thing.__qualname__}: there is no job option {odd[0]!r}; {meant}use one of "
            f"{', '.join(sorted(OPTIONS))} (or .set({{{odd[0]!r}: ...}}) to send a key of your own)"
        )
    return with_options(inherited, options, thing.__qualname__)


def _refuse_no_function(found: Any) -> None:
    """Raises InvalidJob for what other libraries take where forkq takes the function."""
    if isinstance(found, type):
        raise InvalidJob(
            f"@forkq.job stands on the class {found.__qualname__}: write `class "
            f"{found.__name__}(forkq.Job)`, with the options behind forkq.Job and a `perform`"
        )
    if not callable(found):
        queue = found if isinstance(found, str) else "NAME"
        raise InvalidJob(
            f"@forkq.job got {shown(found)} instead of a function: options have names, as in "
            f'@forkq.job(queue="{queue}")'
        )


def _errors(option: str, given: Any, thing: Any) -> tuple[type[BaseException], ...]:
    """The exception classes of ``retry_on`` or ``discard_on``. Raises InvalidJob."""
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidJob(
                f"{thing.__qualname__}: `{option}` has {shown(each)}; pass exception classes, as "
                f"in {option}=(ConnectionError, TimeoutError)"
            )
    return found


def _refuse_both(
    retried: Sequence[type[BaseException]], dropped: Sequence[type[BaseException]], thing: Any
) -> None:
    """Raises InvalidJob for an error that would be both tried again and dropped."""
    for each in retried:
        if each in dropped:
            raise InvalidJob(
                f"{thing.__qualname__}: {each.__name__} is in `retry_on` and in `discard_on`; "
                "leave it in one of them"
            )


def is_static(cls: type, attribute: str) -> bool:
    return isinstance(inspect.getattr_static(cls, attribute), staticmethod | classmethod)


def place_of_function(function: Callable[..., Any]) -> DefinedAt | None:
    """Where ``function`` is written. None for one that is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and DefinedAt(code.co_filename, code.co_firstlineno, _run_of(function))


def _place_of_class(cls: type) -> DefinedAt | None:
    """Where ``cls`` is written: the line that its module executes now."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != cls.__module__:
        frame = frame.f_back
    if frame is None:
        return None
    return DefinedAt(frame.f_code.co_filename, frame.f_lineno, _run_of(cls))


def _run_of(thing: Any) -> object:
    """The module spec of ``thing``: each run of the module's code has its own."""
    return getattr(sys.modules.get(thing.__module__), "__spec__", None)


def _full_name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
