"""Capsules of ``kind = "async"``: what holds for jobs in threads holds for many coroutines."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from tests.process.shared import (
    Journal,
    counter,
    leased,
    payloads,
    push,
    push_many,
    suspects,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("async_app.py")
MANY = 1000
CONFIG = """
[log]
level = "warning"
[capsules.default]
kind = "async"
concurrency = {concurrency}
threads = {threads}
"""


@pytest.fixture
def start(redis_server: Server, tree: StartTree, journal: Journal) -> Any:
    """Starts a tree with one async capsule."""

    def started(*args: str, concurrency: int = MANY, threads: int = 2, more: str = "") -> ForkqTree:
        config = CONFIG.format(concurrency=concurrency, threads=threads) + more
        return tree(redis_server, app=APP, config=config, args=args, env=journal.env)

    return started


def fields(redis: Redis, key: str = "work") -> dict[bytes, bytes]:
    """``:work`` of all processes."""
    identities: Any = redis.smembers("processes")
    found: dict[bytes, bytes] = {}
    for identity in identities:
        work: Any = redis.hgetall(f"{identity.decode()}:{key}")
        found |= work
    return found


def busy(redis: Redis) -> int:
    """How many jobs the processes say that they run."""
    identities: Any = redis.smembers("processes")
    found: list[Any] = [redis.hget(identity, "busy") for identity in identities]
    return sum(int(each or 0) for each in found)


def test_a_thousand_jobs_run_at_once_and_end(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * (MANY + 50))
    tree = start()
    journal.wait("begin", jids[:MANY])
    assert len(leased(redis)) == MANY
    assert waiting(redis) == jids[MANY:]
    door.touch()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter(jids)
    assert tree.stop() == 0
    assert counter(redis, "processed") == MANY + 50


def test_def_jobs_run_on_threads_and_no_more_wait_than_have_one(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """What neither runs nor waits is in its queue, in order, and another queue goes on."""
    door = tmp_path / "door"
    start("-q", "default", "-q", "other")
    jids = push_many(redis_server, "SyncGate", [[str(door)]] * 60)
    journal.wait("begin", jids[:2])

    def are_placed() -> bool:
        return waiting(redis) == jids[4:] and sorted(leased(redis)) == sorted(jids[:4])

    # Every ten seconds the child tries whether the queue has other jobs: then all are leased.
    wait_until(are_placed, what="what found no thread, in its queue")
    others = push_many(redis_server, "Nap", [[0.01]] * 20, queue="other")
    journal.wait("end", others)
    assert journal.jids("begin") == {*jids[:2], *others}
    door.touch()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter([*jids, *others])
    first = [line.jid for line in journal.lines("begin") if line.jid in jids]
    places = [jids.index(jid) for jid in first]
    assert all(abs(place - turn) <= 6 for turn, place in enumerate(places)), str(places)


def test_coroutines_behind_def_jobs_of_their_queue_begin_as_these_find_threads(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    jobs = [("Sync", 0.02), ("Nap", 0.01), ("Nap", 0.01)] * 40
    jids = [push(redis_server, name, seconds) for name, seconds in jobs]
    start()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter(jids)


def test_a_failure_is_retried_and_buried_as_that_of_any_job(
    start: Any, redis_server: Server, redis: Redis
) -> None:
    push(redis_server, "Fail")
    push(redis_server, "Fail", retry=0)
    push(redis_server, "Nobody")
    start()
    wait_until(lambda: redis.zcard("retry") == 2 and redis.zcard("dead") == 1, what="both ends")
    found = {job["class"]: job for job in payloads(redis, "retry")}
    assert found["Fail"]["error_class"] == "ValueError"
    assert found["Fail"]["retry_count"] == 0
    assert found["Nobody"]["error_class"] == "forkq.errors.UnknownJob"
    wait_settled(redis)


def test_what_is_no_job_is_buried(start: Any, redis: Redis) -> None:
    redis.sadd("queues", "default")
    redis.lpush("queue:default", "no json", '"no object"', "{}")
    start()
    wait_until(lambda: redis.zcard("dead") == 3, what="their burial")
    wait_settled(redis)


def test_a_child_that_is_killed_with_a_thousand_in_progress_loses_none(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * MANY)
    tree = start()
    journal.wait("begin", jids)
    [child] = workers(tree)
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    door.touch()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter(jids)
    assert redis.zcard("dead") == redis.zcard("retry") == 0


def test_middleware_is_around_each_coroutine(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It sees how the job ends as around a job in a thread."""
    app = (
        APP.read_text()
        + """

@forkq.middleware.server.append
def note(job):
    record("before")
    try:
        yield
    except BaseException as error:
        record(type(error).__name__)
        raise
    else:
        record("after")
"""
    )
    config = CONFIG.format(concurrency=10, threads=1)
    done, failed = push(redis_server, "Nap", 0.01), push(redis_server, "Fail", retry=0)
    late = push(redis_server, "Nap", 60, timeout=1, retry=0)
    tree(redis_server, app=app, config=config, env=journal.env)
    wait_settled(redis)

    def seen(jid: str) -> list[str]:
        return [line.event for line in journal.lines() if line.jid == jid]

    assert seen(done) == ["before", "begin", "end", "finally", "after"]
    assert seen(failed) == ["before", "begin", "ValueError"]
    assert seen(late) == ["before", "begin", "time_limit", "finally", "TimeLimit"]


