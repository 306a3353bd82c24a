"""A person at `forkq top`, without a terminal: presses keys, and reads the screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rich.segment import Segment
from textual.pilot import Pilot

from forkq.top.app import Top

DEADLINE = 30.0


class Screen:
    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    def text(self) -> str:
        """What stands on the screen; of a question, its own lines only."""
        return "\n".join("".join(part.text for part in line) for line in self.segments())

    def segments(self) -> list[list[Segment]]:
        return [list(strip) for strip in self.app.screen._compositor.render_strips()]

    def line(self, text: str) -> str:
        """The first line that has ``text`` in it, or ""."""
        return next((line for line in self.text().split("\n") if text in line), "")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits, while the app goes on. A failure shows the screen."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"not within {DEADLINE} s; the screen:\n{self.text()}"
            await self.pilot.pause(0.05)

    async def shows(self, *texts: str) -> None:
        await self.until(lambda: all(text in self.text() for text in texts))

    async def asked(self, text: str) -> None:
        """A question is open, with that text."""
        await self.until(lambda: len(self.app.screen_stack) > 1 and text in self.text())

    async def answer(self, key: str) -> None:
        await self.press(key)
        await self.until(lambda: len(self.app.screen_stack) == 1)


async def left(app: Top) -> None:
    """As a person leaves: the app handles its last event, then its widgets go. ``run_test`` would
    take them away while events are still handled."""
    app.exit()
    end = time.monotonic() + DEADLINE
    while app.is_running:
        assert time.monotonic() < end, f"the app goes on for {DEADLINE} s"
        await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(
    size: tuple[int, int] = (80, 24), *, ascii_only: bool = False, shards: Sequence[str] = ("",)
) -> AsyncIterator[Screen]:
    """`forkq top` at the Redis of this process's client."""
    app = Top("redis://localhost", ascii_only=ascii_only, shards=shards)
    try:
        async with app.run_test(size=size) as pilot:
            yield Screen(app, pilot)
            await left(app)
    finally:
        app.watcher.end()
        app.watcher.join(DEADLINE)
        app.acting.join(DEADLINE)


def drive(scenario: Callable[[Screen], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario at an open screen."""

    async def run() -> None:
        async with opened(**options) as screen:
            await scenario(screen)

    go: Coroutine[Any, Any, None] = run()
    asyncio.run(go)
