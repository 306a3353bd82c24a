"""Heartbeats of real children: punctual under load, complete at the end, right after a kill."""

from __future__ import annotations

import signal
import time
from itertools import pairwise
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    counter,
    measured,
    pass_time,
    push,
    push_many,
    wait_settled,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

INTERVAL, LATE = 10.0, 2.0


def beats(redis: Redis, seconds: float) -> list[float]:
    """When the last beat of the one child was sent, and each later one arrived (monotonic): those
    of so many seconds, and one at least."""
    [identity] = wait_until(lambda: redis.smembers("processes"), what="the record")
    seen: list[Any] = [redis.hget(identity, "beat")]
    arrivals = [time.monotonic() - (time.time() - float(seen[0]))]
    end = time.monotonic() + seconds

    def watch_is_over() -> bool:
        beat = redis.hget(identity, "beat")
        if beat != seen[-1]:
            seen.append(beat)
            arrivals.append(time.monotonic())
        return time.monotonic() >= end and len(arrivals) > 1

    deadline = seconds + 6 * INTERVAL
    wait_until(watch_is_over, deadline=deadline, every=0.02, what="the end of the watch")
    return arrivals


@pytest.mark.parametrize(
    ("idle", "spinning"),
    [
        (0.7 * INTERVAL, 0.1 * INTERVAL),
        pytest.param(0, 2.5 * INTERVAL, marks=pytest.mark.slow),
    ],
    ids=["until the next beat", "several beats"],
)
def test_beats_are_punctual_while_ten_processors_spin(
    redis: Redis,
    redis_server: Server,
    tree: StartTree,
    journal: Journal,
    idle: float,
    spinning: float,
) -> None:
    """Pure Python, which lets go of the interpreter's lock only when asked; a minute of it, and 25
    processors, are in tests/bench."""
    forkq = tree(redis_server, app=APP, args=["-c", "10", "-t", "1"], env=journal.env)
    pass_time(idle)
    journal.wait("begin", push_many(redis_server, "Spin", [[]] * 10))
    arrivals = beats(redis, spinning)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    measured(f"gaps between beats: {', '.join(f'{gap:.2f}' for gap in gaps)} s")
    assert gaps
    assert max(gaps) <= INTERVAL + within(LATE)
    assert forkq.stop() == 0


def test_a_beat_comes_at_start_at_quiet_and_the_record_goes_with_the_child(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "2"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="the record")
    members: Any = redis.smembers("processes")
    [identity] = members
    assert redis.hget(identity, "quiet") == b"false"
    forkq.signal(signal.SIGTSTP)
    wait_until(lambda: redis.hget(identity, "quiet") == b"true", what="the news")
    assert forkq.stop() == 0
    assert redis.keys(f"{identity.decode()}*") == []
    assert redis.scard("processes") == 0