def test_middleware_that_calls_the_job_is_refused_at_boot_by_name(
    redis_server: Server, tree: StartTree
) -> None:
    app = """
        import forkq

        @forkq.middleware.server.append
        def stopwatch(job, call):
            return call()
        """
    config = CONFIG.format(concurrency=10, threads=1)
    forkq = tree(redis_server, app=app, config=config, ready=False)
    assert forkq.wait() == 3
    forkq.wait_log("server middleware [a-z.]*stopwatch runs jobs by call")


@pytest.mark.parametrize("how", ["Segfault", "Exit"])
def test_a_job_that_ends_its_process_is_the_only_suspect(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path, how: str
) -> None:
    """Its step was the one that the loop did. The others go back unmarked, and run again together;
    it runs alone, and its third death alone buries it."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 100)
    start()
    journal.wait("begin", jids)
    bad = push(redis_server, how, *([3] if how == "Exit" else []))
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial", deadline=60)
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == bad
    assert [crash.get("alone", False) for crash in dead["forkq"]["crashes"]] == [False, *[True] * 3]
    assert sorted(leased(redis)) == sorted(jids)
    values: Any = redis.hvals("{queue:default}:inflight")
    assert not any(b"crashes" in value for value in values)
    door.touch()
    wait_settled(redis)


def test_the_second_kill_with_the_same_jobs_makes_them_suspects(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """The first one says too little of each of them. What was in progress only once is none."""
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 30)
    tree = start()
    journal.wait("begin", jids)
    workers(tree)[0].kill()
    wait_until(lambda: len(journal.lines("begin")) == 60, what="their second runs")
    later = push_many(redis_server, "Gate", [[str(door)]] * 5)
    journal.wait("begin", later)
    assert suspects(redis) == []
    tree.wait_log("any of them may be the reason")
    workers(tree)[0].kill()
    wait_until(lambda: len(suspects(redis)) > 0, what="suspects")
    door.touch()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter([*jids, *later])
    alone = {line.jid for line in journal.lines("begin")[65:]} - set(later)
    assert alone == set(jids)


def test_a_stop_cancels_what_runs_and_returns_it_to_the_head_in_order(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    jids = push_many(redis_server, "Nap", [[60]] * 200)
    jids += [push(redis_server, "Sync", 60), push(redis_server, "Sync", 60)]
    later = push_many(redis_server, "Sync", [[60]] * 10)
    tree = start("-t", "1")
    journal.wait("begin", jids)
    assert tree.stop() == 0
    tree.assert_gone()
    assert waiting(redis) == [*jids, *later]
    assert leased(redis) == []
    assert journal.jids("finally") == journal.jids("shutdown") == set(jids[:200])
    assert journal.jids("end") == set()


def test_a_job_that_swallows_the_stop_is_frozen_and_returned(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    jids = [push(redis_server, "Stubborn"), push(redis_server, "Nap", 60)]
    tree = start("-t", "1")
    journal.wait("begin", jids)
    assert tree.stop() == 0
    assert waiting(redis) == jids
    assert journal.jids("swallowed") == {jids[0]}


def test_a_quiet_child_ends_what_it_runs_and_begins_nothing(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 20)
    sync = push_many(redis_server, "SyncGate", [[str(door)]] * 4)
    tree = start()
    journal.wait("begin", [*jids, *sync[:2]])
    tree.signal(signal.SIGTSTP)
    wait_until(lambda: tree.status()["state"] == "quiet", what="a quiet tree")
    wait_until(lambda: waiting(redis) == sync[2:], what="the return of those that waited")
    later = push_many(redis_server, "Gate", [[str(door)]] * 5)
    door.touch()
    journal.wait("end", [*jids, *sync[:2]])
    wait_until(lambda: not leased(redis), what="the ends in Redis")
    assert waiting(redis) == [*sync[2:], *later]
    assert tree.stop() == 0


def test_time_limits_end_each_of_many(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    late = push_many(redis_server, "Nap", [[60]] * 100, timeout=1, retry=False)
    fine = push_many(redis_server, "Nap", [[1.5]] * 100, timeout=60)
    tree = start()
    wait_settled(redis)
    assert tree.stop() == 0
    assert journal.jids("time_limit") == set(late)
    assert journal.jids("end") == set(fine)
    assert counter(redis, "failed") == 100


def test_a_hard_limit_ends_the_child_and_fails_that_job(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    late = push(redis_server, "Stubborn", hard_timeout=1, retry=0)
    fine = push_many(redis_server, "Nap", [[1.5]] * 50)
    tree = start()
    wait_until(lambda: redis.zcard("dead") == 1, what="its burial")
    wait_settled(redis)
    [dead] = payloads(redis, "dead")
    assert (dead["jid"], dead["error_class"]) == (late, "forkq.errors.TimeLimit")
    assert Counter(line.jid for line in journal.lines("end")) == Counter(fine)
    assert tree.stop() == 0


def test_a_cancelled_job_is_cancelled_where_it_runs(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    jids = push_many(redis_server, "Nap", [[60]] * 20)
    tree = start("-t", "1")
    journal.wait("begin", jids)
    assert tree.run("cancel", jids[7], "--redis", redis_server.url).returncode == 0
    journal.wait("cancelled", [jids[7]])
    wait_until(lambda: len(leased(redis)) == 19, what="its end")
    assert journal.jids("finally") == {jids[7]}
    assert redis.zcard("retry") == 0


def test_limits_hold(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    door = tmp_path / "door"
    jids = push_many(redis_server, "Gate", [[str(door)]] * 30)
    start(more="[limits]\ndefault = 7\n")
    journal.wait("begin", jids[:7])
    assert sorted(leased(redis)) == sorted(jids[:7])
    door.touch()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter(jids)


def test_running_jobs_are_shown_each_with_its_progress(
    start: Any, redis_server: Server, redis: Redis, journal: Journal, tmp_path: Path
) -> None:
    """`:work` has a field for each, at most a hundred, the longest running first; the count is
    true."""
    door = tmp_path / "door"
    first = push(redis_server, "Progress", str(door))
    tree = start()
    journal.wait("begin", [first])
    jids = push_many(redis_server, "Gate", [[str(door)]] * 300)
    journal.wait("begin", jids)
    wait_until(lambda: busy(redis) == 301, what="a beat with all", deadline=20)
    assert len(fields(redis)) == 100
    shown = tree.run("running", "--redis", redis_server.url)
    assert first in shown.stdout
    silent = tree.run("stuck", "--minutes", "0", "--redis", redis_server.url)
    assert (silent.returncode, jids[0] in silent.stdout) == (1, True)
    assert "30%" in shown.stdout or "3 of 10" in shown.stdout or "3/10" in shown.stdout
    door.touch()
    wait_settled(redis)


def test_a_large_payload_is_read_and_run(
    start: Any, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    large = "x" * 300_000
    jids = [push(redis_server, "Nap", 0.01, padding=large) for _ in range(5)]
    sync = [push(redis_server, "Sync", 0.01, padding=large) for _ in range(10)]
    start()
    wait_settled(redis)
    assert Counter(line.jid for line in journal.lines("end")) == Counter([*jids, *sync])


def test_a_unique_job_frees_its_lock(start: Any, redis_server: Server, redis: Redis) -> None:
    client = forkq.Client(redis_server.url)
    job: dict[str, Any] = {"class": "Nap", "args": [0.01], "unique_for": 3600}
    assert client.push(job)
    assert client.push(job) == ""
    start()
    wait_settled(redis)
    assert client.push(job)
    wait_settled(redis)
