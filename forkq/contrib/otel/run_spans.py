"""One span for each run of a job: each retry has its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from forkq.contrib.runs import ObservedRun, RunObserver, epoch_ns

from .naming import Naming, error_type

Propagation: TypeAlias = Literal["link", "child", "none"]

PROPAGATIONS: Final = ("link", "child", "none")


class RunSpans(RunObserver):
    """An observer with a span for each run. The span is current while the job runs, and in the
    hooks and handlers after a failure."""

    def __init__(self, tracer: Tracer, naming: Naming, propagation: Propagation) -> None:
        self._tracer = tracer
        self._naming = naming
        self._propagation = propagation

    def began(self, run: ObservedRun) -> None:
        carried = propagate.extract(run.job, Context(), _TEXTS)
        pushed = trace.get_current_span(carried).get_span_context()
        links = [Link(pushed)] if self._propagation == "link" and pushed.is_valid else None
        span = self._tracer.start_span(
            self._naming.span_name("process", run.queue, run.name),
            context=carried if self._propagation == "child" else Context(),
            kind=SpanKind.CONSUMER,
            attributes=self._attributes(run),
            links=links,
            start_time=run.began,
        )
        _add_times(span, run)
        base = Context() if self._propagation == "none" else carried  # it may have baggage
        run.kept[RunSpans] = (span, trace.set_span_in_context(span, base))

    def inside(self, run: ObservedRun) -> Any:
        return _attached(run.kept[RunSpans][1])

    def ended(self, run: ObservedRun) -> None:
        span: Span = run.kept[RunSpans][0]
        ended = run.began + int(run.elapsed * 1e9)
        span.set_attribute("forkq.job.outcome", run.outcome or "")
        if run.error is not None and (run.failed or run.outcome == "discarded"):
            kind = error_type(run.error)
            span.record_exception(run.error, timestamp=ended)
            if run.failed:
                span.set_attribute("error.type", kind)
                span.set_status(Status(StatusCode.ERROR, kind))
        span.end(end_time=ended)

    def _attributes(self, run: ObservedRun) -> dict[str, Any]:
        return {
            **self._naming.attributes("process", run.queue, run.name),
            "messaging.message.id": run.jid,
            "forkq.job.attempt": run.attempt,
        }


def _add_times(span: Span, run: ObservedRun) -> None:
    """Adds two events, as Ruby's instrumentation does: when the job was made, and when it came to
    its queue."""
    for key in ("created_at", "enqueued_at"):
        stamp = epoch_ns(run.job.get(key))
        if stamp is not None:
            span.add_event(key, timestamp=stamp)


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


class _PayloadGetter(Getter[Mapping[str, Any]]):
    """Reads a payload, in which any program may have written anything."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if type(value) is str else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return [key for key, value in carrier.items() if type(value) is str]


_TEXTS: Final = _PayloadGetter()
