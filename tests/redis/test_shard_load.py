"""How busy shards are: what is measured, and which queue is proposed to move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from forkq import api
from forkq.api.sharding import shard_load
from forkq.api.sharding.queue_move import QueueMove
from forkq.api.sharding.shard_load import Proposal, ShardLoad, measure, proposal
from forkq.api.stats import QueueFigures, Stats
from tests.redis.shell import Shell
from tests.support.shards import TwoShards, two_shards

NOTHING = Stats(0, 0, 0, {}, 0, 0, 0, 0, 0, (QueueFigures("mail", 0, 0.0),))


def load(name: str, cpu: float, server: str = "", **jobs: int) -> ShardLoad:
    return ShardLoad(name, None, "", server or name, cpu, 0.0, 60.0, jobs, NOTHING)


def proposed(*loads: ShardLoad) -> tuple[str, str, str, bool] | None:
    found: Proposal | None = proposal(loads)
    return found and (found.source.name, found.queue, found.target.name, found.is_all)


def test_the_queue_that_evens_the_load_out_is_proposed() -> None:
    """Half of the difference: with more, the other node would be the busy one."""
    busy = load("default", 0.9, mail=40, reports=50, tidy=10)
    assert proposed(busy, load("s1", 0.5), load("s2", 0.1)) == ("default", "mail", "s2", False)
    assert proposed(busy, load("s1", 0.65)) is None, "10 % of the jobs are not worth it"
    large = load("default", 0.9, mail=40, reports=30, tidy=30)
    assert proposed(large, load("s1", 0.55)) == ("default", "reports", "s1", False)


@pytest.mark.parametrize(
    "loads",
    [
        [load("default", 0.9, mail=4, low=6)],  # there is no other node
        [load("default", 0.9, "n", mail=4, low=6), load("s1", 0.9, "n")],
        [load("default", 0.4, mail=4, low=6), load("s1", 0.0)],  # it has time to spare
        [load("default", 0.9), load("s1", 0.0)],  # no job: the load is another program's
        [load("default", 0.9, mail=5, low=5), load("s1", 0.6)],  # then that one would be busy
    ],
)
def test_where_no_move_helps_none_is_proposed(loads: list[ShardLoad]) -> None:
    assert proposed(*loads) is None


def test_a_queue_with_nearly_all_jobs_is_named() -> None:
    found = proposed(load("default", 0.95, mail=970, low=1), load("s1", 0.01))
    assert found == ("default", "mail", "s1", True)


def test_shards_of_one_node_are_taken_together() -> None:
    """The CPU of a node says nothing about one of its shards."""
    first, second = load("default", 0.9, "n1", a=10), load("s1", 0.9, "n1", b=45, c=45)
    assert proposed(first, second, load("s2", 0.0, "n2")) in (
        ("s1", "b", "s2", False),
        ("s1", "c", "s2", False),
    )


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoShards]:
    monkeypatch.chdir(tmp_path)
    with two_shards(tmp_path) as made:
        yield made


def test_what_each_server_does_is_measured(shards: TwoShards) -> None:
    """A server that works meanwhile has commands and CPU time; the other one has only those of the
    measurement."""
    shards.push("mail")
    with shards.mail.client() as redis:
        redis.hset("forkq:totals:queues", mapping={"mail|n": 7, "mail|ms": 70})

        def work(_: float) -> None:
            with redis.pipeline(transaction=False) as commands:
                for _number in range(20_000):
                    commands.set("x", "y")
                commands.execute()

        loads, down = measure(list(api.servers()), 0.0, work)
    default, mail = loads
    assert down == {}
    assert mail.commands * mail.seconds > 20_000 > default.commands * default.seconds
    assert mail.cpu > default.cpu
    assert (mail.jobs, default.jobs) == ({"mail": 7}, {})
    assert (mail.waiting, default.waiting) == (1, 0)
    assert (mail.jobs_per_second, mail.slot, mail.node) == (None, None, "")


def test_the_command_says_what_is_left_to_move(shards: TwoShards, shell: Shell) -> None:
    """Jobs of a program with the old table, and a page of a move that was killed."""
    with shards.client.servers["default"].connection() as connection:
        connection.call("SADD", "queues", "mail")
        connection.call("RPUSH", "queue:mail", "1", "2")
        connection.call("HSET", "forkq:moves", "mail.eu", "0123 4 queued")
    assert shell("shards --seconds 0.1") == 0
    lines = shell.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["SHARD", "default", "mail"]
    assert lines[3:] == [
        "default still has 2 jobs of mail: forkq shards move mail mail",
        "default still has a page of mail.eu: forkq shards move mail.eu default",
    ]
    QueueMove("mail", api.server("default"), api.server("mail"), lambda _: None).run(wait=True)
    assert shell("shards --seconds 0.1 --json") == 0
    default, mail = map(json.loads, shell.out.splitlines())
    assert (default["shard"], default["strays"], default["moves"]) == ("default", {}, ["mail.eu"])
    assert (mail["waiting"], mail["jobs_per_second"]) == (2, None)


def test_a_shard_that_is_down_hides_no_other_one(shards: TwoShards, shell: Shell) -> None:
    shards.mail.kill()
    assert shell("shards --seconds 0.1") == 6
    assert [line.split()[0] for line in shell.out.splitlines()] == ["SHARD", "default"]
    assert shell.err.startswith("forkq: shard mail: ")


@pytest.mark.usefixtures("environment")
def test_without_shards_the_command_says_so(redis: Redis, shell: Shell) -> None:
    assert shell("shards") == 2
    assert "the configuration has no [[redis.shards]]" in shell.err


def test_no_count_is_negative_after_a_restart_without_the_latest_counts(
    shards: TwoShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_load, "BEAT", 0.0)
    with shards.mail.client() as redis:
        redis.hset("forkq:totals:queues", mapping={"mail|n": 70, "low|n": 5})

        def restart(_: float) -> None:
            redis.hset("forkq:totals:queues", mapping={"mail|n": 3, "low|n": 6})

        loads, _ = measure(list(shards.client.servers), 0.0, restart)
    [load] = [one for one in loads if one.name == "mail"]
    assert load.jobs == {"mail": 0, "low": 1}
    assert load.jobs_per_second is not None
    assert load.jobs_per_second > 0
