"""Whether the rate stays the same from small to large: jobs queued, queues, size of a payload."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.load import PAYLOAD, drain, forkq
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.bench

DRAINED = 40_000
PROCESSORS = ("-c", "10")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(tcp=True).start()
    yield server
    server.close()


def _fill(server: Server, jobs: int, payload: bytes = PAYLOAD, queues: int = 1) -> None:
    """Puts the jobs into the queue "default"; the other queues are known and empty."""
    with server.client() as client:
        client.flushall()
        client.sadd("queues", "default", *[f"q{number}" for number in range(1, queues)])
        for _ in range(jobs // 1000):
            client.lpush("queue:default", *[payload] * 1000)


def test_the_depth_of_the_queue(server: Server) -> None:
    """Prints jobs/s while the queue is short, and while a million jobs are behind."""
    for depth in (0, 1_000_000, 0, 1_000_000):
        _fill(server, depth + DRAINED)
        with forkq(server, *PROCESSORS):
            rate = drain(server, DRAINED, left=depth)
        print(f"\n{depth:,} jobs behind: {rate:,.0f} jobs/s", end="")
        assert rate > 0


@pytest.mark.parametrize("names", ["", "q*"])
def test_the_number_of_queues(server: Server, names: str) -> None:
    """Prints jobs/s of a child that serves so many queues, all but one empty."""
    for queues in (1, 20, 200, 2000, 1):
        _fill(server, DRAINED, queues=queues)
        served = [names] if names else [f"q{number}" for number in range(1, queues)]
        options = [part for name in ("default", *served) for part in ("-q", name)]
        with forkq(server, *PROCESSORS, *options):
            rate = drain(server, DRAINED)
        print(f"\n{queues:,} queues{' by pattern' * bool(names)}: {rate:,.0f} jobs/s", end="")
        assert rate > 0


def test_the_size_of_a_payload(server: Server) -> None:
    """Prints jobs/s and MB/s by the size of the only argument."""
    for size in (1, 1_000, 10_000, 100_000, 1):
        jobs = min(DRAINED, 400_000_000 // (size + len(PAYLOAD)) // 1000 * 1000)
        payload = PAYLOAD.replace(b"[1]", b'["' + b"x" * size + b'"]')
        _fill(server, jobs, payload)
        with forkq(server, *PROCESSORS):
            rate = drain(server, jobs)
        print(
            f"\n{len(payload):,} bytes: {rate:,.0f} jobs/s, {rate * len(payload) / 1e6:,.0f} MB/s",
            end="",
        )
        assert rate > 0


def test_the_memory_of_a_child_over_many_jobs(server: Server) -> None:
    """Prints the memory (USS) of a child after each million of jobs."""
    with forkq(server, *PROCESSORS) as child:
        grown = []
        for million in range(5):
            for _ in range(10):
                _fill(server, 100_000)
                with server.client() as client:
                    wait_until(
                        lambda: not client.llen("queue:default"),
                        deadline=120,
                        what="an empty queue",
                    )
            memory = child.memory_full_info()
            grown.append(memory.uss / 1e6)
            resident = memory.rss / 1e6
            print(f"\n{million + 1} million: USS {grown[-1]:.1f}, RSS {resident:.1f} MB", end="")
    assert grown[-1] < grown[0] * 1.05
