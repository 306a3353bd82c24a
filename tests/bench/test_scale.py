"""Whether forkq stays the same from small to large: jobs queued, queues, size of a payload, jobs
that one child runs, children. And what a job costs Redis, beside Sidekiq."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import mean, median
from typing import Any

import pytest

import forkq as client_of_forkq
from forkq import default_client
from tests.bench.load import APP, PAYLOAD, drain, forkq, sidekiq, sidekiq_version
from tests.process.shared import pass_time
from tests.support.server import Server
from tests.support.tree import ForkqTree
from tests.support.waiting import wait_until
from tests.web.shared import client_of

pytestmark = pytest.mark.bench

DRAINED = 40_000
WATCHED = 20.0  # seconds of an idle tree
PROCESSORS = ("-c", "10")


def _fill(server: Server, jobs: int, payload: bytes = PAYLOAD, queues: int = 1) -> None:
    """Puts the jobs into the queue "default"; the other queues are known and empty."""
    with server.client() as client:
        client.flushall()
        client.sadd("queues", "default", *[f"q{number}" for number in range(1, queues)])
        for _ in range(jobs // 1000):
            client.lpush("queue:default", *[payload] * 1000)


def _drain(server: Server, jobs: int, left: int = 0) -> tuple[float, str]:
    """Jobs/s, and the CPU time for a job, which says more where other programs want the CPU."""
    with server.client() as client, forkq(server, *PROCESSORS) as child:

        def now() -> tuple[float, float, float]:
            user, system, *_ = child.cpu_times()
            return user + system, _cpu(client), -float(client.llen("queue:default"))

        before = now()
        rate = drain(server, jobs, left)
        of_child, of_redis, done = (b - a for a, b in zip(before, now(), strict=True))
    child_us, redis_us = of_child / done * 1e6, of_redis / done * 1e6
    return rate, f"CPU for a job: child {child_us:.1f} us, Redis {redis_us:.1f} us"


def test_the_depth_of_the_queue(server: Server) -> None:
    """Prints jobs/s while the queue is short, and while a million jobs are behind."""
    for depth in (0, 1_000_000) * 3:
        _fill(server, depth + DRAINED)
        rate, cpu = _drain(server, DRAINED, left=depth)
        print(f"\n{depth:,} jobs behind: {rate:,.0f} jobs/s, {cpu}", end="")
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
        rate, cpu = _drain(server, jobs)
        volume = rate * len(payload) / 1e6
        print(f"\n{len(payload):,} bytes: {rate:,.0f} jobs/s, {volume:,.0f} MB/s, {cpu}", end="")
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


@pytest.mark.parametrize("children", [1, 16, 64])
def test_the_number_of_children(server: Server, children: int) -> None:
    """Prints what a tree of so many children costs, and how quick the screens are beside it."""
    tree = ForkqTree(server, app=APP, args=("-w", str(children), *PROCESSORS))
    tree.fresh = True
    try:
        booted = _seconds(lambda: tree.start().wait_ready())
        found = [child.memory_full_info().pss for child in tree.children("forkq child")]
        assert len(found) == children
        idle = _commands_a_second(server)
        status = _seconds(partial(tree.run, "status"))
        busy = _seconds_of_a_page(server, "/busy")
        stopped = _seconds(tree.stop)
    finally:
        tree.close()
    print(
        f"\n{children} children: boot {booted:.2f} s, stop {stopped:.2f} s, "
        f"PSS of each {mean(found) / 1e6:.1f} MB, {idle:.1f} commands/s, "
        f"status {status:.2f} s, a page {busy * 1e3:.0f} ms",
        end="",
    )


def _seconds(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def _commands_a_second(server: Server) -> float:
    """While nothing is done."""
    with server.client() as client:
        pass_time(5)
        before = _figure(client, "stats", "total_commands_processed")
        pass_time(WATCHED)
        return (_figure(client, "stats", "total_commands_processed") - before) / WATCHED


def _seconds_of_a_page(server: Server, path: str) -> float:
    """The median of five loads of a page of the web UI; each asks Redis again."""
    client_of_forkq.configure(server.url)
    try:
        return median(_seconds(partial(_load, path)) for _ in range(5))
    finally:
        default_client.forget()


def _load(path: str) -> None:
    with client_of() as web:
        assert web.get(path).status_code == 200


def _figure(client: Any, section: str, name: str) -> float:
    return float(client.info(section)[name])


@pytest.mark.skipif(sidekiq_version() is None, reason="no Sidekiq: set SIDEKIQ_PATH")
def test_what_a_job_costs_redis(server: Server) -> None:
    """Prints the CPU time of Redis for a no-op job, forkq and Sidekiq in turn."""
    found: dict[str, list[float]] = {"forkq": [], "sidekiq": []}
    for _ in range(5):
        for name, program in (("forkq", partial(forkq, server, *PROCESSORS)),
                              ("sidekiq", partial(sidekiq, server, 10))):  # fmt: skip
            _fill(server, DRAINED)
            with server.client() as client:
                before = _cpu(client)
                with program():
                    wait_until(partial(_is_done, client), deadline=120, what="the end", every=0.05)
                    found[name].append((_cpu(client) - before) / DRAINED * 1e6)
    print(f"\nsidekiq {sidekiq_version()}")
    for name, all_runs in found.items():
        listed = ", ".join(f"{micros:.1f}" for micros in all_runs)
        print(f"{name}: {median(all_runs):.1f} us of Redis a job ({listed})")
    assert median(found["forkq"]) <= median(found["sidekiq"])


def _cpu(client: Any) -> float:
    """Seconds that Redis has used."""
    return sum(_figure(client, "cpu", name) for name in ("used_cpu_user", "used_cpu_sys"))


def _is_done(client: Any) -> bool:
    return not (client.llen("queue:default") or client.hlen("{queue:default}:inflight"))
