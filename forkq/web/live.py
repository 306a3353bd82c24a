"""The live view of a page: the same URL, asked for as an event stream, sends what has changed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from ..errors import ForkqError
from .rendering import live_parts
from .visit import View, Visit
from .worker import TooBusy

_EVERY: Final = 1.0  # seconds between two messages, at least
_SHARE: Final = 0.1  # of the time that a page may be computed in
_LONGEST: Final = 600.0  # seconds; the browser connects again, and is authenticated again
_MOST: Final = 64  # streams at once
_STILL_HERE: Final = 15.0  # seconds between two signs of life

_open = 0  # streams of this process


def wants_live(request: Request) -> bool:
    """Whether the browser asks for a page's event stream."""
    return "text/event-stream" in request.headers.get("accept", "")


def stream(visit: Visit, function: Callable[[Visit], View | Response]) -> Response:
    """Sends the live parts of a page whenever they have changed."""
    if _open >= _MOST:
        return PlainTextResponse("too many live pages\n", 503, {"Retry-After": "30"})
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(
        _messages(visit, function), media_type="text/event-stream", headers=headers
    )


async def _messages(
    visit: Visit, function: Callable[[Visit], View | Response]
) -> AsyncIterator[bytes]:
    global _open  # noqa: PLW0603 - one count for the process
    _open += 1
    try:
        yield b"retry: 3000\n\n"
        async for message in _changes(visit, function):
            yield message
    finally:
        _open -= 1


async def _changes(
    visit: Visit, function: Callable[[Visit], View | Response]
) -> AsyncIterator[bytes]:
    end = time.monotonic() + _LONGEST
    sent: dict[str, str] = {}
    last = time.monotonic()
    while (begin := time.monotonic()) < end:
        parts = await _parts(visit, function)
        news = {name: html for name, html in parts.items() if sent.get(name) != html}
        if news:
            sent, last = {**sent, **news}, begin
            yield b"data: " + msgspec.json.encode(news) + b"\n\n"
        elif begin - last > _STILL_HERE:
            last = begin
            yield b": still here\n\n"
        await anyio.sleep(max(_EVERY, (time.monotonic() - begin) / _SHARE))


async def _parts(visit: Visit, function: Callable[[Visit], View | Response]) -> dict[str, str]:
    def make() -> dict[str, str]:
        made = function(visit)
        return live_parts(visit, made) if isinstance(made, View) else {}

    try:
        parts = await visit.worker.run(make)
    except (ForkqError, TooBusy) as error:
        return {"lost": f"not live: {error}"}
    return {**parts, "lost": ""}
