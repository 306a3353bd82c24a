"""What each job of a push carries in its payload: the context of a trace."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from forkq import middleware
from forkq.wire.payload import Payload


class Carried:
    """The values of the push that this thread does, worked out once for all of its jobs."""

    def __init__(self, name: str) -> None:
        self._values: ContextVar[Mapping[str, Any]] = ContextVar(name)

    @contextmanager
    def during(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Lets each job that is pushed in its block carry ``values``."""
        token = self._values.set(values)
        try:
            yield
        finally:
            self._values.reset(token)

    def write(self, _job: Payload) -> Generator[None, Any, None]:
        """A client middleware that writes the values into the payload. A job that has one of the
        keys already keeps it."""
        made = yield
        values = self._values.get({})
        if type(made) is dict and values and values.keys().isdisjoint(made):
            made.update(values)

    def install(self, around_push: middleware.AroundMiddleware) -> None:
        """Puts ``around_push`` around each push, and ``write`` around each job of it, once."""
        if self.write not in middleware.client.members:
            middleware.client.prepend(self.write)
            middleware.pushes.prepend(around_push)
