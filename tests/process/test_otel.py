"""docs/telemetry.md reports to OpenTelemetry: its snippet runs here as printed, against a collector
that answers at first, and then does not."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.process.shared import push
from tests.support.documents import ROOT, snippets
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http",
    reason="opentelemetry-exporter-otlp-proto-http is missing: pip install --group test",
)

PING = """
@forkq.job(name="Ping")
def ping():
    pass
"""


class Collector(ThreadingHTTPServer):
    """``received``: the bodies by path. While ``answers`` is not set, no request is answered."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received: dict[str, bytes] = {}
        self.waiting = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        super().__init__(("127.0.0.1", 0), Receiver)

    def has(self, kind: str, text: bytes) -> bool:
        """Whether ``text`` was received among the traces or the metrics."""
        return text in self.received.get(f"/v1/{kind}", b"")


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        known = self.server.received
        known[self.path] = known.get(self.path, b"") + (gzip.decompress(body) if packed else body)
        if not self.server.answers.is_set():
            self.server.waiting.set()
            self.server.answers.wait(120)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows enough."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.answers.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_job_reaches_the_collector_and_a_silent_one_holds_up_no_stop(
    redis_server: Server, tree: StartTree, collector: Collector
) -> None:
    [snippet] = [
        each.text
        for each in snippets(ROOT / "docs" / "telemetry.md", "python")
        if "TracerProvider" in each.text
    ]
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
    }
    forkq = tree(redis_server, app=snippet + PING, args=["-c", "1"], env=env)
    jid = push(redis_server, "Ping").encode()
    wait_until(lambda: collector.has("traces", jid), what="the span", deadline=60)
    wait_until(lambda: collector.has("metrics", b"forkq.jobs"), what="the counts", deadline=60)
    wait_until(lambda: collector.has("metrics", b"forkq.up"), what="the leader's", deadline=60)
    collector.answers.clear()
    push(redis_server, "Ping")
    wait_until(collector.waiting.is_set, what="a request that is not answered", deadline=60)
    assert forkq.stop() == 0
    assert "not all telemetry was sent within 2 s: is its collector away?" in forkq.log_text()
    forkq.assert_gone()
