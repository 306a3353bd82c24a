"""Middleware: what runs around each push and each run. It has one of two forms.

The first is a generator function of ``(job)`` that yields once: what stands before the ``yield``
comes before, the rest after. It serves all sides, and ``async def`` jobs in every kind of capsule.
``yield`` returns what the push or the run has returned, and raises what that has raised; a
middleware that does not raise it again has dealt with it.

The second is a function of ``(job, call)`` that returns the result of ``call()``, or something
else. It is for ``def`` jobs; in a capsule of threads it runs around an ``async def`` job, too, in
the thread that waits for the job.

On the client side the result is the job to push; a middleware that returns None instead vetoes the
push. On the server side an exception that leaves the chain is the job's failure. ``pushes`` is
around each call that pushes, also one of many jobs: ``job`` is what the caller gave, unchecked, and
the result is the jid or the jids. A push that is awaited ends for a generator when it ends for the
caller, and for a middleware that takes ``call`` when its jobs are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial, wraps
from inspect import CO_GENERATOR
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from .errors import ForkqError
from .registry import GENERATOR, check_hook, name_of, refuse_lazy
from .wire.defaults import with_defaults
from .wire.payload import Payload

if TYPE_CHECKING:
    from typing_extensions import Self

Push = TypeVar("Push", bound="Callable[..., Any]")

NextCall: TypeAlias = "Callable[[], Any]"


class Middleware(Protocol):
    """Wraps a push or a run. ``job`` is the loaded payload and may be changed in place."""

    def __call__(self, job: dict[str, Any], call: NextCall, /) -> Any: ...


class AroundMiddleware(Protocol):
    """A generator function that yields once, around a push or a run. ``job`` is the loaded payload
    and may be changed in place."""

    def __call__(self, job: dict[str, Any], /) -> Iterator[None]: ...


AnyMiddleware: TypeAlias = "Middleware | AroundMiddleware"
Member = TypeVar("Member", bound="Middleware | AroundMiddleware")


class Chain:
    """An ordered list of middleware; the first one is the outermost. The methods that add a member
    raise ForkqError for one that does not take ``(job)`` or ``(job, call)``, or that a call would
    not run."""

    def __init__(self) -> None:
        # Each job looks whether this list is empty: a call of __len__ would cost it more.
        self.members: list[AnyMiddleware] = []

    def append(self, member: Member) -> Member:
        """Adds ``member`` as the innermost. Returns it, so that this works as a decorator."""
        return self._insert(len(self.members), member)

    def prepend(self, member: Member) -> Member:
        """Adds ``member`` as the outermost."""
        return self._insert(0, member)

    def before(self, existing: AnyMiddleware, member: Member) -> Member:
        """Adds ``member`` just outside ``existing``."""
        return self._insert(self._index(existing), member)

    def after(self, existing: AnyMiddleware, member: Member) -> Member:
        """Adds ``member`` just inside ``existing``."""
        return self._insert(self._index(existing) + 1, member)

    def remove(self, member: AnyMiddleware) -> None:
        """Removes ``member``."""
        del self.members[self._index(member)]

    def clear(self) -> None:
        """Removes all middleware."""
        self.members.clear()

    def run(self, job: dict[str, Any], core: Callable[[], Any]) -> Any:
        """Calls ``core`` through every member, outermost first."""
        return _through(self.members, job, core)

    def around(self, job: dict[str, Any]) -> Layers:
        """All members as a context, for what is awaited inside of it. Raises ForkqError if one of
        them takes ``call``."""
        if odd := self.with_call():
            raise ForkqError(
                f"the middleware {', '.join(odd)} cannot be around what is awaited: write a "
                "generator function of (job) that yields once"
            )
        return Layers(self.members, job)

    def with_call(self) -> list[str]:
        """The names of the members that take ``call``, and so cannot be around a coroutine."""
        return [name_of(member) for member in self.members if not _yields(member)]

    def __iter__(self) -> Iterator[AnyMiddleware]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def _insert(self, index: int, member: Member) -> Member:
        _check(member)
        self.members.insert(index, member)
        return member

    def _index(self, existing: AnyMiddleware) -> int:
        if existing not in self.members:
            raise ForkqError(f"{existing!r} is not in this middleware chain; append it first")
        return self.members.index(existing)


class Layers(ExitStack):
    """The context of several middleware. ``result``: what they get from their ``yield``."""

    def __init__(self, members: Sequence[AnyMiddleware], job: dict[str, Any]) -> None:
        super().__init__()
        self.result: Any = None
        self._members = members
        self._job = job

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for member in self._members:
                layer = entered.enter_context(_Layer(member, self._job))
                entered.callback(self._pass, layer)
            self.push(entered.pop_all())
            return self
        raise ForkqError("a middleware hides the error of one inside of it: nothing can go on here")

    def _pass(self, layer: _Layer) -> None:
        layer.result = self.result


class _Layer:
    """One middleware that is a generator, as a context. ``result``: what it gets from its
    ``yield``."""

    __slots__ = ("_generator", "_member", "result")

    def __init__(self, member: AnyMiddleware, job: dict[str, Any]) -> None:
        self._member = member
        self._generator: Generator[None, Any, Any] = cast("Any", member)(job)
        self.result: Any = None

    def __enter__(self) -> Self:
        for _ in self._generator:
            return self
        raise self._odd("ends before its `yield`")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            if error is None:
                self._generator.send(self.result)
            else:
                self._generator.throw(error)
        except StopIteration as end:
            return error is not None and end is not error
        except BaseException as raised:
            if not _is_again(raised, error):
                raise
            assert error is not None
            error.__traceback__ = trace
            return False
        self._generator.close()
        raise self._odd("yields a second time")

    def _odd(self, what: str) -> ForkqError:
        return ForkqError(f"the middleware {name_of(self._member)} {what}: it must yield once")


def _is_again(raised: BaseException, error: BaseException | None) -> bool:
    """Whether a generator has raised ``error`` that was thrown into it. Python makes a RuntimeError
    of a StopIteration."""
    return raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)


def _check(member: Any) -> None:
    """Raises ForkqError for what is neither form."""
    if _yields(member):
        check_hook(member, "the middleware", "job", lazy=(GENERATOR,))
        return
    if _yields(getattr(member, "__wrapped__", None)):
        raise ForkqError(f"the middleware {name_of(member)}: write it without @contextmanager")
    remedy = "write `def` with one `yield`: it is around `async def` jobs, too"
    refuse_lazy(member, "the middleware", remedy)
    check_hook(member, "the middleware", "job", "call")


def _through(members: Sequence[AnyMiddleware], job: dict[str, Any], core: Callable[[], Any]) -> Any:
    call = core
    for member in reversed(members):
        step: Any = partial(_within, member) if _yields(member) else member
        call = partial(step, job, call)
    return call()


def _within(member: AnyMiddleware, job: dict[str, Any], call: NextCall) -> Any:
    with _Layer(member, job) as layer:
        layer.result = result = call()
        return result
    return None  # the middleware has dealt with the error


def _yields(member: Any) -> bool:
    """Whether ``member`` is a generator function. ``inspect`` takes ten times as long."""
    while isinstance(member, partial):
        member = member.func
    code = getattr(member, "__code__", None) or getattr(type(member).__call__, "__code__", None)
    return code is not None and bool(code.co_flags & CO_GENERATOR)


client = Chain()
server = Chain()
pushes = Chain()


def around_push(push: Push) -> Push:
    """Decorator of the client's methods that push: each call goes through ``pushes``."""

    @wraps(push)
    def call(client: object, job: dict[str, Any], *rest: Any, **named: Any) -> Any:
        if not pushes.members:
            return push(client, job, *rest, **named)
        return pushes.run(job, lambda: push(client, job, *rest, **named))

    return cast("Push", call)


