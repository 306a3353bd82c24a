"""Faults of Redis and of the network beneath a running tree. During each, nothing spins and the log
stays short. After it, work goes on by itself, and no job is lost.

test_outage.py has a server that is stopped, frozen or full, and connections that are killed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest

from tests.process.shared import (
    APP,
    Journal,
    cpu_seconds,
    events,
    json_log,
    measured,
    pass_time,
    push_many,
    wait_events,
    wait_settled,
)
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until, within

ARGS = ["-c", "5", "--log-format", "json", "--log-level", "warning"]
LOST = "redis lost"
SECONDS = 4.0  # that a fault lasts


@pytest.fixture
def proxy(own_server: Server) -> Iterator[Proxy]:
    with Proxy(own_server.port) as proxy:
        yield proxy


@contextmanager
def paused_clients(server: Server, proxy: Proxy) -> Iterator[None]:
    """CLIENT PAUSE: the server reads no command."""
    server.cli("CLIENT", "PAUSE", int(SECONDS * 1000), "ALL")
    yield


def busy(server: Server, proxy: Proxy) -> AbstractContextManager[None]:
    """A script that runs for long: the server answers BUSY."""
    return server.busy()


@contextmanager
def loading(server: Server, proxy: Proxy) -> Iterator[None]:
    """A restart of a server that loads its data for some seconds."""
    for _ in range(2):
        server.cli("EVAL", "for i = 1, 5000 do redis.call('INCR', 'ballast') end", 0)
    server.stop()
    server._extra += ("--key-load-delay", str(int(SECONDS * 1e6 / 10_000)))
    server.start()
    yield


@contextmanager
def forgotten_scripts(server: Server, proxy: Proxy) -> Iterator[None]:
    """SCRIPT FLUSH, again and again."""
    ended = threading.Event()

    def flush() -> None:
        while not ended.wait(0.02):
            server.cli("SCRIPT", "FLUSH")

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        yield
    finally:
        ended.set()
        flusher.join()


@contextmanager
def half_replies(server: Server, proxy: Proxy) -> Iterator[None]:
    """Connections that end in the middle of a reply."""
    proxy.halves = True
    yield
    proxy.halves = False


@contextmanager
def latency(server: Server, proxy: Proxy) -> Iterator[None]:
    """Each reply is 200 ms late."""
    proxy.delay = 0.2
    yield
    proxy.delay = 0


@contextmanager
def no_more_clients(server: Server, proxy: Proxy) -> Iterator[None]:
    """maxclients is reached: the server takes no connection, after it has ended all."""
    client = server.client()
    client.config_set("maxclients", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    yield
    client.config_set("maxclients", 1000)


@contextmanager
def silent_partition(server: Server, proxy: Proxy) -> Iterator[None]:
    """Nothing passes, and no connection ends."""
    proxy.cut_off()
    yield
    proxy.restore()


Fault = Callable[[Server, Proxy], AbstractContextManager[None]]
FAULTS: list[Fault] = [
    paused_clients, busy, loading, forgotten_scripts, half_replies, latency, no_more_clients,
    silent_partition,
]  # fmt: skip
# Those that a tree can work through: they are no outage.
HARMLESS = (forgotten_scripts, latency)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.slow
def test_a_tree_works_on_after_a_fault(
    own_server: Server, proxy: Proxy, tree: StartTree, journal: Journal, fault: Fault
) -> None:
    """Jobs run before it, wait during it, and are pushed after it."""
    forkq = tree(proxy.url, app=APP, args=ARGS, env=journal.env)
    everyone = [psutil.Process(forkq.pid), *forkq.children()]
    jids = push_many(own_server, "Quick", [[0.05]] * 200)
    wait_until(lambda: len(journal.lines("end")) > 20, what="some jobs")
    used = cpu_seconds(everyone)
    with fault(own_server, proxy):
        pass_time(SECONDS)
    used = cpu_seconds(everyone) - used
    measured(f"{fault.__name__}: {used:.2f} s of processor time in {SECONDS:g} s")
    assert used < SECONDS / 2
    jids += push_many(own_server, "Quick", [[0.001]] * 50)
    wait_settled(own_server.client(), deadline=40)
    assert journal.jids("end") == set(jids)
    runs = journal.runs()
    assert all(len(runs[jid]) == 1 for jid in jids), "a job ran twice"
    assert [psutil.Process(forkq.pid), *forkq.children()] == everyone, "a process ended"
    told = Counter((line["pid"], line["event"]) for line in json_log(forkq))
    measured(f"{fault.__name__}: {dict(told)}")
    assert max(told.values(), default=0) <= 3, told
    assert sum(told.values()) <= 8, told
    assert not [event for _, event in told if "polling" in event], told
    if fault in HARMLESS:
        assert not events(forkq, LOST)
    assert "Traceback" not in forkq.log_text()
    assert forkq.stop() == 0


def test_a_silent_partition_is_noticed_by_who_waits(
    own_server: Server, proxy: Proxy, tree: StartTree, journal: Journal
) -> None:
    """Nothing is sent that a time-out could end: the child and the clock look by themselves."""
    forkq = tree(proxy.url, app=APP, args=ARGS, env=journal.env)
    redis = own_server.client()
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    pass_time(1)
    proxy.cut_off()
    began = time.monotonic()
    lines = wait_events(forkq, LOST, 2, deadline=30)
    spent = time.monotonic() - began
    measured(f"a silent partition was noticed by child and clock after {spent:.1f} s")
    assert len({line["pid"] for line in lines}) == 2
    assert spent < within(5)
    proxy.restore()
    jids = push_many(own_server, "Quick", [[0.001]] * 5)
    journal.wait("end", jids)
    assert len(events(forkq, LOST)) == 2
    assert forkq.stop() == 0
