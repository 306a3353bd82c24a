"""``forkq web`` and clients that are slow on purpose: none of them keeps another one out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection

import anyio
import anyio.to_thread
import psutil
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from forkq.runtime.listener import listen
from forkq.web import create_app, serving
from tests.support.waiting import PATIENCE, wait_until

STATIC = "/static/forkq.css"
HALF_A_HEAD = b"GET /queues HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
SHORT = 0.3  # seconds
FLOOD = 520  # more than the server takes requests at once


@contextmanager
def served(app: ASGIApp | None = None) -> Iterator[int]:
    """The port of ``forkq web``'s own server, in a thread."""
    with listen("127.0.0.1", 0) as bound:
        server = serving.server_of(app or create_app())
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            wait_until(lambda: server.started, what="the server")
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


def ask(port: int, path: str = STATIC) -> int:
    """The status of an answer to a client of the same address."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def connect(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))


def is_closed(client: socket.socket, sends: bytes = b"") -> bool:
    """Whether the server has closed the connection. ``sends`` is sent before each look."""
    client.settimeout(0.02)
    try:
        client.send(sends)
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def test_a_flood_of_half_heads_keeps_nobody_out() -> None:
    with served() as port, ExitStack() as stack:
        for _ in range(FLOOD):
            connect(stack, port).send(HALF_A_HEAD)
        assert [ask(port) for _ in range(10)] == [200] * 10


def test_a_flood_of_silent_connections_keeps_nobody_out() -> None:
    with served() as port, ExitStack() as stack:
        for _ in range(FLOOD):
            connect(stack, port)
        assert ask(port) == 200


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"", b""),
        (HALF_A_HEAD, b"x"),
        # A whole request before: uvicorn's own time-out for idle connections ends with a byte.
        (b"GET /static/forkq.css HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF_A_HEAD, b"x"),
        # A body that never ends, for an action and for what takes none.
        (b"POST /queue/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n", b"x"),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n", b"x"),
        (b"POST /queue/pause HTTP/1.1\r\nHost: evil\r\nContent-Length: 99999\r\n\r\n", b"x"),
    ],
    ids=["silent", "head", "second head", "body", "body of a page", "body of a refusal"],
)
def test_a_request_that_is_never_whole_is_ended(
    begins: bytes, goes_on: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", SHORT)
    with served() as port, ExitStack() as stack:
        client = connect(stack, port)
        client.send(begins)
        wait_until(lambda: is_closed(client, goes_on), what="the end of the connection")


def test_answers_that_are_never_read_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE", SHORT)
    with served() as port, ExitStack() as stack:
        client = connect(stack, port)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.02)

        def is_ended() -> bool:
            """Sends as long as the server takes it, and reads nothing. The server's end tells: as
            long as this one reads nothing, the kernel may keep the news from it."""
            with suppress(OSError):
                client.send(b"GET /static/forkq.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
            return not has_server_end(client)

        wait_until(is_ended, what="the end of the connection")
        assert ask(port) == 200


def has_server_end(client: socket.socket) -> bool:
    """Whether the server, in this process, has its end of that connection."""
    ends = psutil.Process().net_connections("tcp")
    ours = client.getsockname()[1]
    return any(getattr(end.raddr, "port", 0) == ours for end in ends)


def test_garbage_writes_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Who has no password could fill a disk."""
    with served() as port, ExitStack() as stack:
        for garbage in (
            b"\0\r\n\r\n",
            b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        ):
            client = connect(stack, port)
            client.send(garbage)
            assert client.recv(65536).startswith(b"HTTP/1.1 ")
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_a_client_that_waits_for_its_answer_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is the client's: that of a slow page is not counted."""
    monkeypatch.setattr(serving, "_PATIENCE", SHORT)
    asked, go_on = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await anyio.to_thread.run_sync(go_on.wait, PATIENCE)
        await PlainTextResponse("done")(scope, receive, send)

    with served(slow) as port, ExitStack() as stack:
        patient = connect(stack, port)
        patient.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.wait(PATIENCE)
        silent = connect(stack, port)
        wait_until(lambda: is_closed(silent), what="the end of one that came later")
        go_on.set()
        assert b"200 OK" in patient.recv(65536)
