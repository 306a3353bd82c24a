"""A payload that takes more memory than a process may have harms no other job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from forkq.client import Client
from forkq.wire.times import now
from tests.process import memory_groups as groups
from tests.process.shared import APP, Journal
from tests.support.server import Server
from tests.support.tree import CHECKOUT, ForkqTree, StartTree
from tests.support.waiting import wait_until

CHILD, CLOCK = 250, 60  # megabytes
LARGE = 1_000_000  # bytes
DEATHS = 4  # of one ordinary and of three solo children, at least
ENTERS_A_GROUP = f"""
from tests.process import memory_groups

@forkq.on("startup")
def enter() -> None:
    memory_groups.enter(Path(os.environ["MEMORY_GROUPS"]), os.getpid(), {CHILD})
"""


def push_for_later(server: Server) -> tuple[str | None, list[str]]:
    """One job of 15 MB, which take 350 MB as objects, and twenty small ones behind it. To write it
    takes seconds, or minutes beside a load: all become due when all are in the schedule."""
    client = Client(server.url)
    brackets: list[Any] = [[] for _ in range(5_000_000)]
    far = now() + 86_400
    large = client.push({"class": "Quick", "args": [brackets], "at": far})
    small = client.push_bulk({"class": "Quick", "args": [[0.01]] * 20, "at": far})
    client.close()
    with server.client() as redis:
        every: Any = redis.zrange("schedule", 0, -1)
        assert len(every) == 1 + len(small)
        due = now()
        redis.zadd("schedule", {job: due - (len(job) > LARGE) for job in every})
    return large, small


def wait_buried(redis: Redis, tree: ForkqTree, jid: str | None) -> None:
    wait_until(lambda: redis.zcard("dead"), deadline=120, what=f"the burial in {tree.log}")
    found: Any = redis.zrange("dead", 0, -1)
    assert [f'"{jid}"'.encode() in payload for payload in found] == [True]


@pytest.mark.slow  # the kernel kills five processes, one after the other
def test_a_payload_that_kills_its_reader_is_buried_and_harms_no_neighbour(
    memory_group: Path,
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """15 MB of JSON take 350 MB as objects. They come from the schedule: the clock decodes none."""
    (memory_group / "memory.limit_in_bytes").write_text(str(300 << 20))
    enter = f'echo $$ > {memory_group}/cgroup.procs; exec "$@"'
    monkeypatch.setattr(ForkqTree, "wrapper", ["sh", "-c", enter, "sh"])
    forkq = tree(redis_server, app=APP, args=["-c", "3"], env=journal.env)
    bad, good = push_for_later(redis_server)
    wait_buried(redis, forkq, bad)
    journal.wait("end", good)
    assert forkq.stop() == 0


@pytest.mark.slow  # as above
def test_such_a_payload_kills_children_of_250_mb_and_no_clock_of_60_mb(
    memory_groups: Path,
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each process has a control group of its own: none is killed for another one."""
    monkeypatch.setattr(ForkqTree, "fresh", True)  # one that is forked has the memory of pytest
    env = {**journal.env, "MEMORY_GROUPS": str(memory_groups), "PYTHONPATH": str(CHECKOUT)}
    forkq = tree(redis_server, app=APP.read_text() + ENTERS_A_GROUP, args=["-c", "3"], env=env)
    [clock] = forkq.children("forkq clock")
    its_group = groups.enter(memory_groups, clock.pid, CLOCK)
    bad, good = push_for_later(redis_server)
    wait_buried(redis, forkq, bad)
    journal.wait("end", good)
    assert forkq.children("forkq clock") == [clock]
    assert groups.killed(its_group) == 0
    children = [group for group in memory_groups.glob("of-*") if group != its_group]
    assert sum(map(groups.killed, children)) >= DEATHS
    assert forkq.stop() == 0
