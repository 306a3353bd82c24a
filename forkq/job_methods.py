"""The methods of a job class that push: each is that of the Pusher of the class. Client side."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, cast, overload

from .errors import MissingAttribute
from .push import Performs, Pusher, missing
from .wire.prepared import PreparedJob
from .wire.times import Moment

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .push import One, OneOrTwo, OneToThree, Three, Two, TwoOrThree, When
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

P = ParamSpec("P")


class Elsewhere:
    """Stands on a job class for a method of another library, and says what to write. A class
    that comes behind forkq.Job among the bases may have one of that name."""

    def __init__(self, name: str, base: type) -> None:
        self._name = name
        self._base = base

    def __get__(self, job: object, owner: type) -> Any:
        try:
            return getattr(super(self._base, owner if job is None else job), self._name)
        except AttributeError:
            pass
        raise cast("Exception", missing(f"{owner.__qualname__} is a job of forkq", self._name))


class PerformAsync:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[P, str]:
        return cast("Callable[P, str]", _pusher(owner).perform_async)


class AwaitPerformAsync:
    def __get__(
        self, job: object, owner: Callable[[], Performs[P]]
    ) -> Callable[P, Coroutine[Any, Any, str]]:
        return cast("Callable[P, Coroutine[Any, Any, str]]", _pusher(owner).aperform_async)


class PerformAsyncOnCommit:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[P, str]:
        return cast("Callable[P, str]", _pusher(owner).perform_async_on_commit)


class Prepare:
    """``Pusher.s`` of a job class."""

    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> Callable[P, PreparedJob]:
        return cast("Callable[P, PreparedJob]", _pusher(owner).s)


class PerformLater:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(
        self, job: object, owner: Callable[[], Performs[P]]
    ) -> Callable[Concatenate[Moment, P], str]:
        return cast("Callable[Concatenate[Moment, P], str]", getattr(_pusher(owner), self._name))


class AwaitPerformLater:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(
        self, job: object, owner: Callable[[], Performs[P]]
    ) -> Callable[Concatenate[Moment, P], Coroutine[Any, Any, str]]:
        found = getattr(_pusher(owner), self._name)
        return cast("Callable[Concatenate[Moment, P], Coroutine[Any, Any, str]]", found)


if TYPE_CHECKING:

    class BulkPush(Pusher[P]):
        # As Pusher.perform_bulk. Pyright does not solve P in ``__call__ = Pusher.perform_bulk``.
        @overload
        def __call__(
            self: TakesAll[Unpack[Ts]],
            rows: Iterable[tuple[Unpack[Ts]] | list[Any]],
            *,
            at: When = ...,
        ) -> list[str]: ...
        @overload
        def __call__(
            self: TakesOneOrTwo[A, B], rows: Iterable[OneOrTwo[A, B]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        def __call__(
            self: TakesTwoOrThree[A, B, C], rows: Iterable[TwoOrThree[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        def __call__(
            self: TakesOneToThree[A, B, C], rows: Iterable[OneToThree[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        def __call__(self: TakesOne[A], rows: Iterable[One[A]], *, at: When = ...) -> list[str]: ...
        @overload
        def __call__(
            self: TakesTwo[A, B], rows: Iterable[Two[A, B]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        def __call__(
            self: TakesThree[A, B, C], rows: Iterable[Three[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        def __call__(self, rows: Iterable[Any], *, at: When = ...) -> list[str]: ...

    class AwaitBulkPush(Pusher[P]):
        @overload
        async def __call__(
            self: TakesAll[Unpack[Ts]],
            rows: Iterable[tuple[Unpack[Ts]] | list[Any]],
            *,
            at: When = ...,
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesOneOrTwo[A, B], rows: Iterable[OneOrTwo[A, B]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesTwoOrThree[A, B, C], rows: Iterable[TwoOrThree[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesOneToThree[A, B, C], rows: Iterable[OneToThree[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesOne[A], rows: Iterable[One[A]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesTwo[A, B], rows: Iterable[Two[A, B]], *, at: When = ...
        ) -> list[str]: ...
        @overload
        async def __call__(
            self: TakesThree[A, B, C], rows: Iterable[Three[A, B, C]], *, at: When = ...
        ) -> list[str]: ...
        async def __call__(self, rows: Iterable[Any], *, at: When = ...) -> list[str]: ...

    class SetCall(Protocol[P]):
        """``set`` of a class, whose parameters the result keeps."""

        def __call__(
            self, more: Mapping[str, Any] = ..., /, **options: Unpack[JobOptions]
        ) -> Pusher[P]: ...


class PerformBulk:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> BulkPush[P]:
        return cast("BulkPush[P]", _pusher(owner).perform_bulk)


class AwaitPerformBulk:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> AwaitBulkPush[P]:
        return cast("AwaitBulkPush[P]", _pusher(owner).aperform_bulk)


class SetOptions:
    def __get__(self, job: object, owner: Callable[[], Performs[P]]) -> SetCall[P]:
        return cast("SetCall[P]", _pusher(owner).set)


def _pusher(owner: Any) -> Pusher[Any]:
    found = owner.__dict__.get("_pusher")
    if found is None:
        raise MissingAttribute(f"{owner.__qualname__} has no perform(); define it in the class")
    return cast("Pusher[Any]", found)
