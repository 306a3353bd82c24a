"""The live view of a page: the same URL, asked for as an event stream, sends what has changed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

import anyio
import msgspec
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import ForkqError
from ..screens.pace import Pace
from .rendering import live_parts
from .visit import View, Visit
from .worker import TooBusy

_EVERY: Final = 1.0  # seconds between two messages, at least
_LONGEST: Final = 600.0  # seconds; the browser connects again, and is authenticated again
_MOST: Final = 64  # streams at once
_MOST_OF_ONE: Final = 16  # of one user: the others have the rest
_STILL_HERE: Final = 5.0  # seconds between two signs of life
_AGAIN: Final = (1000, 2500)  # milliseconds until a browser whose connection ended connects again


def wants_live(request: Request) -> bool:
    """Whether the browser asks for a page's event stream."""
    return "text/event-stream" in request.headers.get("accept", "")


class Streams:
    """The open streams of an app, by their users. All its calls run in one event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def enter(self, user: str) -> bool:
        """Counts one more stream. False if there are too many: then it counts none."""
        if self._open[user] >= _MOST_OF_ONE or self._open.total() >= _MOST:
            return False
        self._open[user] += 1
        return True

    def leave(self, user: str) -> None:
        """Counts one stream less: it has ended."""
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]


def stream(visit: Visit, function: Callable[[Visit], View | Response]) -> Response:
    """Sends the live parts of a page whenever they have changed."""
    return _Stream(visit, _messages(visit, function))


class _Stream(StreamingResponse):
    """One open stream. It is counted where it is sent: no other request runs between the look at
    the count and the change of it, and each one that was counted ends."""

    def __init__(self, visit: Visit, messages: AsyncIterator[bytes]) -> None:
        headers = {"X-Accel-Buffering": "no"}
        super().__init__(messages, media_type="text/event-stream", headers=headers)
        self._visit = visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streams: Streams = self._visit.request.app.state.streams
        user = self._visit.user
        if not streams.enter(user):
            refusal = PlainTextResponse("too many live pages\n", 503, {"Retry-After": "30"})
            await refusal(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            streams.leave(user)


async def _messages(
    visit: Visit, function: Callable[[Visit], View | Response]
) -> AsyncIterator[bytes]:
    # Each browser is given another pause: those of a web server that is back do not come at once.
    yield f"retry: {random.randint(*_AGAIN)}\n\n".encode()
    async for news in _changes(visit, function):
        yield b"data: " + msgspec.json.encode(news) + b"\n\n"


async def _changes(
    visit: Visit, function: Callable[[Visit], View | Response]
) -> AsyncIterator[dict[str, str]]:
    """The changes of a page, again and again. ``lost`` says each time whether the page is live: a
    browser that hears nothing knows that it is not."""
    end = time.monotonic() + _LONGEST
    pace, sent, lost = Pace(_EVERY), dict[str, str](), ""
    while (begin := time.monotonic()) < end:
        try:
            parts, lost = await _parts(visit, function), ""
            pause = pace.pause_after(time.monotonic() - begin)
        except (ForkqError, TooBusy) as error:
            parts, lost, pause = {}, f"not live: {escape(str(error))}", _EVERY
        news = {name: html for name, html in parts.items() if sent.get(name) != html}
        sent |= news
        yield {**news, "lost": lost}
        while pause > _STILL_HERE:
            await anyio.sleep(_STILL_HERE)
            pause -= _STILL_HERE
            yield {"lost": lost}
        await anyio.sleep(pause)


async def _parts(visit: Visit, function: Callable[[Visit], View | Response]) -> dict[str, str]:
    def make() -> dict[str, str]:
        made = function(visit)
        return live_parts(visit, made) if isinstance(made, View) else {}

    return await visit.worker.run(make)
