"""The web UI as a server: uvicorn in one process, on one socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..runtime.listener import BACKLOG, listen
from ..runtime.waiting_clients import Peer, WaitingClients

_SECONDS_TO_STOP: Final = 2  # live connections never end by themselves
_PATIENCE: Final = 20.0  # seconds for a whole request, and for the client to read what is sent
_MOST_WAITING: Final = 200  # clients that the server waits for
_MOST: Final = 500  # connections, and requests at once; more are answered with 503
# uvicorn compares the wall clock: with so early a last call, each second is one to call again.
_EACH_SECOND: Final = -(1 << 40)


def serve(app: ASGIApp, host: str, port: int, listening: Callable[[str], None]) -> None:
    """Serves until TERM or INT. ``listening`` is called with the URL. Raises ForkqError if the
    address cannot be listened at."""
    with listen(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        listening(f"http://{shown}:{bound.getsockname()[1]}")
        server_of(app).run([bound])


def server_of(app: ASGIApp) -> uvicorn.Server:
    """The server for ``app``. uvicorn has a time-out for idle connections only; this one also
    closes clients that send no whole request, or read no answer."""
    waiting = WaitingClients(_PATIENCE, _MOST_WAITING)

    async def close_late() -> None:
        waiting.close_late()

    config = uvicorn.Config(
        _Turns(app, waiting),
        http=_protocol(waiting),
        ws="none",
        log_config=None,
        log_level="error",  # its warnings are a line for each request that is refused
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST,
        backlog=BACKLOG,  # these are accepted before any of them is counted
        timeout_graceful_shutdown=_SECONDS_TO_STOP,
        callback_notify=close_late,
        timeout_notify=_EACH_SECOND,
    )
    return uvicorn.Server(config)


def _protocol(waiting: WaitingClients) -> type[H11Protocol]:
    """uvicorn's protocol, with its connections announced to ``waiting``."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self.client is not None:  # else it has gone
                waiting.opened(self.client, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            if self.client is not None:
                waiting.closed(self.client)
            super().connection_lost(exc)

    return Protocol


class _Turns:
    """A layer around the app that tells ``waiting`` whether the client or the server is to act."""

    def __init__(self, app: ASGIApp, waiting: WaitingClients) -> None:
        self._app = app
        self._waiting = waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = _Turn(scope, receive, send, self._waiting)
        try:
            await self._app(scope, turn.receive, turn.send)
        finally:
            turn.end()


class _Turn:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, waiting: WaitingClients) -> None:
        self._peer: Peer = scope["client"] or ("", 0)  # of none, if it has gone
        self._receive = receive
        self._send = send
        self._waiting = waiting
        self._is_over = False
        if scope["method"] in {"GET", "HEAD"}:  # a body would not be read
            waiting.answers(self._peer)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            self._waiting.answers(self._peer)
        return message

    async def send(self, message: Message) -> None:
        """Sends a message, and waits for the client if it does not read."""
        self._waiting.waits(self._peer)
        self._is_over = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)
        if not self._is_over:  # else the next request may have begun meanwhile
            self._waiting.answers(self._peer)

    def end(self) -> None:
        """Notes the end of a request, also of one that was not answered to the end."""
        if not self._is_over:
            self._waiting.waits(self._peer)
