"""More than one Redis: a key goes from shard to shard, and the screen says which one is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq import api
from tests.support.shards import NAMES, TwoShards, two_shards
from tests.top.screen import Screen, drive


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[TwoShards]:
    with two_shards(tmp_path) as found:
        for queue in ("reports", "mail"):
            found.push(queue)
        yield found


def test_a_key_goes_to_the_next_shard_and_actions_stay_on_theirs(shards: TwoShards) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("default ● live", "] Shard", " reports ")
        await screen.press("right_square_bracket")
        await screen.shows("mail ● live")
        await screen.until(lambda: re.search("mail +1 ", screen.text()))
        assert " reports " not in screen.text()
        await screen.press("p")
        await screen.shows("u undoes it")
        assert api.Queue("mail").paused
        await screen.press("right_square_bracket")
        await screen.shows("default ● live")
        await screen.press("u")  # on the shard where it was done
        await screen.until(lambda: not api.Queue("mail").paused)
        assert not api.Queue("mail", api.server("default")).paused

    drive(scenario, shards=NAMES)


def test_a_shard_that_is_down_is_told_and_hides_no_other(shards: TwoShards) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.shows("no process runs jobs")
        shards.mail.kill()
        await screen.shows("] ! shard mail is down", "default ● live")
        await screen.press("right_square_bracket")
        await screen.shows("mail ● away", "Redis has not answered")
        await screen.press("right_square_bracket")
        await screen.shows("default ● live")
        shards.mail.start()
        await screen.until(lambda: "shard mail is down" not in screen.text())

    drive(scenario, shards=NAMES)
