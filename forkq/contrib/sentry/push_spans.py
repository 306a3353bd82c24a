"""One span for each call that pushes, and its trace in each job that the call pushes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import sentry_sdk

from forkq.contrib.carried import Carried
from forkq.contrib.runs import name_of, text
from forkq.wire.payload import DEFAULT_QUEUE, Payload

# Where Ruby's Sentry for Sidekiq writes and reads the trace.
HEADERS: Final = "trace_propagation_headers"


class SentryPushSpans:
    """Spans around pushes. The jobs carry ``trace_propagation_headers``."""

    def __init__(self) -> None:
        self._carried = Carried("forkq_sentry")

    def install(self) -> None:
        """Gives each push a span from now on, in the trace that is under way."""
        self._carried.install(self.around_push)

    def around_push(self, job: Payload) -> Generator[None, Any, None]:
        """A span around a push, which ends when Redis has the jobs. A bulk push has one, too."""
        usable = type(job) is dict and type(job.get("class")) is str
        if not (usable and sentry_sdk.get_client().is_active()):
            yield
            return
        with sentry_sdk.start_span(op="queue.publish", name=name_of(job)) as span:
            span.set_data("messaging.destination.name", text(job.get("queue")) or DEFAULT_QUEUE)
            with self._carried.during({HEADERS: _headers()}):
                result = yield
            if type(result) is str:
                span.set_data("messaging.message.id", result)
            elif type(result) is list:
                span.set_data("messaging.batch.message_count", len(result))


def _headers() -> dict[str, str]:
    found = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
    return {key: value for key, value in found.items() if value}
