"""The sweep: jobs of processes that vanished come back, and nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq import whereabouts
from forkq.clock.sweep import Sweep
from forkq.connection import Wire
from forkq.dead import Cemetery
from forkq.keys import Keys
from forkq.recovery import Crash, Recovered, Recovery
from forkq.times import now
from forkq.whereabouts import fate, here
from tests.redis.crew import Log
from tests.support.server import Server
from tests.support.waiting import wait_until

DEAD, ALIVE = "vm:1:dddddddddddd", "vm:2:aaaaaaaaaaaa"
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where a pid lives")


@pytest.fixture
def wire(redis: Redis, redis_server: Server) -> Iterator[Wire]:
    wire = Wire(redis_server.url)
    wire.connect()
    yield wire
    wire.close()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def sweep(wire: Wire, log: Log) -> Sweep:
    return Sweep(Keys(), wire, Recovery(Cemetery(Keys())), log)


def job(**keys: Any) -> str:
    return json.dumps({"class": "J", "args": [], "queue": "q", **keys})


def lease(redis: Redis, owner: str, *payloads: str, queue: str = "q") -> None:
    redis.sadd("queues", queue)
    for number, payload in enumerate(payloads, 1):
        redis.hset(f"{{queue:{queue}}}:inflight", f"{owner}/{number}", payload)


def record(redis: Redis, identity: str, place: str | None = None) -> None:
    redis.sadd("processes", identity)
    redis.hset(identity, items=["beat", now(), "info", "{}"])
    if place is not None:
        redis.set(Keys().place(identity), place)


def queued(redis: Redis, queue: str = "q") -> list[dict[str, Any]]:
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


@pytest.fixture
def grave() -> str:
    """Where a process lived that has ended and been reaped."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = here(process.pid)
    process.communicate()
    return place


@linux
def test_a_process_of_this_machine_that_ended_is_surely_dead(grave: str) -> None:
    assert fate(grave) == "dead"
    assert fate(here()) == "alive"


@linux
def test_a_pid_that_another_process_has_now_is_as_good_as_dead() -> None:
    place, _, started = here().rpartition("/")
    assert fate(f"{place}/{int(started) - 1}") == "dead"


