"""How long the jobs of a lost host wait, in real time; and that a child without a heartbeat keeps
its jobs for longer than that while its host lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

from forkq.wire.keys import Keys
from tests.process.shared import (
    APP,
    Journal,
    leased,
    push,
    push_many,
    wait_events,
    wait_settled,
    waiting,
)
from tests.process.test_two_hosts import REASON, Host, make_far, owners, wait_known
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(bool(REASON), reason=f"no pid namespace to be had: {REASON}"),
]

HOSTS = 4
APART = 3.7  # seconds: each host dies at another moment of the sweep's period
RECORD, FOUND_WITHIN = 60.0, 15.0
HELD = 85  # seconds: longer than a sweep waits for a lost host


@pytest.fixture
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """The lines that the jobs write."""
    return Journal(tmp_path_factory.mktemp("hosts") / "journal")


@contextmanager
def far_hosts(server: Server, journal: Journal, count: int) -> Iterator[list[Host]]:
    """So many other hosts, each with one processor."""
    hosts = [make_far(server.url, journal) for _ in range(count)]
    try:
        for host in hosts:
            host.start().wait_ready()
        yield hosts
    finally:
        for host in hosts:
            host.close()


def child_of(redis: Redis, host: Host) -> str:
    """The owner of a lease that lives on that host."""
    for identity in owners(redis):
        wait_known(redis, identity)
        place: Any = redis.get(Keys().process_ref(identity))
        if place.decode().startswith(f"{host.view}/"):
            return identity
    raise AssertionError(f"no process on {host.view} holds a lease")


def lose(redis: Redis, identity: str, host: Host) -> tuple[float, float]:
    """Ends that host. Returns when its child beat last and when it died, epoch seconds."""
    beat: Any = redis.hget(identity, "beat")
    host.lose_power()
    return float(beat), time.time()


def test_time_to_recover_a_lost_host(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Prints how long each host's job waited, from its last heartbeat and from its death on."""
    tree(redis_server, app=APP, args=["-q", "other"], env=journal.env)
    with far_hosts(redis_server, journal, HOSTS) as hosts:
        jids = push_many(redis_server, "Nap", [[600]] * HOSTS)
        journal.wait("begin", jids)
        children = {child_of(redis, host): host for host in hosts}
        lost: dict[str, tuple[float, float]] = {}
        for identity, host in children.items():
            time.sleep(APART)
            lost[identity] = lose(redis, identity, host)
        took = [recovered(redis, lost) for _ in range(HOSTS)]
    for from_beat, from_death in took:
        print(f"\nrecovered {from_beat:.1f} s after its last beat, {from_death:.1f} s after death")
    assert max(from_beat for from_beat, _ in took) <= RECORD + FOUND_WITHIN
    assert set(waiting(redis)) == set(jids)


def recovered(redis: Redis, lost: dict[str, tuple[float, float]]) -> tuple[float, float]:
    """Waits until one more host's jobs are recovered. Returns how long they waited, seconds."""
    gone = wait_until(
        lambda: lost.keys() - owners(redis), deadline=120, what="a recovery", every=0.05
    )
    beat, died = lost.pop(gone.pop())
    return time.time() - beat, time.time() - died


def test_a_child_that_holds_the_interpreter_keeps_its_job(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It does not beat for longer than a sweep waits for a lost host."""
    near = tree(
        redis_server, app=APP, args=["-q", "other", "--log-format", "json"], env=journal.env
    )
    with far_hosts(redis_server, journal, 1) as [host]:
        jid = push(redis_server, "Hold", HELD)
        journal.wait("begin", [jid])
        identity = child_of(redis, host)
        wait_until(lambda: not redis.exists(identity), deadline=HELD, what="its record to run out")
        [line] = wait_events(near, "no heartbeat, but its host is there", deadline=HELD)
        assert line["owner"] == identity
        wait_settled(redis, deadline=HELD)
        assert [line.event for line in journal.lines()] == ["begin", "end"]
    assert leased(redis) == []
