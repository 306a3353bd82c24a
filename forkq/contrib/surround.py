"""Puts a context (a Flask app context, a database session) around all that a child runs of an app:
each job, and each hook and handler that is called after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from forkq import middleware, registry


def surround(enter: Callable[[], AbstractContextManager[object]]) -> None:
    """Runs each job inside of ``enter()`` from now on, outside of the app's own middleware. So does
    each of ``retry_in`` and ``retries_exhausted``, and each death and error handler."""

    def around_job(job: dict[str, Any]) -> Iterator[None]:
        with enter():
            yield

    middleware.server.prepend(around_job)
    registry.around_hooks.append(enter)
