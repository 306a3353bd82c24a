"""docs/telemetry.md reports failed jobs to Sentry: its snippet runs here as printed, against a
server that takes what the real client sends."""

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

pytest.importorskip("sentry_sdk", reason="sentry-sdk is missing: pip install --group test")

FAILS = """
@forkq.job(name="Fails")
def fails():
    raise ValueError("no such picture")
"""


class Sentry(ThreadingHTTPServer):
    """``received``: the bodies of all requests."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Receiver)

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"


class Receiver(BaseHTTPRequestHandler):
    server: Sentry

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        packed = self.headers.get("Content-Encoding") == "gzip"
        self.server.received.append(gzip.decompress(body) if packed else body)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows enough."""


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    server = Sentry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_failed_job_reaches_sentry(redis_server: Server, tree: StartTree, sentry: Sentry) -> None:
    [snippet] = [
        each.text
        for each in snippets(ROOT / "docs" / "telemetry.md", "python")
        if "sentry_sdk" in each.text
    ]
    env = {"SENTRY_DSN": sentry.dsn}
    forkq = tree(redis_server, app=snippet + FAILS, args=["-c", "1"], env=env)
    jid = push(redis_server, "Fails").encode()
    found = wait_until(
        lambda: [body for body in sentry.received if b"no such picture" in body],
        what="the report",
        deadline=30,
    )
    assert jid in found[0]
    assert b'"Fails"' in found[0]
    assert forkq.stop() == 0
