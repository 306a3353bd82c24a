"""Puts a context (a Flask app context, a database session) around all that a child runs of an app:
each job, and each hook and handler that is called after a failure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from forkq import middleware, registry

Enter = Callable[[], AbstractContextManager[object]]


def surround(enter: Enter) -> None:
    """From now on each job runs inside of ``enter()``, outside of the app's own middleware. So does
    each of ``retry_in`` and ``retries_exhausted``, and each death and error handler: a child calls
    them when the job's context is gone."""

    def around_job(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        with enter():
            return call()

    middleware.server.prepend(around_job)

    @registry.on("startup")
    def around_hooks() -> None:
        """When the app is loaded, all of them are registered."""
        for handlers in (registry.death_handlers, registry.error_handlers):
            handlers[:] = [_within(enter, each) for each in handlers]
        for name in registry.names():
            _surround_hooks_of(registry.lookup(name), enter)


def _surround_hooks_of(spec: registry.JobSpec, enter: Enter) -> None:
    retry_in = spec.retry_in and _within(enter, spec.retry_in)
    exhausted = spec.retries_exhausted and _within(enter, spec.retries_exhausted)
    registry.add(replace(spec, retry_in=retry_in, retries_exhausted=exhausted))


def _within(enter: Enter, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with enter():
            return function(*arguments)

    return call
