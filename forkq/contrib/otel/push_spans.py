"""One span for each call that pushes, and its context in each job that the call pushes."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import propagate
from opentelemetry.trace import Span, SpanKind, Tracer

from forkq.contrib.runs import name_of, text
from forkq.wire.payload import DEFAULT_QUEUE, Payload

from .naming import Naming, error_type

# What the jobs of the current push carry.
_headers: Final[ContextVar[dict[str, str] | None]] = ContextVar("forkq_otel_headers", default=None)


class PushSpans:
    """``around_push`` is a member of ``middleware.pushes``, ``carry`` one of
    ``middleware.client``."""

    def __init__(self, tracer: Tracer, naming: Naming) -> None:
        self._tracer = tracer
        self._naming = naming

    def around_push(self, job: Payload, call: Callable[[], Any]) -> Any:
        """The span of a push: a bulk push has one, too. It ends when Redis has the jobs, or, for a
        push that waits for a commit, when the jobs are encoded."""
        if type(job) is not dict or type(job.get("class")) is not str:
            return call()  # the client says what is wrong
        queue, name = text(job.get("queue")) or DEFAULT_QUEUE, name_of(job)
        with self._tracer.start_as_current_span(
            self._naming.span("send", queue, name),
            kind=SpanKind.PRODUCER,
            attributes=self._naming.attributes("send", queue, name),
        ) as span:
            return _push(span, call)

    def carry(self, _job: Payload, call: Callable[[], Any]) -> Any:
        """Writes the context of the push into the job, at its top, as Ruby's instrumentation does.
        A job that has a context of its own keeps it."""
        made, headers = call(), _headers.get()
        if type(made) is dict and headers and headers.keys().isdisjoint(made):
            made.update(headers)
        return made


def _push(span: Span, call: Callable[[], Any]) -> Any:
    headers: dict[str, str] = {}
    propagate.inject(headers)
    token = _headers.set(headers)
    try:
        result = call()
    except BaseException as error:
        span.set_attribute("error.type", error_type(error))
        raise
    finally:
        _headers.reset(token)
    if type(result) is list:
        span.set_attribute("messaging.batch.message_count", len(result))
    elif type(result) is str:
        span.set_attribute("messaging.message.id", result)
    return result
