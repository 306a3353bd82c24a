"""What the real clients send: UDP packets to a socket of the test."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from datadog.dogstatsd.base import DogStatsd
from redis import Redis
from statsd import StatsClient  # type: ignore[import-untyped]

import forkq
from forkq import middleware, registry, testing
from forkq.config.capsule import Kind
from forkq.contrib import runs, statsd
from tests.redis.in_process_child import InProcessChild
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("clean_process")


@pytest.fixture
def receiver() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(20)
        yield receiver


def lines(receiver: socket.socket, count: int) -> list[str]:
    """So many lines, without the figures of times."""
    found: list[str] = []
    while len(found) < count:
        found += receiver.recv(65536).decode().splitlines()
    return [re.sub(r":[\d.]+\|ms", ":N|ms", line) for line in found]


def run_three() -> None:
    """One job that is done, one that fails twice, and one whose failure has a rule."""

    @forkq.job(name="app.Ping", queue="e-mail:a:b")
    def ping() -> None:
        """Does nothing."""

    @forkq.job(name="app.Fails", retry=1)
    def fails() -> None:
        raise ValueError

    @forkq.job(name="app.Gone", retry_in=lambda count, error, job: forkq.DISCARD)
    def gone() -> None:
        raise LookupError

    with testing.fake() as jobs:
        for job in (ping, fails, gone):
            job.perform_async()
            jobs.drain(check=False)


def test_statsd(receiver: socket.socket) -> None:
    client = StatsClient("127.0.0.1", receiver.getsockname()[1])
    statsd.report(client)
    run_three()
    client.close()
    assert lines(receiver, 9) == [
        "forkq.jobs.app_Ping.done:1|c",
        "forkq.job.run.app_Ping:N|ms",
        "forkq.job.wait.e-mail_a_b:N|ms",
        "forkq.jobs.app_Fails.retried:1|c",
        "forkq.job.wait.default:N|ms",
        "forkq.jobs.app_Fails.dead:1|c",
        "forkq.job.wait.default:N|ms",
        "forkq.jobs.app_Gone.dropped:1|c",
        "forkq.job.wait.default:N|ms",
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(forkq.Snooze(30), "snoozed"), (forkq.Discard("old"), "discarded"), (forkq.Cancelled(), None)],
)
def test_outcomes_are_those_of_the_metrics(
    receiver: socket.socket, error: BaseException, outcome: str | None
) -> None:
    @forkq.job(name="app.Ping")
    def ping() -> None:
        raise error

    client = StatsClient("127.0.0.1", receiver.getsockname()[1])
    statsd.report(client)
    with pytest.raises(type(error)):
        middleware.server.run({"class": "app.Ping", "jid": "a"}, ping)
    client.close()
    assert lines(receiver, 1) == [f"forkq.jobs.app_Ping.{outcome or 'cancelled'}:1|c"]


def test_datadog(receiver: socket.socket) -> None:
    client = DogStatsd(host="127.0.0.1", port=receiver.getsockname()[1], disable_telemetry=True)
    statsd.report(client, prefix="shop")
    run_three()
    for handler in registry.handlers("exit"):
        handler()  # a client that buffers sends the rest
    client.stop()
    assert lines(receiver, 9)[:4] == [
        "shop.jobs:1|c|#class:app.Ping,outcome:done",
        "shop.job.run:N|ms|#class:app.Ping",
        "shop.job.wait:N|ms|#queue:e-mail_a_b",
        "shop.jobs:1|c|#class:app.Fails,outcome:retried",
    ]


def test_what_is_not_counted(receiver: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted job runs again; a class that the app does not have could be any."""

    @forkq.job(name="app.Ping")
    def ping() -> None:
        """Never run here."""

    def interrupted() -> None:
        raise forkq.Shutdown

    with closing(StatsClient("127.0.0.1", receiver.getsockname()[1])) as client:
        statsd.report(client)
        middleware.server.run({"class": "app.None"}, lambda: None)
        monkeypatch.setattr(runs, "stopping", lambda: True)
        with pytest.raises(forkq.Shutdown):
            middleware.server.run({"class": "app.Ping"}, interrupted)
        client.incr("the.end")
    assert lines(receiver, 1) == ["the.end:1|c"]


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_coroutines_that_run_at_once_are_counted_each_as_its_own(
    receiver: socket.socket, pushes_here: Redis, redis_server: Server, kind: Kind
) -> None:
    """By the class and end of each, also if they end in another order than they have begun."""
    gates, begun = [threading.Event() for _ in range(4)], list[int]()
    ends: list[Any] = [None, (ValueError, "no"), (forkq.Discard, "old"), (forkq.Snooze, 900)]

    async def until_its_turn(number: int) -> None:
        begun.append(number)
        while not gates[number].is_set():
            await asyncio.sleep(0.001)
        if ends[number] is not None:
            error, what = ends[number]
            raise error(what)

    for number in range(4):
        job = forkq.job(name=f"app.Load{number}", queue="mail", retry=0)(until_its_turn)
        job.perform_async(number)
    client = StatsClient("127.0.0.1", receiver.getsockname()[1])
    statsd.report(client)
    found: list[str] = []
    with closing(client), InProcessChild(redis_server.url, queue="mail", concurrency=4, kind=kind):
        wait_until(lambda: len(begun) == 4, what="all four at once")
        for number in (3, 1, 0, 2):
            gates[number].set()
            found += lines(receiver, 3 if number == 0 else 2)
    waited = "forkq.job.wait.mail:N|ms"
    assert found == [
        *("forkq.jobs.app_Load3.snoozed:1|c", waited),
        *("forkq.jobs.app_Load1.dead:1|c", waited),
        *("forkq.jobs.app_Load0.done:1|c", "forkq.job.run.app_Load0:N|ms", waited),
        *("forkq.jobs.app_Load2.discarded:1|c", waited),
    ]
