"""A queue over several shards in `forkq top`: its parts are named, and a key acts on all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq import api
from tests.support.spread import PARTS, QUEUE, Spread, three_parts
from tests.top.screen import Screen, drive


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Spread]:
    with three_parts(tmp_path) as found:
        for number, part in enumerate(PARTS, 1):
            found.push_to(part, number)
        yield found


def test_the_parts_are_named_and_paused_together(spread: Spread) -> None:
    queue = api.Queue(QUEUE)

    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("imports: 6 jobs in 3 parts: b 1, c 2, default 3", "of 6 in 3 parts")
        await screen.press("p")
        await screen.until(lambda: queue.paused)
        await screen.shows("in all of its 3 parts")
        await screen.press("u")
        await screen.until(lambda: not any(part.paused for part in queue._parts))

    drive(scenario, shards=["default", "b", "c"])
