"""Invariants 3 and 4 beside a Redis that answers, but takes half a second for each answer."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.process.shared import APP, Journal, leased, measured, push_many, wait_events, workers
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import within

# Seconds an answer. The rescue's time-out is one second, and a busy machine needs a part of it.
SLOW = 0.5
CHILDREN = 8
BEYOND = 5.0  # what a stop may take beyond the time-out
ARGS = ["-w", str(CHILDREN), "-c", "1", "-t", "1", "--log-format", "json"]


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


def test_a_stop_is_in_time_and_takes_the_jobs_back(
    redis: Redis, proxy: Proxy, tree: StartTree, journal: Journal
) -> None:
    """With jobs in eight children that ignore it."""
    forkq = tree(proxy.url, app=APP, args=ARGS, env=journal.env)
    jids = push_many(proxy.url, "Stubborn", [[]] * CHILDREN)
    journal.wait("begin", jids)
    proxy.delay = SLOW
    began = time.monotonic()
    forkq.stop()
    spent = time.monotonic() - began
    measured(f"{CHILDREN} children that ignore a stop were gone after {spent:.1f} s")
    assert spent <= within(1 + BEYOND)
    forkq.assert_gone(deadline=0.5)
    assert leased(redis) == [], "one round trip takes all of them back"


def test_a_stop_after_many_deaths_is_obeyed_at_once(
    redis: Redis, proxy: Proxy, tree: StartTree, journal: Journal
) -> None:
    """The rescue of eight children does not keep the master from its signals."""
    forkq = tree(proxy.url, app=APP, args=ARGS, env=journal.env)
    jids = push_many(proxy.url, "Stubborn", [[]] * CHILDREN)
    journal.wait("begin", jids)
    proxy.delay = SLOW
    for child in workers(forkq):
        child.kill()
    wait_events(forkq, "child died", CHILDREN)
    began = time.monotonic()
    forkq.signal(signal.SIGTERM)
    wait_events(forkq, "stopping")
    spent = time.monotonic() - began
    measured(f"TERM was obeyed after {spent:.1f} s, beside {CHILDREN} children to be rescued")
    # A turn of the loop waits for one answer, which the proxy may pass on in two parts.
    assert spent < within(6 * SLOW)  # for eight children, one after the other, it would be 16
    forkq.wait()
    assert time.monotonic() - began <= spent + within(1 + BEYOND)
