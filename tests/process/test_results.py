"""Results while children are killed: who waits hears of the run that has ended, and of no other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

import forkq
from forkq import default_client
from tests.process.shared import wait_settled
from tests.support.server import Server
from tests.support.tree import StartTree

APP = Path(__file__).with_name("results_app.py")
SOON = 60.0  # seconds
ROUND, KILLS = 60, 4


@pytest.fixture
def client(redis_server: Server) -> Iterator[forkq.Client]:
    """The client of this process, over which it waits."""
    client = forkq.Client(redis_server.url)
    before = default_client.swap(client)
    yield client
    client.close()
    default_client.swap(before)


def test_children_that_are_killed_before_in_and_after_a_job_leave_no_waiter_without_an_answer(
    redis: Redis, redis_server: Server, client: forkq.Client, tree: StartTree, tmp_path: Path
) -> None:
    running = tree(redis_server, app=APP, args=["-w", "2", "-c", "4", "--log-level", "warning"])

    def push(name: str, *args: Any) -> str:
        jid = client.push({"class": name, "args": [*args], "forkq": {"needs": {"result_ttl": 600}}})
        assert jid
        return jid

    # In the job: its second run answers; one that dies each time is dead, and says so.
    once, always = push("Once", str(tmp_path / "runs")), push("Always")
    assert psutil.pid_exists(forkq.result(once, SOON))
    with pytest.raises(forkq.JobFailed) as caught:
        forkq.result(always, SOON)
    assert (caught.value.outcome, caught.value.error_class) == ("dead", "forkq.errors.Crashed")
    # After it, and before others that the same child had.
    jids: list[str] = []
    found: list[list[int]] = []
    with ThreadPoolExecutor(ROUND) as pool:
        for _ in range(KILLS):
            more = [push("Square", len(jids) + number) for number in range(ROUND)]
            waits = [pool.submit(forkq.result, jid, SOON) for jid in more]
            with suppress(psutil.NoSuchProcess):  # it was killed in the round before
                psutil.Process(waits[0].result()[2]).kill()
            jids, found = jids + more, found + [wait.result() for wait in waits]
    assert [each[:2] for each in found] == [
        [number, number * number] for number in range(len(jids))
    ]
    wait_settled(redis)
    assert [forkq.result(jid, 0) for jid in jids] == found  # no second run has changed it
    assert all(redis.pttl(key) > 0 for key in redis.scan_iter("forkq:result:*"))
    assert running.stop() == 0