@linux
def test_a_process_that_proc_hides_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid and ProtectProc hide the processes of other users; kill() tells that they live."""

    def hidden(pid: int) -> str:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    place = here()
    monkeypatch.setattr(whereabouts, "_started", hidden)
    assert fate(place) == "unknown"


@pytest.mark.parametrize(
    "place", ["", "x", "another-boot/pid:[1]/4242/1.00", "/", "a/b/c/d", "]/x/y"]
)
def test_a_place_elsewhere_says_nothing(place: str) -> None:
    assert fate(place) == "unknown"


@linux
def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place, stdin = here(process.pid), process.stdin
    assert stdin is not None
    stdin.close()
    status = psutil.Process(process.pid).status
    end = now() + 10
    while status() != psutil.STATUS_ZOMBIE:
        assert now() < end
    assert fate(place) == "dead"
    process.wait()


@linux
def test_jobs_of_a_dead_process_come_back_at_once_with_a_crash_record(
    sweep: Sweep, redis: Redis, grave: str, log: Log
) -> None:
    record(redis, DEAD, grave)
    lease(redis, DEAD, job(jid="1"), job(jid="2"))
    redis.lpush("queue:q", job(jid="new"))
    sweep.run()
    found = queued(redis)
    assert [entry["jid"] for entry in found] == ["1", "2", "new"]
    assert all("gone" in entry["forkq"]["crashes"][0]["reason"] for entry in found[:2])
    assert redis.exists("{queue:q}:inflight", DEAD) == 0
    assert redis.smembers("processes") == set()
    assert log.events() == ["jobs of a dead process recovered"]


def test_jobs_of_an_owner_without_a_record_come_back_when_it_is_missed_twice(
    sweep: Sweep, redis: Redis
) -> None:
    lease(redis, DEAD, job(jid="1"))
    sweep.run()
    assert queued(redis) == []
    sweep.run()
    [found] = queued(redis)
    assert found["forkq"]["crashes"][0]["reason"] == "host lost"
    assert redis.exists("{queue:q}:inflight") == 0


@linux
def test_an_owner_that_lives_here_keeps_its_jobs_though_it_cannot_beat(
    sweep: Sweep, redis: Redis
) -> None:
    """A job may hold the interpreter for minutes, or the child be stopped: it is not dead."""
    redis.set(Keys().place(ALIVE), here())
    lease(redis, ALIVE, job(jid="1"))
    for _ in range(3):
        sweep.run()
    assert queued(redis) == []


def test_a_queue_that_cannot_be_looked_at_keeps_no_other_from_it(
    sweep: Sweep, redis: Redis, log: Log
) -> None:
    redis.sadd("queues", b"\xff\xfe", "odd")
    redis.set("{queue:odd}:inflight", "no hash")
    lease(redis, DEAD, job(jid="1"))
    sweep.run()
    sweep.run()
    assert [entry["jid"] for entry in queued(redis)] == ["1"]
    assert log.events().count("queue left out of the sweep") == 2


def test_an_owner_that_beats_again_in_between_is_left_alone(sweep: Sweep, redis: Redis) -> None:
    lease(redis, ALIVE, job())
    sweep.run()
    record(redis, ALIVE)
    sweep.run()
    redis.delete(ALIVE)
    sweep.run()
    assert queued(redis) == []
    assert redis.hlen("{queue:q}:inflight") == 1


def test_the_living_keep_their_jobs_however_often_it_sweeps(
    sweep: Sweep, redis: Redis, log: Log
) -> None:
    record(redis, ALIVE, here())
    record(redis, "vm:3:bbbbbbbbbbbb", "another-boot/pid:[1]/4242/1.00")
    lease(redis, ALIVE, job(jid="1"))
    lease(redis, "vm:3:bbbbbbbbbbbb", job(jid="2"))
    for _ in range(3):
        sweep.run()
    assert queued(redis) == []
    assert redis.hlen("{queue:q}:inflight") == 2
    assert log.events() == []


def test_jobs_of_several_queues_go_back_to_their_own(sweep: Sweep, redis: Redis) -> None:
    lease(redis, DEAD, job(jid="a"), queue="a")
    lease(redis, DEAD, job(jid="b"), queue="b")
    sweep.run()
    sweep.run()
    assert [entry["jid"] for entry in queued(redis, "a")] == ["a"]
    assert [entry["jid"] for entry in queued(redis, "b")] == ["b"]


def test_two_sweeps_at_once_recover_each_job_once(
    sweep: Sweep, redis: Redis, wire: Wire, log: Log
) -> None:
    other = Sweep(Keys(), wire, Recovery(Cemetery(Keys())), log)
    lease(redis, DEAD, job(jid="1"))
    for each in (sweep, other, sweep, other):
        each.run()
    assert len(queued(redis)) == 1


def test_without_leases_there_is_nothing_to_do(sweep: Sweep, redis: Redis) -> None:
    sweep.run()
    redis.sadd("queues", "q")
    sweep.run()
    assert redis.keys("*") == [b"queues"]


# Recovery itself, as the master uses it too


def test_a_job_recovered_for_the_third_time_is_buried_with_the_reason(
    wire: Wire, redis: Redis
) -> None:
    recovery = Recovery(Cemetery(Keys()))
    lease(redis, DEAD, job(jid="bad"))
    for crash in range(1, 4):
        done = recovery.recover(wire, ["q"], DEAD, Crash(signal=11))
        assert done == Recovered(1, ["J bad"] if crash == 3 else [])
        if crash < 3:
            payload = redis.rpop("queue:q")
            assert isinstance(payload, bytes)
            lease(redis, DEAD, payload.decode())
    dead: Any = redis.zrange("dead", 0, -1)[0]
    assert json.loads(dead)["error_class"] == "forkq.errors.Crashed"
    assert queued(redis) == []
    assert redis.exists("{queue:q}:inflight") == 0


def test_a_graceful_requeue_is_no_crash(wire: Wire, redis: Redis) -> None:
    payloads = [job(jid="1"), "{nope"]
    lease(redis, DEAD, *payloads)
    assert Recovery(Cemetery(Keys())).requeue(wire, ["q"], DEAD) == Recovered(2, [])
    assert redis.lrange("queue:q", 0, -1)[::-1] == [payload.encode() for payload in payloads]


def test_malformed_payloads_are_recovered_as_they_are(wire: Wire, redis: Redis) -> None:
    lease(redis, DEAD, "{nope", "", job(jid="1"))
    assert Recovery(Cemetery(Keys())).recover(wire, ["q"], DEAD, Crash(signal=9)) == Recovered(
        3, []
    )
    assert redis.lrange("queue:q", 1, -1)[::-1] == [b"{nope", b""]


def test_forgetting_takes_the_whole_record_away(wire: Wire, redis: Redis) -> None:
    record(redis, DEAD)
    redis.hset(f"{DEAD}:work", "1", "{}")
    redis.lpush(f"{DEAD}-signals", "TSTP")
    Recovery(Cemetery(Keys())).forget(wire, DEAD)
    assert redis.dbsize() == 0


@linux
def test_a_name_cut_within_a_character_hides_no_process(request: pytest.FixtureRequest) -> None:
    """The kernel cuts a process's name at 15 bytes, wherever that falls."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import setproctitle as s; s.setproctitle('é' * 20); input()"],
        stdin=subprocess.PIPE,
    )
    request.addfinalizer(process.communicate)
    comm = Path(f"/proc/{process.pid}/comm")
    wait_until(lambda: comm.read_bytes().startswith("éé".encode()), what="its title")
    assert fate(here(process.pid)) == "alive"
    view = here().rpartition("]/")[0]
    assert fate(f"{view}]/x/1") == "unknown"