def around_awaited_push(push: Push) -> Push:
    """``around_push`` of the methods that are awaited, for the members that yield. Those that take
    ``call`` cannot be around what is awaited: the client calls them around the encoding alone."""

    @wraps(push)
    async def call(client: object, job: dict[str, Any]) -> Any:
        if not pushes.members:
            return await push(client, job)
        result = None  # if a middleware deals with the error
        with Layers([one for one in pushes.members if _yields(one)], job) as layers:
            layers.result = result = await push(client, job)
        return result

    return cast("Push", call)


def around_encoding(job: dict[str, Any], encode: Callable[[], Any]) -> Any:
    """Calls ``encode`` of an awaited push through the members of ``pushes`` that take ``call``."""
    return _through([one for one in pushes.members if not _yields(one)], job, encode)


def through_client(job: Payload) -> Payload | None:
    """What the client middleware makes of a job, with its defaults; None if it vetoes the push."""
    _unshare(job)
    changed = client.run(job, lambda: job)
    if changed is None:
        return None
    return with_defaults({**changed} if isinstance(changed, dict) else changed)


def _unshare(job: Payload) -> None:
    """Copies the options of ``job``, which a middleware may change in place: its class has them,
    too."""
    for key, value in job.items():
        if key != "args" and isinstance(value, list | dict):
            job[key] = deepcopy(value)
