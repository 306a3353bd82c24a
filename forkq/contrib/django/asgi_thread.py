"""An ASGI app for views of Django: it runs in an event loop of its own.

Under WSGI there is no loop, and a view may not bring one for each request: what the app keeps for
its loop, such as its threads and its live pages, would be of a loop that has ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future

from starlette.types import ASGIApp, Message, Scope

# How many chunks wait for a slow client.
_AHEAD = 4


class AsgiThread:
    """The app that ``make`` returns, and its thread. Both are made at the first request of this
    process, so a server may fork before."""

    def __init__(self, make: Callable[[], ASGIApp], *, name: str) -> None:
        self._make = make
        self._name = name
        self._lock = threading.Lock()
        self._app: ASGIApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if hasattr(os, "register_at_fork"):  # Windows has no fork
            os.register_at_fork(after_in_child=self._after_fork_in_child)

    def ask(self, scope: Scope, body: bytes) -> AsgiAnswer:
        """The answer to one request, once its head is there. Raises what the app raises."""
        app, loop = self._started()
        answer = AsgiAnswer(loop, body)
        asyncio.run_coroutine_threadsafe(answer.run(app, scope), loop)
        answer.wait_for_head()
        return answer

    def _started(self) -> tuple[ASGIApp, asyncio.AbstractEventLoop]:
        with self._lock:
            if self._app is None or self._loop is None:
                self._app, self._loop = self._make(), asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name=self._name, daemon=True
                ).start()
            return self._app, self._loop

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._app = self._loop = None  # the parent's thread does not exist here


class AsgiAnswer:
    """What the app answers to one request. One thread reads it; the app runs in the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, body: bytes) -> None:
        self._loop = loop
        self._body: bytes | None = body
        self._head: Future[Message] = Future()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD)  # None: the end
        self._task: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: list[tuple[str, str]] = []

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """In the loop: the whole of it."""
        self._task = asyncio.current_task()
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:  # noqa: BLE001 - the view raises it
            if not self._head.done():
                self._head.set_exception(error)
        finally:
            if not self._head.done():
                self._head.set_exception(RuntimeError("the app has not answered"))
            await self._chunks.put(None)

    def wait_for_head(self) -> None:
        """Takes the status and the headers. Raises what the app raises."""
        head = self._head.result()
        self.status = head["status"]
        pairs = head.get("headers", ())
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs]

    @property
    def is_stream(self) -> bool:
        """Whether it goes on until the client leaves."""
        kinds = [value for name, value in self.headers if name.lower() == "content-type"]
        return any(kind.startswith("text/event-stream") for kind in kinds)

    def chunks(self) -> Iterator[bytes]:
        """The body, for a server with threads. The app ends with the iterator."""
        try:
            while (chunk := self._next().result()) is not None:
                yield chunk
        finally:
            self._end()

    async def chunks_async(self) -> AsyncIterator[bytes]:
        """The body, for a server with an event loop, which is another one than the app's."""
        try:
            while (chunk := await asyncio.wrap_future(self._next())) is not None:
                yield chunk
        finally:
            self._end()

    def _next(self) -> Future[bytes | None]:
        return asyncio.run_coroutine_threadsafe(self._chunks.get(), self._loop)

    def _end(self) -> None:
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # the client leaves: ``_end`` cancels this
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head.set_result(message)
        elif message.get("body"):
            await self._chunks.put(message["body"])