def test_a_clean_stop_flushes_what_was_counted_last(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Not only counters: metrics too, which Sidekiq 7 loses."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "2"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 2, what="both records")
    last = push_many(redis_server, "Nap", [[0.5]] * 4)
    journal.wait("begin", last)
    failed = push_many(redis_server, "Fail", [["x", True]] * 3)
    assert forkq.stop() == 0
    ended = len(journal.lines("end"))
    assert ended == 4
    del failed  # whether they were fetched before the stop, the counters must tell
    assert counter(redis, "processed") == len(journal.lines("begin"))
    assert counter(redis, "failed") == counter(redis, "processed") - ended
    assert metric(redis, "Nap|p") == 4
    assert metric(redis, "Nap|ms") >= 2000


def metric(redis: Redis, field: str) -> int:
    """A field of the minutes' hashes, over all minutes."""
    keys: Any = redis.keys("j|*")
    minutes = [key for key in keys if len(key.split(b":")[-1]) == 2]
    return sum(int(redis.hget(key, field) or 0) for key in minutes)


def test_jobs_of_a_killed_child_count_as_far_as_it_had_reported(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """They were done between two flushes; the master knows them from the child's last Beat."""
    forkq = tree(redis_server, app=APP, args=["-c", "2"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="the record")
    wait_until(lambda: flushed(redis), what="its first flush")
    pushed = 0

    def unflushed() -> int:
        """How many jobs the child has reported since its last flush, which may come meanwhile."""
        nonlocal pushed
        push_many(redis_server, "Quick", [[0.001]] * 50)
        push_many(redis_server, "Fail", [["x", True]] * 5)
        pushed += 55
        wait_reported(forkq, pushed)
        return pushed - counter(redis, "processed")

    left = wait_until(unflushed, what="jobs that are reported and not flushed")
    [child] = workers(forkq)
    child.kill()
    wait_until(lambda: counter(redis, "processed") == pushed, what="the dead child's counts")
    measured(f"{left} of {pushed} jobs were counted by the master")
    assert counter(redis, "failed") == pushed // 11
    wait_until(lambda: child.pid not in [p.pid for p in workers(forkq)], what="the replacement")
    assert forkq.stop() == 0
    assert counter(redis, "processed") == pushed


def flushed(redis: Redis) -> bool:
    """Whether some child has flushed, if only its note."""
    return bool(redis.keys("forkq:flushed:*"))


def reported_by(tree: ForkqTree) -> dict[int, int]:
    """How many jobs each living child has reported to its master."""
    children: list[dict[str, Any]] = tree.status().get("children", [])
    return {
        child["pid"]: child.get("processed", 0)
        for child in children
        if "clock" not in child["name"]
    }


def test_counts_of_children_killed_again_and_again_are_neither_lost_nor_doubled(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Each is killed when it has reported what it did: exactly the jobs that ran are counted."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "2"], env=journal.env)
    of_the_dead = 0
    for turn in range(1, 5):
        wait_until(lambda: redis.scard("processes") == 2, what="two children and their records")
        wait_until(lambda: len(reported_by(forkq)) == 2, what="two children that the master knows")
        push_many(redis_server, "Quick", [[0.001]] * 40)
        wait_reported(forkq, 40 * turn - of_the_dead)
        victim = workers(forkq)[0]
        of_the_dead += reported_by(forkq)[victim.pid]
        kill(forkq, victim)
        wait_counted(redis, of_the_dead)
    assert forkq.stop() == 0
    assert counter(redis, "processed") == len(journal.lines("end")) == 160


def wait_reported(tree: ForkqTree, jobs: int) -> None:
    """Waits until the living children have reported so many jobs to their master."""
    wait_until(lambda: sum(reported_by(tree).values()) == jobs, what=f"{jobs} jobs to be reported")


def wait_counted(redis: Redis, jobs: int) -> None:
    """Waits until Redis has counted so many jobs at least."""
    wait_until(lambda: counter(redis, "processed") >= jobs, what=f"{jobs} jobs to be counted")


def kill(tree: ForkqTree, child: psutil.Process) -> None:
    """SIGKILL, until the master has seen it."""
    child.kill()
    wait_until(lambda: child.pid not in reported_by(tree), what="the master to bury it")


def test_a_child_in_one_long_call_that_holds_the_lock_beats_again_after_it(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """No thread of ours can help it meanwhile; afterwards nothing is amiss."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="the record")
    jid = push(redis_server, "Hold", 12)
    journal.wait("begin", [jid])
    arrivals = beats(redis, 16)
    journal.wait("end", [jid])
    assert arrivals
    assert counter(redis, "processed") in {0, 1}
    assert forkq.stop() == 0
    assert counter(redis, "processed") == 1


@pytest.mark.parametrize("way", ["stop", "pause"])
def test_counts_of_an_outage_arrive_after_it(
    own_server: Server, tree: StartTree, journal: Journal, way: str
) -> None:
    redis = own_server.client()
    forkq = tree(own_server, app=APP, args=["-c", "5"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="the record")
    jids = push_many(own_server, "Quick", [[0.02]] * 200)
    wait_until(lambda: len(journal.lines("end")) > 50, what="some of the jobs")
    own_server.stop() if way == "stop" else own_server.pause()
    pass_time(3)
    own_server.start() if way == "stop" else own_server.resume()
    journal.wait("end", jids, deadline=40)
    redis = own_server.client()
    wait_settled(redis)
    assert forkq.stop() == 0
    assert counter(redis, "processed") == len(journal.lines("end"))
