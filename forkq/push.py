"""Pushing a job that is defined in code: checks its arguments and adds its options. Client side.

The parameters of ``perform`` reach the callers: type checkers see ``perform_async("a.png", 200)``
with the types that the job declares, and a push whose arguments do not fit raises InvalidJob.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dis import opmap
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    overload,
)

from . import registry
from .client import Template, plan_of
from .default_client import adefault, default, know_types
from .errors import InvalidJob, MissingAttribute, nearest
from .wire.bulk import in_row, next_turn
from .wire.defaults import with_defaults
from .wire.options import OPTIONS
from .wire.payload import KEY, Payload
from .wire.positions import Parameters
from .wire.prepared import PreparedJob
from .wire.times import Moment, due
from .wire.validation import with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .features.arguments.reader import ArgumentReader
    from .signatures import (
        A,
        B,
        C,
        TakesAll,
        TakesOne,
        TakesOneOrTwo,
        TakesOneToThree,
        TakesThree,
        TakesTwo,
        TakesTwoOrThree,
        Ts,
    )
    from .wire.options import JobOptions

    # A tuple is checked against the job's parameters, a list is not.
    One = tuple[A] | list[Any]
    Two = tuple[A, B] | list[Any]
    Three = tuple[A, B, C] | list[Any]
    OneOrTwo = tuple[A] | tuple[A, B] | list[Any]
    TwoOrThree = tuple[A, B] | tuple[A, B, C] | list[Any]
    OneToThree = tuple[A] | tuple[A, B] | tuple[A, B, C] | list[Any]

P = ParamSpec("P")
When: TypeAlias = "Moment | Sequence[Moment] | None"

# So many rows of a bulk push are checked in one turn of an event loop: that takes about 1 ms.
_IN_ONE_TURN: Final = 500
# The code of a caller that may await.
_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


# What other libraries call it, and what to write here; for errors. `forkq adopt` has all words.
CALLS_ELSEWHERE: Final[Mapping[str, str]] = {
    "delay": "write `.perform_async(...)`; it returns a jid, a string",
    "apply_async": "write `.perform_async(...)`, `.perform_in(SECONDS, ...)` or `.set(...)`",
    "send": "write `.perform_async(...)`; it returns a jid, a string",
    "send_with_options": "write `.perform_in(SECONDS, ...)`, or `.set(...)`",
    "enqueue": "write `.perform_async(...)`; it returns a jid, a string",
    "aenqueue": "write `await J.aperform_async(...)`",
    "enqueue_in": "write `.perform_in(SECONDS, ...)`",
    "enqueue_at": "write `.perform_at(MOMENT, ...)`",
    "schedule": "write `.perform_in(SECONDS, ...)`",
    "kiq": "write `.perform_async(...)`, or in a loop `await J.aperform_async(...)`",
    "perform_later": "write `.perform_async(...)`",
    "retry": "raise an exception: the job is retried; delay: `backoff=`",
}
OPTIONS_ELSEWHERE: Final[Mapping[str, str]] = {
    "max_retries": "write `retry=N`",
    "max_retry": "write `retry=N`",
    "retries": "write `retry=N`",
    "default_retry_delay": "write `backoff=SECONDS`",
    "retry_delay": "write `backoff=SECONDS`",
    "min_backoff": "write `backoff=`: seconds, not milliseconds, or a list of them",
    "retry_backoff": 'write `backoff="exponential"`',
    "autoretry_for": "write `retry_on=(...)` in the definition",
    "throws": "write `discard_on=(...)` in the definition",
    "expires": "write `expires_in=SECONDS`",
    "unique": "write `unique_for=SECONDS`",
    "countdown": "write `.perform_in(SECONDS, ...)`",
    "delay": "write `.perform_in(SECONDS, ...)`",
    "eta": "write `.perform_at(MOMENT, ...)`",
    "bind": "leave it out; `forkq.current_job()` has jid, queue and retry_count",
    "queue_name": "write `queue=`",
    "actor_name": "write `name=` in the definition",
    "soft_time_limit": "write `timeout=SECONDS`",
    "job_timeout": "write `timeout=SECONDS`",
    "time_limit": "write `hard_timeout=SECONDS`",
    "acks_late": "leave it out: forkq always acknowledges after the run",
    "ignore_result": "leave it out: forkq keeps no result without `result_ttl=SECONDS`",
    "result_expires": "write `result_ttl=SECONDS`",
    "store_results": "write `result_ttl=SECONDS`",
    "keep_result": "write `result_ttl=SECONDS`",
    "rate_limit": "write `[rates]` in the configuration, for a queue",
    "priority": "no such thing: use several queues, in order or with weights",
    "serializer": "leave it out: arguments are JSON",
    "task_id": 'write `.set({"jid": ...})`, 24 hex digits; or keep the jid of the push',
}


# What a definition alone can have.
_OF_DEFINITION: Final = ("typed", "iterable", "version")


class Performs(Protocol[P]):
    """A class with ``perform``: by this shape type checkers know its parameters."""

    def perform(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...


class Pusher(Generic[P]):
    """A job with its options, ready to be pushed."""

    __slots__ = ("_fewest", "_most", "_options", "_parameters", "_reader", "_template", "name")

    def __init__(
        self,
        name: str,
        parameters: Parameters,
        options: Mapping[str, Any],
        reader: ArgumentReader | None = None,
    ) -> None:
        self.name = name
        self._parameters = parameters
        # How many positional arguments fit if none is given by name.
        self._fewest, self._most = parameters.arity
        if parameters.needs_names:
            self._most = -1
        self._options = options
        self._reader = reader
        self._template: Template | None = None

    def perform_async(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Pushes the job to its queue. Returns its jid, or "" if a middleware vetoed it."""
        if (caller := sys._getframe(1)).f_code.co_flags & _ASYNC:
            _refuse_await(self.name, caller)
        template = self._template or self._checked_template()
        return default().push_args(template, self._bind(args, kwargs)) or ""

    def perform_async_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Pushes the job when the database transaction of this thread is committed; never if it is
        rolled back, and at once outside of one. Needs forkq.contrib.django.

        The arguments are checked and taken now. Returns the jid that the job will have.
        """
        if (caller := sys._getframe(1)).f_code.co_flags & _ASYNC:
            _refuse_await(self.name, caller)
        return default().push_on_commit(self._payload(args, kwargs)) or ""

    def perform_in(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Schedules the job ``moment`` from now (seconds or a timedelta). Returns its jid."""
        if (caller := sys._getframe(1)).f_code.co_flags & _ASYNC:
            _refuse_await(self.name, caller)
        return self._push_at(moment, args, kwargs)

    def perform_at(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Schedules the job at ``moment`` (an aware datetime or epoch seconds). Returns its jid."""
        if (caller := sys._getframe(1)).f_code.co_flags & _ASYNC:
            _refuse_await(self.name, caller)
        return self._push_at(moment, args, kwargs)

    @overload
    def perform_bulk(
        self: TakesAll[Unpack[Ts]], rows: Iterable[tuple[Unpack[Ts]] | list[Any]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    def perform_bulk(
        self: TakesOneOrTwo[A, B], rows: Iterable[OneOrTwo[A, B]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    def perform_bulk(
        self: TakesTwoOrThree[A, B, C], rows: Iterable[TwoOrThree[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    def perform_bulk(
        self: TakesOneToThree[A, B, C], rows: Iterable[OneToThree[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    def perform_bulk(self: TakesOne[A], rows: Iterable[One[A]], *, at: When = ...) -> list[str]: ...

    @overload
    def perform_bulk(
        self: TakesTwo[A, B], rows: Iterable[Two[A, B]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    def perform_bulk(
        self: TakesThree[A, B, C], rows: Iterable[Three[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    def perform_bulk(self, rows: Iterable[Any], *, at: When = None) -> list[str]:
        """Pushes one job per argument list, in batches of 1,000. Returns their jids.

        A row is a tuple, which type checkers check, or a list, which they do not.
        Nothing is pushed if a row is wrong. If Redis fails meanwhile, the error has the jids of the
        jobs that are in Redis (``pushed``) and of those that may be (``unknown``).
        """
        if (caller := sys._getframe(1)).f_code.co_flags & _ASYNC:
            _refuse_await(self.name, caller)
        checked: list[list[Any]] = []
        self._check_list(rows)
        with in_row(checked):
            self._check_rows(rows, checked)
        return default().push_bulk(self._bulk(checked, at))

    async def aperform_async(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """``perform_async``, awaited by an event loop of asyncio, which it never holds up. Of a
        push that is cancelled, ``forkq.push_outcome(error)`` says whether the job may be in Redis.
        """
        template = self._template or self._checked_template()
        client = await adefault()
        return await client.apush_args(template, self._bind(args, kwargs)) or ""

    async def aperform_in(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """``perform_in``, awaited as ``aperform_async``."""
        return await self._apush_at(moment, args, kwargs)

    async def aperform_at(self, moment: Moment, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """``perform_at``, awaited as ``aperform_async``."""
        return await self._apush_at(moment, args, kwargs)

    @overload
    async def aperform_bulk(
        self: TakesAll[Unpack[Ts]], rows: Iterable[tuple[Unpack[Ts]] | list[Any]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesOneOrTwo[A, B], rows: Iterable[OneOrTwo[A, B]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesTwoOrThree[A, B, C], rows: Iterable[TwoOrThree[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesOneToThree[A, B, C], rows: Iterable[OneToThree[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesOne[A], rows: Iterable[One[A]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesTwo[A, B], rows: Iterable[Two[A, B]], *, at: When = ...
    ) -> list[str]: ...

    @overload
    async def aperform_bulk(
        self: TakesThree[A, B, C], rows: Iterable[Three[A, B, C]], *, at: When = ...
    ) -> list[str]: ...

    async def aperform_bulk(self, rows: Iterable[Any], *, at: When = None) -> list[str]:
        """``perform_bulk``, awaited as ``aperform_async``. The loop does what else is due while the
        rows are encoded. ``forkq.push_outcome(error)`` has the jids of the jobs that are in Redis,
        and of those that may be."""
        checked: list[list[Any]] = []
        self._check_list(rows)
        given, done = iter(rows), -1
        with in_row(checked):
            while done < len(checked):
                done = len(checked)
                self._check_rows(islice(given, _IN_ONE_TURN), checked)
                await next_turn()
        client = await adefault()
        return await client.apush_bulk(self._bulk(checked, at))

    def set(self, more: Mapping[str, Any] = {}, /, **options: Unpack[JobOptions]) -> Pusher[P]:
        """Returns this job with other options (``queue``, ``retry``, ``tags``, ...), to be pushed.

        ``more`` are keys that forkq does not know. They stay in the payload, as they do in Sidekiq.
        Raises InvalidJob for a value that an option cannot have, and for a misspelt option.
        """
        for key in sorted(options.keys() - OPTIONS.keys()):
            _refuse_misspelt(self.name, key)
        registry.check_options_of(self.name, options)
        changed = with_options({**self._options, **more}, options, self.name)
        return Pusher(self.name, self._parameters, changed, self._reader)

    def cancel(self, *args: Any, **kwargs: Any) -> str:
        """Cancels the job that has the lock of these arguments (``unique_for``), whether it waits
        or runs. Returns its jid at once; "" if no job has the lock. Arguments that do not count
        (``unique_by``) may be left out. Raises InvalidJob for a job that is not unique."""
        from .cancelling import cancel_holder  # noqa: PLC0415 - a push needs none of it

        if (reader := self._reader or registry.reader_of(self.name)) is not None:
            args, kwargs = tuple(reader.plain(args)), reader.plain(kwargs)
        return cancel_holder(self.name, self._options, self._parameters, args, kwargs)

    def s(self, *args: P.args, **kwargs: P.kwargs) -> PreparedJob:
        """This job with these arguments, to be pushed later: by a batch, for example. Raises
        InvalidJob if the arguments do not fit."""
        given = self._given(args, kwargs)
        know_types(given)
        if (reader := self._reader or registry.reader_of(self.name)) is not None:
            given = reader.prepared(given)
        return PreparedJob({**self._options, "class": self.name, "args": given})

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> Payload:
        """What ``perform_async`` gives to ``Client.push``: the class, the arguments, the options.
        Raises InvalidJob if the arguments do not fit."""
        know_types(args)
        return self._payload(args, kwargs)

    if not TYPE_CHECKING:  # a checker would take any name for one that is there

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            raise missing(f"{self.name} is a job of forkq", name) or AttributeError(
                f"{kind!r} object has no attribute {name!r}"
            )

    def _checked_template(self) -> Template:
        """What all pushes of this job share. It is checked at the first push: a job that only its
        own program knows may be defined, and called as a function."""
        made = with_defaults({**self._options, "class": self.name, "args": []})
        self._template = made, plan_of(made, None) if KEY in made else None
        return self._template

    def _no_rows(self, found: object, names: Sequence[str] = ()) -> InvalidJob:
        """The error for what is no list of rows, or no row of arguments with these ``names``. Its
        value may be a secret, and is not shown."""
        kind, values = type(found).__name__, ", ".join(f"row[{name!r}]" for name in names)
        remedy = (
            f": write [[{values}] for row in rows]" if isinstance(found, dict) and names else ""
        )
        return InvalidJob(
            f"job {self.name!r} takes {self._parameters}: perform_bulk takes lists of arguments in "
            f"that order, as in [[1], [2]]; this is of type {kind}{remedy}"
        )

    def _check_list(self, rows: object) -> None:
        """Raises InvalidJob for what cannot be the rows of a bulk push."""
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise self._no_rows(rows)

    def _check_rows(self, rows: Iterable[Any], checked: list[list[Any]]) -> None:
        """Adds the arguments of each row of a bulk push to ``checked``. Raises InvalidJob."""
        for row in rows:
            if not isinstance(row, list | tuple):
                raise self._no_rows(row, self._parameters.names)
            checked.append(self._bind(tuple(row), {}))

    def _bulk(self, rows: list[list[Any]], at: When) -> Payload:
        """What a bulk push gives to ``Client.push_bulk``."""
        when = {} if at is None else {"at": at}
        return {**self._options, "class": self.name, "args": rows, **when}

    async def _apush_at(
        self, moment: Moment, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        client = await adefault()
        return await client.apush({**self._payload(args, kwargs), "at": _moment(moment)}) or ""

    def _push_at(self, moment: Moment, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return default().push({**self._payload(args, kwargs), "at": _moment(moment)}) or ""

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Payload:
        return {**self._options, "class": self.name, "args": self._bind(args, kwargs)}

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The positional arguments for the payload. Raises InvalidJob if they do not fit."""
        if not kwargs and self._fewest <= len(args) <= self._most:
            given = [*args]  # Signature.bind would take 40 % of the time of a bulk push
        else:
            given = self._given(args, kwargs)
        if self._reader is None and not registry.types_all:
            return given
        reader = self._reader or registry.reader_of(self.name)
        return given if reader is None else reader.written(given)

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The positional arguments as they are given. Raises InvalidJob for too many or too few,
        and for a name that is no parameter."""
        if not kwargs and self._fewest <= len(args) <= self._most:
            return [*args]
        try:
            return self._parameters.bind(args, kwargs)
        except TypeError as error:
            raise InvalidJob(f"job {self.name!r} takes {self._parameters}: {error}") from None


def _refuse_await(name: str, caller: FrameType) -> None:
    """Raises InvalidJob if the coroutine ``caller`` awaits the push that it has just called. Python
    itself would refuse the jid, a string, but when the job is pushed already; and who tries again
    then has pushed it twice. An await is an instruction of its own, behind that of the call."""
    if does_next(caller, "GET_AWAITABLE"):
        raise InvalidJob(
            f"job {name!r}: a push returns a jid, a string, which takes no `await`; nothing was "
            "pushed: write `await J.aperform_async(...)`, or leave the `await` out"
        )


def does_next(caller: FrameType, instruction: str) -> bool:
    """Whether ``caller`` does this with what the function returns that it calls now."""
    code, following = caller.f_code.co_code, caller.f_lasti + 2
    while code[following] == 0 and sys.version_info >= (3, 11):  # CACHE: data of the call
        following += 2
    return code[following] == opmap[instruction]


def missing(what: str, name: str) -> MissingAttribute | None:
    """The error for an attribute that another library has; None for any other."""
    said = CALLS_ELSEWHERE.get(name)
    return None if said is None else MissingAttribute(f"{what}, and has no {name!r}: {said}")


@lru_cache(maxsize=1000)
def _refuse_misspelt(name: str, key: str) -> None:
    """Raises InvalidJob if an option was probably meant by a key that is none, is one of another
    library, or is one of a definition alone."""
    if key in _OF_DEFINITION:
        raise InvalidJob(f"job {name!r}: `{key}` is of the definition of a job: write it there")
    said = OPTIONS_ELSEWHERE.get(key)
    if said is not None:
        raise InvalidJob(
            f"job {name!r}: there is no job option {key!r}: {said} "
            f"(.set({{{key!r}: ...}}) sends a key of your own)"
        )
    near = nearest(key, OPTIONS, 0.75)
    if near is not None:
        raise InvalidJob(
            f"job {name!r}: there is no job option {key!r}; is {near!r} meant? "
            f".set({{{key!r}: ...}}) sends a key of your own"
        )


def _moment(moment: Moment) -> Moment:
    """Returns ``moment``. Raises InvalidJob if it is no time: None must not mean now."""
    due(moment)
    return moment


def _refuse_lazy(function: Callable[..., Any]) -> None:
    """Refuses generator functions: the job would seem done."""
    kind = registry.lazy_kind(function)
    if kind not in ("", registry.ASYNC):
        remedy = "make it a plain function, or an `async def` without `yield`"
        if kind in (registry.GENERATOR, registry.ASYNC_GENERATOR):
            remedy = "give it iterable=True if it yields its cursor, or make it a plain function"
        raise InvalidJob(f"{function.__qualname__} is {kind}: a call of it runs nothing; {remedy}")


def parameters_of(
    function: Callable[..., Any], *, skip_self: bool, takes_cursor: bool = False
) -> Parameters:
    """The parameters of a job that ``function`` performs. ``takes_cursor``: the function is of an
    iterable job. Raises InvalidJob."""
    if not takes_cursor:
        _refuse_lazy(function)
    signature = _signature(function)
    parameters = list(signature.parameters.values())[1 if skip_self else 0 :]
    signature = signature.replace(parameters=parameters)
    if takes_cursor:
        from .iteration import without_cursor  # noqa: PLC0415 - few jobs are iterable

        signature = without_cursor(signature, function.__qualname__)
    return Parameters(function, signature)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # written in C: which of them tell depends on the version of Python
        raise InvalidJob(
            f"Python does not know the parameters of {function.__qualname__}: "
            "call it in a function of your own, and make that the job"
        ) from None
