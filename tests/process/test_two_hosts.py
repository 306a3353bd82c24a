"""Two hosts on one Redis, each in a pid namespace of its own, so that neither sees the other's
processes: one dies, is cut off and comes back, or is only silent.

A minute without a heartbeat is not waited for here: what would have expired is made to.
tests/bench/test_lost_host.py takes the real time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.wire.keys import Keys
from tests.process.shared import (
    APP,
    Journal,
    leased,
    payloads,
    push,
    wait_events,
    wait_settled,
    workers,
)
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
# How long a clock may take that has just come: 20 s until it calls a host lost, and a sweep.
GIVEN_UP = 40.0
LOST, RECOVERED = "lease lost: others were given the job", "jobs of a lost host recovered"
INFLIGHT = "{queue:default}:inflight"
LONG = """

@forkq.job(name="Long")
def long(folder: str) -> None:
    record("begin")
    lost = False
    while not Path(folder, os.environ["FORKQ_TEST_HOST"]).exists():
        if forkq.current_job().lease_lost and not lost:
            lost = True
            record("lost")
        time.sleep(_SLICE)
    record("end")
"""


def namespace_obstacle() -> str:
    """Why there can be no two hosts here; "" if there can."""
    if shutil.which("unshare") is None:
        return "no unshare(1) on this machine: `make test-deps`"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"{tried.stderr.strip()}: run the tests as root" if tried.returncode else ""


REASON = namespace_obstacle()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"no pid namespace to be had: {REASON}")


class Host(ForkqTree):
    """A tree that is alone with its processes."""

    wrapper = UNSHARE

    @property
    def pid(self) -> int:
        """The master's pid as seen from here; inside it is 1."""
        inside = psutil.Process(self.process.pid).children()
        return inside[0].pid if inside else self.process.pid

    def status(self) -> dict[str, Any]:
        """The master's status, in which its pid is that of its own namespace."""
        for path in self.runtime.glob("**/*.status.json"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found: dict[str, Any] = json.loads(path.read_bytes())
                return found
        return {}

    def signal(self, number: signal.Signals) -> None:
        """To the master, not to unshare."""
        os.kill(self.pid, number)

    def lose_power(self) -> None:
        """Kills all of its processes at once: none is left to rescue jobs or to delete records."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def view(self) -> str:
        """How its processes are seen: boot and pid namespace."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path(f'/proc/{self.pid}/ns/pid').readlink()}"


@pytest.fixture
def far(redis_server: Server, journal: Journal) -> Iterator[Host]:
    """The other host; it reaches Redis directly."""
    host = make_far(redis_server.url, journal)
    yield host
    host.close()


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def cut_off(proxy: Proxy, journal: Journal) -> Iterator[Host]:
    """The other host; it reaches Redis through a network that may be cut in two."""
    host = make_far(proxy.url, journal)
    yield host
    host.close()


def make_far(url: str, journal: Journal) -> Host:
    args = ["-c", "1", "--log-format", "json"]
    env = {**journal.env, "FORKQ_TEST_HOST": "far"}
    config = "[redis]\ntimeout = 1\n"
    return Host(url, app=APP.read_text() + LONG, config=config, args=args, env=env)


def start_near(tree: StartTree, server: Server, journal: Journal) -> ForkqTree:
    """The host that stays."""
    args = ["-c", "1", "--log-format", "json"]
    env = {**journal.env, "FORKQ_TEST_HOST": "near"}
    return tree(server, app=APP.read_text() + LONG, args=args, env=env)


def begin_long_job(server: Server, journal: Journal) -> tuple[str, Path]:
    """A job that runs on each host until a file with the host's name is in that folder."""
    folder = journal.path.parent
    jid = push(server, "Long", str(folder))
    journal.wait("begin", [jid])
    return jid, folder


def owners(redis: Redis) -> set[str]:
    """Who holds leases."""
    leases: Any = redis.hkeys(INFLIGHT)
    return {lease.decode().rpartition("/")[0] for lease in leases}


def owner(redis: Redis) -> str:
    """Who holds the only lease."""
    [found] = owners(redis)
    return found


def wait_known(redis: Redis, identity: str) -> None:
    """Until that child has written its first heartbeat."""
    wait_until(
        lambda: redis.exists(identity, Keys().process_ref(identity)) == 2,
        what=f"a beat of {identity}",
    )


def wait_run_again(journal: Journal, jid: str) -> None:
    """Until a job has begun a second time, on the host that stays."""
    wait_until(lambda: len(journal.runs()[jid]) == 2, deadline=GIVEN_UP, what="a second run")


def expire_record(redis: Redis, identity: str, view: str = "") -> None:
    """For that child's record, and for the word of its host's clock."""
    redis.delete(identity)
    if view:
        redis.delete(Keys().host(view))


def test_the_jobs_of_a_host_that_lost_its_power_run_elsewhere(
    redis_server: Server, redis: Redis, far: Host, tree: StartTree, journal: Journal
) -> None:
    """First of all, and each tells why it runs again."""
    far.start().wait_ready()
    jid, folder = begin_long_job(redis_server, journal)
    other = push(redis_server, "Quick", 0.001)
    dead = owner(redis)
    wait_known(redis, dead)
    view = far.view
    far.lose_power()
    expire_record(redis, dead, view)
    near = start_near(tree, redis_server, journal)
    wait_run_again(journal, jid)
    running: Any = redis.hvals(INFLIGHT)
    [job] = map(json.loads, running)
    assert job["jid"] == jid
    assert [crash["reason"] for crash in job["forkq"]["crashes"]] == ["host lost"]
    (folder / "near").touch()
    journal.wait("end", [jid, other])
    wait_settled(redis)
    [line] = wait_events(near, RECOVERED)
    assert (line["owner"], line["jobs"]) == (dead, 1)
    wait_until(lambda: redis.scard("processes") == 1, what="the dead to be struck off")
    assert near.stop() == 0


def test_a_host_that_was_cut_off_and_comes_back_changes_nothing(
    redis_server: Server,
    redis: Redis,
    proxy: Proxy,
    cut_off: Host,
    tree: StartTree,
    journal: Journal,
) -> None:
    """Its job may ask, its late acknowledgement does nothing, and it says what ran twice."""
    cut_off.start().wait_ready()
    jid, folder = begin_long_job(redis_server, journal)
    lost = owner(redis)
    wait_known(redis, lost)
    proxy.cut_off()
    expire_record(redis, lost, cut_off.view)
    near = start_near(tree, redis_server, journal)
    wait_run_again(journal, jid)
    assert journal.jids("lost") == set()
    proxy.restore()
    journal.wait("lost", [jid], deadline=20)
    (folder / "far").touch()
    [line] = wait_events(cut_off, "ran on two hosts")
    assert line["job"] == f"Long {jid}"
    wait_until(lambda: redis.get(Keys().ran_twice) == b"1", deadline=15, what="the count")
    shown = wait_until(
        lambda: (
            (text := near.run("find", jid, "--redis", redis_server.url).stdout)
            and "ran_twice" in text
            and text
        ),
        what="the note",
    )
    assert f"also in {lost}, which was cut off from Redis" in str(shown)
    assert leased(redis) == [jid], "the late acknowledgement took the other host's lease"
    assert owner(redis) != lost
    (folder / "near").touch()
    wait_settled(redis)
    assert [line.event for line in journal.lines()] == ["begin", "begin", "lost", "end", "end"]
    assert not payloads(redis, "retry") + payloads(redis, "dead")
    assert redis.exists(Keys().lost(lost)) == 0
    wait_until(lambda: redis.scard("processes") == 2, what="both on the list of processes")
    assert (near.stop(), cut_off.stop()) == (0, 0)
    assert redis.get(Keys().ran_twice) == b"1"
    assert len(wait_events(cut_off, LOST)) == len(wait_events(cut_off, "ran on two hosts")) == 1


def test_a_child_that_cannot_beat_keeps_its_job_while_its_host_is_there(
    redis_server: Server, redis: Redis, far: Host, tree: StartTree, journal: Journal
) -> None:
    """Stopped, or in a call into C that holds the interpreter: that host's clock vouches for it."""
    far.start().wait_ready()
    jid, folder = begin_long_job(redis_server, journal)
    silent = owner(redis)
    wait_known(redis, silent)
    [child] = workers(far)
    child.suspend()
    expire_record(redis, silent)
    near = start_near(tree, redis_server, journal)
    [line] = wait_events(near, "no heartbeat, but its host is there", deadline=GIVEN_UP)
    assert line["owner"] == silent
    assert owner(redis) == silent
    child.resume()
    (folder / "far").touch()
    wait_settled(redis)
    assert [line.event for line in journal.lines() if line.jid == jid] == ["begin", "end"]
    assert (near.stop(), far.stop()) == (0, 0)
