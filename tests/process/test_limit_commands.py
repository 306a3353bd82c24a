"""``forkq limits``, ``pause`` and ``resume``, as a user types them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from tests.support.printed import objects
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree

WIDTH = 100
CONFIG = """
[capsules.default]
queues = ["critical", "webhooks", "tenant-*"]
[limits]
webhooks = 4
"tenant-*" = 2
[rates]
webhooks = "100/minute"
[blocking]
critical = true
"""


@pytest.fixture
def shell(redis: Redis, redis_server: Server) -> Iterator[ForkqTree]:
    """A folder with a forkq.toml to run commands in, on an empty server."""
    tree = ForkqTree(app="", config=CONFIG, env={"FORKQ_REDIS": redis_server.url})
    yield tree
    tree.close()


def output(shell: ForkqTree, *arguments: str, warned: str = "") -> str:
    """What a command prints; nothing is wider than a terminal."""
    result = shell.run(*arguments)
    assert result.returncode == 0, result.stderr
    assert warned in result.stderr if warned else result.stderr == ""
    assert all(len(line) <= WIDTH for line in result.stdout.splitlines())
    return result.stdout.strip()


def refused(shell: ForkqTree, *arguments: str, code: int = 2) -> str:
    result = shell.run(*arguments)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    return result.stderr


def shown(shell: ForkqTree) -> dict[str, dict[str, Any]]:
    result = shell.run("limits", "show", "--json")
    assert result.returncode == 0, result.stderr
    return {one["name"]: one for one in objects(result.stdout)}


def test_show_tells_what_is_in_force_and_what_was_changed(shell: ForkqTree, redis: Redis) -> None:
    redis.sadd("queues", "tenant-a")
    redis.rpush("queue:webhooks", "{}")
    output(
        shell, "limits", "set", "webhooks", "2", "--process", "1", "--rate", "5/s", "--burst", "9"
    )
    output(shell, "pause", "tenant-a")
    table = output(shell, "limits", "show")
    assert output(shell, "limits") == table
    assert re.search(r"^webhooks +0 +2\* +1\* +5/second burst 9\* +9.0 +1$", table, re.MULTILINE)
    assert re.search(r"^tenant-a +0 +2 +- +- +- +0 +paused$", table, re.MULTILINE)
    assert re.search(r"^critical +.* blocking$", table, re.MULTILINE)
    assert "* changed at run time; `forkq limits reset QUEUE`" in table
    assert "webhooks" not in output(shell, "limits", "show", "tenant-a")
    assert shown(shell)["webhooks"] == {
        "name": "webhooks", "size": 1, "suspects": 0, "busy": 0, "in_sidekiq": 0, "limit": 2,
        "paused_by": "", "paused_at": None,
        "paused": False,
        "process_limit": 1, "rate": "5/second", "burst": 9.0, "tokens": 9.0, "blocking": False,
        "changed": ["limit", "process_limit", "rate", "burst"],
    }  # fmt: skip


def test_set_unset_and_reset(shell: ForkqTree) -> None:
    """Set wins over the file, unset lifts what the file has, reset goes back to it."""
    assert output(shell, "limits", "set", "webhooks", "2") == (
        "webhooks: limit 2, 100/minute; busy 0, size 0"
    )
    assert output(shell, "limits", "set", "webhooks", "--process", "1").startswith(
        "webhooks: limit 2, 1 per child, 100/minute;"
    )
    assert output(shell, "limits", "unset", "webhooks").startswith(
        "webhooks: no limit, 1 per child, 100/minute;"
    )
    assert output(shell, "limits", "unset", "webhooks", "--process", "--rate").startswith(
        "webhooks: no limit;"
    )
    assert re.search(
        r"^webhooks +0 +none\* +none\* +none\* ", output(shell, "limits", "show"), re.M
    )
    assert output(shell, "limits", "reset", "webhooks") == "webhooks: as configured"
    assert (shown(shell)["webhooks"]["limit"], shown(shell)["webhooks"]["changed"]) == (4, [])
    output(shell, "limits", "set", "webhooks", "0")
    output(shell, "limits", "set", "tenant-a", "9")
    assert output(shell, "limits", "reset").splitlines() == [
        "tenant-a: as configured",
        "webhooks: as configured",
    ]
    assert output(shell, "limits", "reset") == "nothing was changed at run time"


def test_pause_and_resume(shell: ForkqTree, redis: Redis) -> None:
    redis.rpush("queue:webhooks", "{}")
    assert output(shell, "pause", "webhooks", "critical").splitlines() == [
        "webhooks is paused; busy 0, size 1",
        "critical is paused; busy 0, size 0",
    ]
    assert redis.smembers("paused") == {b"webhooks", b"critical"}
    assert output(shell, "pause", "webhooks").startswith("webhooks was paused already")
    assert output(shell, "resume", "webhooks") == "webhooks goes on"
    assert output(shell, "resume", "webhooks") == "webhooks was not paused"
    assert redis.smembers("paused") == {b"critical"}


def test_a_command_on_an_unknown_queue_warns_and_takes_effect(
    shell: ForkqTree, redis: Redis
) -> None:
    """The queue may be about to come; and a misspelt one should not go unseen."""
    warning = 'warning: no job has been pushed to "webhook" so far; the nearest is "webhooks"'
    output(shell, "pause", "webhook", warned=warning)
    output(shell, "limits", "set", "webhook", "3", warned=warning)
    assert redis.sismember("paused", "webhook")
    assert shown(shell)["webhook"]["limit"] == 3
    output(shell, "pause", "tenant-of-tomorrow")
    redis.sadd("queues", "rubys")
    output(shell, "limits", "set", "rubys", "3")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["set", "q", "-1"], ["-1"]),
        (["set", "q", "two"], ["two"]),
        (["set", "q", "2.5"], ["2.5"]),
        (["set", "q"], ["Give a number, --process N or --rate RATE"]),
        (["set", "q", "--rate", "fast"], ['"100/minute"', "fast"]),
        (["set", "q", "--rate", "0/minute"], ["0/minute", "limit of 0"]),
        (["set", "q", "2", "--burst", "3"], ["--burst belongs to a --rate"]),
        (["set", "q", "--rate", "1/s", "--burst", "0"], ["--burst"]),
        (["set", "q", "--process", "-2"], ["--process"]),
        (["set", "tenant-*", "2"], ['"tenant-*" is a pattern', "forkq.toml"]),
        (["unset"], ["QUEUE"]),
        (["reset", "tenant-*"], ["is a pattern"]),
        (["show", "tenant-*"], ["is a pattern"]),
    ],
)
def test_an_impossible_rule_is_refused(
    shell: ForkqTree, redis: Redis, arguments: list[str], named: list[str]
) -> None:
    """Exit code 2, the mistake named, nothing changed."""
    message = refused(shell, "limits", *arguments)
    assert all(text in message for text in named)
    assert redis.dbsize() == 0


def test_a_misspelt_pattern_pauses_nothing(shell: ForkqTree, redis: Redis) -> None:
    assert "is a pattern" in refused(shell, "pause", "webhooks", "tenant-*")
    assert redis.dbsize() == 0


def test_without_a_server_the_exit_code_is_6(shell: ForkqTree) -> None:
    nowhere = ("--redis", "redis://localhost:1/0")
    for command in (["limits", "show"], ["limits", "set", "q", "1"], ["pause", "q"]):
        assert "localhost:1" in refused(shell, *command, *nowhere, code=6)


def test_an_empty_server_without_rules_is_reported_in_words(
    redis: Redis, redis_server: Server
) -> None:
    tree = ForkqTree(app="", env={"FORKQ_REDIS": redis_server.url})
    try:
        assert output(tree, "limits", "show") == (
            "no job has been pushed to any queue, and no queue has a rule"
        )
    finally:
        tree.close()


def test_start_warns_of_a_rule_that_changes_nothing(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """And starts: the queue may be another host's."""
    forkq = tree(redis_server, app="import forkq", config="[limits]\ndefalt = 2")
    told = forkq.log.read_text().replace("\\", "")
    assert 'no capsule works on "defalt"; the nearest queue is "default"' in told
    assert forkq.stop() == 0
