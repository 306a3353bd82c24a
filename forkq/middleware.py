"""Middleware: one protocol for all sides, ``(job, call) -> the result of call()``.

On the client side ``call()`` runs the inner middleware and returns the job to push; a middleware
that returns None vetoes the push. On the server side ``call()`` runs the inner middleware and
``perform``; an exception that leaves the chain is the job's failure. ``pushes`` is around each call
that pushes, also one of many jobs: ``job`` is what the caller gave, unchecked, and ``call()``
returns the jid or the jids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from .errors import ForkqError
from .registry import check_hook

Push = TypeVar("Push", bound="Callable[..., Any]")

NextCall: TypeAlias = "Callable[[], Any]"


class Middleware(Protocol):
    """Wraps a push or a run. ``job`` is the loaded payload and may be changed in place."""

    def __call__(self, job: dict[str, Any], call: NextCall, /) -> Any: ...


class Chain:
    """An ordered list of middleware; the first one is the outermost. The methods that add a member
    raise ForkqError for one that does not take ``(job, call)``, or that a call would not run."""

    def __init__(self) -> None:
        # Each job looks whether this list is empty: a call of __len__ would cost it more.
        self.members: list[Middleware] = []

    def append(self, member: Middleware) -> Middleware:
        """Adds ``member`` as the innermost. Returns it, so that this works as a decorator."""
        return self._insert(len(self.members), member)

    def prepend(self, member: Middleware) -> Middleware:
        """Adds ``member`` as the outermost."""
        return self._insert(0, member)

    def before(self, existing: Middleware, member: Middleware) -> Middleware:
        """Adds ``member`` just outside ``existing``."""
        return self._insert(self._index(existing), member)

    def after(self, existing: Middleware, member: Middleware) -> Middleware:
        """Adds ``member`` just inside ``existing``."""
        return self._insert(self._index(existing) + 1, member)

    def remove(self, member: Middleware) -> None:
        """Removes ``member``."""
        del self.members[self._index(member)]

    def clear(self) -> None:
        """Removes all middleware."""
        self.members.clear()

    def run(self, job: dict[str, Any], core: Callable[[], Any]) -> Any:
        """Calls ``core`` through every member, outermost first."""
        call = core
        for member in reversed(self.members):
            call = _wrap(member, job, call)
        return call()

    def __iter__(self) -> Iterator[Middleware]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def _insert(self, index: int, member: Middleware) -> Middleware:
        check_hook(member, "the middleware", "job", "call")
        self.members.insert(index, member)
        return member

    def _index(self, existing: Middleware) -> int:
        if existing not in self.members:
            raise ForkqError(f"{existing!r} is not in this middleware chain; append it first")
        return self.members.index(existing)


def _wrap(member: Middleware, job: dict[str, Any], call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: member(job, call)


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
