"""Faults of Redis and of the network beneath a running tree. During each, nothing spins and the log
stays short. After it, work goes on by itself, and no job is lost.

test_outage.py has a server that is stopped, frozen or full, and connections that are killed.
"""

from __future__ import annotations

import json
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
    push,
    push_many,
    title,
    wait_events,
    wait_settled,
)
from tests.redis.proxy import Proxy
from tests.redis.scrape import samples
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
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


def lose_a_right(server: Server) -> None:
    server.cli("ACL", "SETUSER", "least", "-evalsha")


def change_the_password(server: Server) -> None:
    server.cli("ACL", "SETUSER", "least", "resetpass", ">other")
    server.cli("CLIENT", "KILL", "USER", "least")


def become_a_replica(server: Server) -> None:
    server.cli("REPLICAOF", "127.0.0.1", 1)


def mend(server: Server) -> None:
    server.cli("REPLICAOF", "NO", "ONE")
    server.cli("ACL", "SETUSER", "least", "resetpass", ">x", "+evalsha")


def _refused(forkq: ForkqTree, name: str) -> str:
    """What Redis refuses to this child, in the words of ``forkq status --json``."""
    [found] = [str(one["refused"]) for one in forkq.status()["children"] if one["name"] == name]
    return found


@pytest.mark.parametrize(
    ("refuse", "said"),
    [
        (lose_a_right, "docs/redis.md of forkq lists the rights that it needs"),
        (become_a_replica, "it is a replica: give the address of the master"),
        (change_the_password, "give the right password"),
    ],
)
def test_what_redis_refuses_to_a_running_tree_is_told_with_the_remedy(
    own_server: Server,
    tree: StartTree,
    journal: Journal,
    refuse: Callable[[Server], None],
    said: str,
) -> None:
    """By status, its JSON and the master's title; a tree that gets no jobs is not ready. It is over
    when Redis permits it again."""
    own_server.cli("ACL", "SETUSER", "least", "on", ">x", "~*", "&*", "+@all")
    url = own_server.url.replace("redis://", "redis://least:x@")
    forkq = tree(url, app=APP, args=["-c", "2"], env=journal.env)
    assert forkq.run("status", "--ready").returncode == 0
    refuse(own_server)
    pushed = push_many(own_server, "Quick", [[0]]) if refuse is not become_a_replica else []
    # The clock may tell of it seconds before the child, which hears of it with its next beat.
    wait_until(lambda: said in _refused(forkq, "default.0"), what="the refusal in its JSON")
    assert said in forkq.run("status").stdout
    wait_until(lambda: said in title(psutil.Process(forkq.pid)), what="the master's title")
    check = forkq.run("status", "--ready")
    assert (check.returncode, said in check.stderr) == (1, True)
    mend(own_server)
    wait_until(lambda: said not in forkq.run("status").stdout, what="the end of the refusal")
    wait_until(lambda: forkq.run("status", "--ready").returncode == 0, what="readiness")
    journal.wait("end", pushed)
    assert forkq.stop() == 0


def test_records_and_metrics_tell_of_a_refusal(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """As long as the child may write its record."""
    own_server.cli("ACL", "SETUSER", "least", "on", ">x", "~*", "&*", "+@all")
    url = own_server.url.replace("redis://", "redis://least:x@")
    forkq = tree(url, app=APP, args=["-c", "2"], env=journal.env)
    lose_a_right(own_server)
    push(own_server, "Quick", 0)

    def told() -> bool:
        found = forkq.run("processes", "--json", "--redis", own_server.url).stdout
        return "lists the rights that it needs" in json.loads(found)["refused"]

    wait_until(told, every=0.2, what="the child's record")
    found = samples(own_server.url)
    [refused] = [value for (name, _), value in found.items() if name == "forkq_children_refused"]
    assert refused == 1
