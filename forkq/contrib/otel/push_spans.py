"""One span for each call that pushes, and its context in each job that the call pushes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from opentelemetry import propagate
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Tracer

from forkq.contrib.carried import Carried
from forkq.contrib.runs import name_of, text
from forkq.wire.payload import DEFAULT_QUEUE, Payload

from .naming import Naming, error_type
from .run_measures import Names


class OtelPushSpans:
    """Spans around pushes. The jobs carry ``traceparent`` and what else the app's propagator
    writes, at the top of their payloads: Ruby's instrumentation of Sidekiq does so, too."""

    def __init__(self) -> None:
        self._carried = Carried("forkq_otel")

    def install(self, tracer: Tracer, meter: Meter, naming: Naming) -> None:
        """Gives each push a span of ``tracer`` from now on, and lets ``meter`` count its jobs."""
        self._tracer = tracer
        self._naming = naming
        self._queues = Names()
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages that were sent."
        )
        self._carried.install(self.around_push)

    def around_push(self, job: Payload) -> Generator[None, Any, None]:
        """A span around a push: a bulk push has one, too. It ends when Redis has the jobs, or, for
        a push that waits for a commit, when the jobs are encoded."""
        if type(job) is not dict or type(job.get("class")) is not str:
            yield  # the client says what is wrong
            return
        queue, name = text(job.get("queue")) or DEFAULT_QUEUE, name_of(job)
        with self._tracer.start_as_current_span(
            self._naming.span_name("send", queue, name),
            kind=SpanKind.PRODUCER,
            attributes=self._naming.attributes("send", queue, name),
        ) as span:
            result = yield from self._push(span)
        count = len(result) if type(result) is list else int(result is not None)
        self._sent.add(count, self._naming.operation("send", self._queues.bounded(queue)))

    def _push(self, span: Span) -> Generator[None, Any, Any]:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        try:
            with self._carried.during(headers):
                result = yield
        except BaseException as error:
            span.set_attribute("error.type", error_type(error))
            raise
        if type(result) is list:
            span.set_attribute("messaging.batch.message_count", len(result))
        elif type(result) is str:
            span.set_attribute("messaging.message.id", result)
        return result
