"""Jobs of which at most one waits ("latest", "replace"), over several servers: a queue that is
spread over all of them, and one that another shard has."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import forkq
from forkq import api, middleware, registry
from forkq.errors import InvalidJob, ServerUnavailable
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.support.spread import PARTS, QUEUE, Spread, three_parts
from tests.support.waiting import wait_until

ran: dict[int, list[int]] = defaultdict(list)
running: dict[int, int] = defaultdict(int)
together: list[int] = []
gate = threading.Event()


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spread]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    for found in (ran, running, together):
        found.clear()
    gate.set()
    with three_parts(tmp_path) as made:
        yield made
    gate.set()


def index(queue: str = QUEUE, how: str = "latest", **options: Any) -> Any:
    """A job that notes what has run, and which ones ran together."""

    def perform(doc: int, version: int) -> None:
        running[doc] += 1
        if running[doc] > 1:
            together.append(doc)
        gate.wait(30)
        ran[doc].append(version)
        running[doc] -= 1
        if version < 0:
            raise ValueError(version)

    registry._jobs.pop("Index", None)
    asked: Any = {"unique_for": 60, "unique_by": ["doc"], "on_duplicate": how, "queue": queue}
    return forkq.job(name="Index", **{**asked, **options})(perform)


def children(spread: Spread, queue: str = QUEUE, *, clocks: bool = False) -> ExitStack:
    """A child for each server, and a clock if one is asked for."""
    stack = ExitStack()
    for server in spread.servers.values():
        stack.enter_context(InProcessChild(server.url, queue=queue, concurrency=2))
        if clocks:
            stack.enter_context(InProcessClock(server.url))
    return stack


def members(spread: Spread, name: str) -> int:
    """How many members that set has on all servers together."""
    found: list[Any] = [server.client().zcard(name) for server in spread.servers.values()]
    return sum(found)


def locks(part: str) -> list[api.UniqueLock]:
    return api.unique_locks(server=api.server(part))


def is_idle(spread: Spread, queue: str = QUEUE) -> bool:
    """Whether nothing waits, runs, or has a lock any more on any server."""
    for server in spread.servers.values():
        redis = server.client()
        if redis.exists(f"queue:{queue}", f"{{queue:{queue}}}:inflight", "schedule", "retry"):
            return False
        locks = {*redis.keys("forkq:unique:*")} - {b"forkq:unique:doubt"}  # a note, for a while
        if locks or redis.exists("forkq:tickets"):
            return False
    return True


def test_pushes_with_the_same_arguments_meet_in_one_part(spread: Spread) -> None:
    """By one push, in bulk, and for later; each document in the part of its own."""
    job = index()
    for doc in range(12):
        job.perform_async(doc, 1)
        job.perform_bulk([(doc, 2), (doc, 3)])
        job.perform_in(3600, doc, 4)
    assert sum(spread.sizes().values()) == 12
    assert all(spread.sizes().values())
    assert [len(locks(part)) for part in PARTS] == [spread.sizes()[part] for part in PARTS]


@pytest.mark.parametrize("how", ["latest", "replace"])
def test_the_last_change_runs_in_each_part(spread: Spread, how: str) -> None:
    job = index(how=how)
    with children(spread):
        for version in range(1, 30):
            for doc in range(8):
                job.perform_async(doc, version)
        wait_until(lambda: is_idle(spread), what="all have run", deadline=60)
    assert {doc: versions[-1] for doc, versions in ran.items()} == dict.fromkeys(range(8), 29)
    if how == "latest":
        assert together == []


def test_the_newest_one_waits_behind_a_run_is_found_and_cancelled(spread: Spread) -> None:
    job = index()
    gate.clear()
    with children(spread, clocks=True):
        first = job.perform_async(7, 1)
        wait_until(lambda: running[7], what="the first one runs")
        second = job.perform_async(7, 2)
        assert forkq.is_alive(second)
        assert job.cancel(7) in (first, second)
        third = job.perform_async(7, 3)
        assert forkq.cancel(third, wait=20) == "removed"
        gate.set()
        wait_until(lambda: is_idle(spread), what="all has ended", deadline=60)
    assert ran[7] in ([1], [])


def test_a_job_that_fails_gives_way_to_a_newer_one_of_its_part(spread: Spread) -> None:
    job = index(backoff=3600)
    with children(spread):
        for doc in range(6):
            job.perform_async(doc, -1)
        wait_until(lambda: len(ran) == 6, what="all have failed once")
        wait_until(lambda: members(spread, "retry") == 6, what="all wait for their retry")
        for doc in range(6):
            job.perform_async(doc, 2)
        wait_until(lambda: is_idle(spread), what="the newer ones have run", deadline=60)
    assert dict(ran) == {doc: [-1, 2] for doc in range(6)}


def test_what_is_due_later_is_replaced_in_its_part(spread: Spread) -> None:
    job = index()
    with children(spread, clocks=True):
        for doc in range(6):
            job.perform_in(3600, doc, 1)
            job.perform_in(0.2, doc, 2)
        wait_until(lambda: is_idle(spread), what="all have run", deadline=60)
    assert dict(ran) == {doc: [2] for doc in range(6)}


def test_a_queue_of_another_shard_has_its_tickets_there(spread: Spread) -> None:
    """Another queue of that shard is as good; one elsewhere is refused with both names."""
    job = index("b-docs")
    job.perform_async(7, 1)
    job.set(queue="b-more").perform_async(7, 2)
    with pytest.raises(InvalidJob, match=r"'b-docs' is on the shard b: .*'other' on the shard d"):
        job.set(queue="other").perform_async(7, 3)
    assert [len(spread.payloads(part, "queue:b-docs")) for part in PARTS] == [1, 0, 0]
    url = spread.servers["b"].url
    with InProcessChild(url, queue="b-docs"), InProcessClock(url):
        wait_until(lambda: spread.payloads("b", "queue:b-more"), what="it is in its queue")
    with InProcessChild(url, queue="b-more"):
        wait_until(lambda: ran[7] and is_idle(spread, "b-more"), what="the end", deadline=60)
    assert ran[7] == [2]


def test_locks_are_listed_and_freed_over_all_parts(spread: Spread) -> None:
    job = index()
    jids = [job.perform_async(doc, 1) for doc in range(9)]
    found = {lock.jid: part for part in PARTS for lock in locks(part)}
    assert sorted(found) == sorted(jids)
    assert all(api.free_lock(jid, api.server(part)) for jid, part in found.items())
    assert [locks(part) for part in PARTS] == [[]] * 3


def test_a_ticket_does_not_move_to_another_shard(spread: Spread) -> None:
    """Its lock would stay behind."""
    index().perform_async(7, 1)
    [part] = [part for part in PARTS if spread.sizes()[part]]
    [entry] = list(api.Queue(QUEUE))
    with pytest.raises(forkq.ForkqError, match="shard"):
        entry.move("b-docs" if part != "b" else "other")
    assert spread.sizes()[part] == 1


def test_while_a_part_is_down_another_one_takes_its_jobs(spread: Spread) -> None:
    """That one knows nothing of the lock, so two may run; a queue of one shard has no other."""
    job = index()
    job.perform_async(7, 1)
    [part] = [part for part in PARTS if spread.sizes()[part]]
    spread.servers[part].stop()  # and forgets the first job
    assert job.perform_async(7, 2)
    assert job.perform_async(7, 3)
    if part != "default":
        with pytest.raises(ServerUnavailable):
            index(f"{part}-docs").perform_async(7, 1)
    spread.servers[part].start()
    index()
    with children(spread):
        wait_until(lambda: ran[7] and is_idle(spread), what="the end", deadline=60)
    assert dict(ran) == {7: [3]}
