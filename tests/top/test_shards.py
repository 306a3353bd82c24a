"""More than one Redis: a key goes from shard to shard, and the screen says which one is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq import api, default_client
from forkq.config.load import load
from forkq.sharded_client import ShardedClient
from tests.support.server import Server
from tests.top.screen import Screen, drive

NAMES = ("default", "mail")
TEXT = """
[redis]
url = "{}"
[[redis.shards]]
name = "mail"
url = "{}"
queues = ["mail"]
"""


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    found = [Server().start(), Server().start()]
    yield found
    for server in found:
        server.close()


@pytest.fixture
def client(servers: list[Server], tmp_path: Path) -> Iterator[ShardedClient]:
    """The default client of a process whose forkq.toml has two shards, with a job on each."""
    (tmp_path / "forkq.toml").write_text(TEXT.format(*(server.url for server in servers)))
    before = default_client.swap(None)
    client = default_client.use(load(None, {}, {}, tmp_path))
    assert isinstance(client, ShardedClient)
    for queue in ("reports", "mail"):
        client.push({"class": "Letter", "args": [], "queue": queue})
    yield client
    client.close()
    default_client.swap(before)


def test_a_key_goes_to_the_next_shard_and_actions_stay_on_theirs(client: ShardedClient) -> None:
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
        with api.on_shard("default"):
            assert not api.Queue("mail").paused

    drive(scenario, shards=NAMES)


def test_a_shard_that_is_down_is_told_and_hides_no_other(
    client: ShardedClient, servers: list[Server]
) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.shows("no process runs jobs")
        servers[1].kill()
        await screen.shows("] ! shard mail is down", "default ● live")
        await screen.press("right_square_bracket")
        await screen.shows("mail ● away", "Redis has not answered")
        await screen.press("right_square_bracket")
        await screen.shows("default ● live")
        servers[1].start()
        await screen.until(lambda: "shard mail is down" not in screen.text())

    drive(scenario, shards=NAMES)
