"""The sweep: it recovers the jobs of dead processes and lost hosts, and no other jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.clock.sweep import Sweep
from forkq.runtime import liveness
from forkq.runtime.liveness import liveness_of, pid_scope, pid_scope_of, process_ref
from forkq.store.connection import RedisConnection, ResponseError
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovered, Recovery
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.times import now
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

DEAD, ALIVE = "vm:1:dddddddddddd", "vm:2:aaaaaaaaaaaa"
DEAD_SOLO = "vm:1:solodddddddd"  # it ran one suspect, alone
PID_SCOPE = "another-boot/pid:[1]"
ELSEWHERE = f"{PID_SCOPE}/4242/100"
# Seconds for which a clock that has started, or finds Redis back, calls no host lost.
SETTLING = 20
# Seconds between two looks: longer than the interval of a heartbeat, shorter than the sweep's.
SECOND_LOOK = 12
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells where a pid lives: test on Linux"
)


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


class Time:
    """The monotonic clock of a sweep; only ``advance`` moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float, *sweeps: Sweep) -> None:
        """Advances the time, and runs each of ``sweeps`` whenever it is due."""
        end, due = self.now + seconds, [self.now] * len(sweeps)
        while min(due, default=end) < end:
            self.now, next_one = min((at, number) for number, at in enumerate(due))
            due[next_one] = self.now + sweeps[next_one].run()
        self.now = end


@pytest.fixture
def time() -> Time:
    return Time()


def make_sweep(connection: RedisConnection, log: RecordedLog, time: Time) -> Sweep:
    return Sweep(Keys(), connection, Recovery(DeadSetLimits(Keys())), log, time)


@pytest.fixture
def sweep(connection: RedisConnection, log: RecordedLog, time: Time) -> Sweep:
    return make_sweep(connection, log, time)


@pytest.fixture
def settled_sweep(sweep: Sweep, time: Time) -> Sweep:
    """A sweep that trusts missing records, because it has run for a while."""
    time.advance(SETTLING + 1, sweep)
    return sweep


def job(**keys: Any) -> str:
    return json.dumps({"class": "J", "args": [], "queue": "q", **keys})


def lease(redis: Redis, owner: str, *payloads: str, queue: str = "q") -> None:
    redis.sadd("queues", queue)
    for number, payload in enumerate(payloads, 1):
        redis.hset(f"{{queue:{queue}}}:inflight", f"{owner}/{number}", payload)


def record(redis: Redis, identity: str, process_ref: str | None = None) -> None:
    redis.sadd("processes", identity)
    redis.hset(identity, items=["beat", now(), "info", "{}"])
    if process_ref is not None:
        redis.set(Keys().process_ref(identity), process_ref)


def queued(redis: Redis, queue: str = "q") -> list[dict[str, Any]]:
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


SUSPECTS = Keys().suspects("q")


def suspects(redis: Redis) -> list[dict[str, Any]]:
    """The jobs that wait to run alone, the next one first."""
    found: Any = redis.lrange(SUSPECTS, 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


@pytest.fixture
def dead_ref() -> str:
    """The process_ref of a process that has ended and was reaped."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ref = process_ref(process.pid)
    process.communicate()
    return ref


@linux
def test_a_process_of_this_host_that_ended_is_dead(dead_ref: str) -> None:
    assert liveness_of(dead_ref) == "dead"
    assert liveness_of(process_ref()) == "alive"


@linux
def test_a_process_whose_pid_was_reused_is_dead() -> None:
    ref, _, started = process_ref().rpartition("/")
    assert liveness_of(f"{ref}/{int(started) - 1}") == "dead"


@linux
def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid and ProtectProc hide the processes of other users; kill() tells that they live."""

    def hidden(pid: int) -> str:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    place = process_ref()
    monkeypatch.setattr(liveness, "_start_time", hidden)
    assert liveness_of(place) == "unknown"


@pytest.mark.parametrize(
    "ref", ["", "x", "another-boot/pid:[1]/4242/1.00", "/", "a/b/c/d", "]/x/y"]
)
def test_the_liveness_of_a_process_elsewhere_is_unknown(ref: str) -> None:
    assert liveness_of(ref) == "unknown"


def test_a_process_ref_contains_its_pid_scope() -> None:
    assert pid_scope_of(ELSEWHERE) == PID_SCOPE
    assert pid_scope_of(process_ref()) == pid_scope()
    assert [pid_scope_of(ref) for ref in ("", "x", "]/1/2", "a/b/c")] == [""] * 4


@linux
def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ref, stdin = process_ref(process.pid), process.stdin
    assert stdin is not None
    stdin.close()
    status = psutil.Process(process.pid).status
    end = now() + 10
    while status() != psutil.STATUS_ZOMBIE:
        assert now() < end
    assert liveness_of(ref) == "dead"
    process.wait()


@linux
def test_jobs_of_a_dead_process_are_recovered_at_once_with_a_crash_record(
    sweep: Sweep, redis: Redis, dead_ref: str, log: RecordedLog
) -> None:
    record(redis, DEAD, dead_ref)
    lease(redis, DEAD, job(jid="1"), job(jid="2"))
    redis.lpush("queue:q", job(jid="new"))
    sweep.run()
    found = queued(redis)
    assert [entry["jid"] for entry in found] == ["1", "2", "new"]
    assert all("gone" in entry["forkq"]["crashes"][0]["reason"] for entry in found[:2])
    assert redis.exists("{queue:q}:inflight", DEAD) == 0
    assert redis.smembers("processes") == set()
    assert log.events() == ["jobs of a dead process recovered"]


@linux
def test_the_master_of_a_dead_child_may_rescue_its_jobs_first(
    settled_sweep: Sweep, redis: Redis, time: Time, dead_ref: str
) -> None:
    """The master knows how its child died."""
    lease(redis, DEAD, job(jid="a"))
    record(redis, DEAD, dead_ref)
    pause = settled_sweep.run()
    assert (queued(redis), pause) == ([], 3.0)
    time.now += pause
    settled_sweep.run()
    assert [found["jid"] for found in queued(redis)] == ["a"]


@linux
@pytest.mark.parametrize("is_first", [True, False])
def test_a_master_that_lives_has_longer_and_its_tree_has_not_died(
    sweep: Sweep, redis: Redis, time: Time, dead_ref: str, is_first: bool
) -> None:
    """Redis may be slow, and the clock may have died with the child: the next one looks at once."""
    if not is_first:
        sweep.run()
    lease(redis, DEAD, job(jid="a"))
    record(redis, DEAD, f"{dead_ref} {process_ref()}")
    for _ in range(10):
        assert sweep.run() == pytest.approx(3.0)
        assert (queued(redis), suspects(redis)) == ([], [])
        time.now += 3.0
    sweep.run()
    [found] = suspects(redis)
    [crash] = found["forkq"]["crashes"]
    assert ("tree" in crash, crash["reason"]) == (False, "its master could not return its jobs")


@linux
def test_a_master_that_dies_meanwhile_is_not_waited_for(
    settled_sweep: Sweep, redis: Redis, time: Time, dead_ref: str
) -> None:
    lease(redis, DEAD, job(jid="a"))
    master = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record(redis, DEAD, f"{dead_ref} {process_ref(master.pid)}")
    time.now += settled_sweep.run()
    assert settled_sweep.run() == pytest.approx(3.0)
    assert queued(redis) == []
    master.communicate()
    settled_sweep.run()
    [found] = queued(redis)
    assert found["forkq"]["crashes"][0]["tree"]


def test_jobs_of_an_owner_whose_record_is_missing_twice_are_recovered(
    settled_sweep: Sweep, redis: Redis, time: Time, log: RecordedLog
) -> None:
    redis.sadd("processes", DEAD)
    lease(redis, DEAD, job(jid="1"))
    again = settled_sweep.run()
    assert 10 < again <= SECOND_LOOK
    time.now += again - 0.5
    assert settled_sweep.run() <= 0.6
    assert queued(redis) == []
    time.now += 0.6
    settled_sweep.run()
    [found] = queued(redis)
    assert found["forkq"]["crashes"][0]["reason"] == "host lost"
    assert redis.exists("{queue:q}:inflight", "processes") == 0
    assert log.events() == ["jobs of a lost host recovered"]


def test_the_next_sweep_comes_when_the_next_record_could_expire(
    settled_sweep: Sweep, redis: Redis
) -> None:
    """So the clock finds a lost host soon after its record has expired."""
    lease(redis, ALIVE, job())
    record(redis, ALIVE, ELSEWHERE)
    assert settled_sweep.run() == 15
    redis.pexpire(ALIVE, 3000)
    assert 1 < settled_sweep.run() <= 3
    redis.pexpire(ALIVE, 60_000)
    assert settled_sweep.run() == 15


def test_a_lost_host_finds_a_note_of_its_recovered_jobs_and_its_process_ref(
    settled_sweep: Sweep, redis: Redis, time: Time
) -> None:
    redis.set(Keys().process_ref(DEAD), ELSEWHERE)
    lease(redis, DEAD, job(jid="1"), "{nope")
    time.advance(SECOND_LOOK + 1, settled_sweep)
    note = Keys().lost(DEAD)
    assert redis.hgetall(note) == {b"1": b"J 1", b"2": b"malformed payload"}
    assert 86_000 < redis.ttl(note) <= 86_400
    assert redis.get(Keys().process_ref(DEAD)) == ELSEWHERE.encode()


@linux
def test_a_dead_process_gets_no_note(sweep: Sweep, redis: Redis, dead_ref: str) -> None:
    record(redis, DEAD, dead_ref)
    lease(redis, DEAD, job())
    sweep.run()
    assert len(queued(redis)) == 1
    assert redis.exists(Keys().lost(DEAD)) == 0


def test_a_silent_owner_keeps_its_jobs_while_a_clock_watches_its_host(
    settled_sweep: Sweep, redis: Redis, time: Time, log: RecordedLog
) -> None:
    """A call into C may block heartbeats for minutes; that clock can see that the process lives."""
    redis.set(Keys().host(PID_SCOPE), "watched", ex=45)
    redis.set(Keys().process_ref(ALIVE), ELSEWHERE)
    lease(redis, ALIVE, job(jid="1"))
    time.advance(300, settled_sweep)
    assert queued(redis) == []
    assert log.events() == ["no heartbeat, but its host is there"]
    redis.pexpire(Keys().host(PID_SCOPE), 2500)
    assert settled_sweep.run() <= 2.5
    redis.delete(Keys().host(PID_SCOPE))
    settled_sweep.run()
    assert len(queued(redis)) == 1


@linux
def test_every_clock_notes_that_it_watches_its_pid_scope(sweep: Sweep, redis: Redis) -> None:
    sweep.run()
    assert 40 < redis.ttl(Keys().host(pid_scope())) <= 60


@linux
def test_our_own_note_does_not_protect_a_process_that_we_cannot_see(
    settled_sweep: Sweep, redis: Redis, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process of our own pid scope that /proc hides, the record is all that we know."""
    monkeypatch.setattr(liveness, "_is_gone", lambda pid: False)
    redis.set(Keys().process_ref(DEAD), f"{pid_scope()}/{2**30}/1")
    lease(redis, DEAD, job())
    time.advance(SECOND_LOOK + 1, settled_sweep)
    assert len(queued(redis)) == 1


# When Redis or the clock failed, and not the owner


def test_a_clock_that_has_just_started_calls_no_host_lost(
    sweep: Sweep, redis: Redis, time: Time
) -> None:
    """Redis may just be back, too; other processes may need a moment longer to reach it."""
    lease(redis, DEAD, job())
    time.advance(SETTLING - 1, sweep)
    assert queued(redis) == []
    time.advance(2, sweep)
    assert len(queued(redis)) == 1


def forget_what_expires(redis: Redis) -> None:
    """As a server does that comes back with old data, or whose wall clock jumps."""
    for key in redis.scan_iter():
        if redis.ttl(key) >= 0:
            redis.delete(key)


@pytest.mark.parametrize("another_clock", [False, True])
def test_a_server_that_lost_all_records_costs_no_live_owner_its_jobs(
    settled_sweep: Sweep,
    connection: RedisConnection,
    log: RecordedLog,
    redis: Redis,
    time: Time,
    another_clock: bool,
) -> None:
    """The owners send heartbeats again soon. Another clock of this host, which may notice the loss
    first, changes nothing."""
    other = make_sweep(connection, log, time)
    sweeps = [other, settled_sweep] if another_clock else [settled_sweep]
    time.advance(SETTLING + 1, *sweeps)
    lease(redis, ALIVE, job())
    record(redis, ALIVE, ELSEWHERE)
    redis.expire(ALIVE, 60)
    time.advance(40, *sweeps)
    forget_what_expires(redis)
    assert redis.exists(ALIVE) == 0
    time.advance(SETTLING - 1, *sweeps)
    assert redis.hlen("{queue:q}:inflight") == 1
    record(redis, ALIVE)
    time.advance(60, *sweeps)
    assert redis.hlen("{queue:q}:inflight") == 1


def test_a_clock_that_was_cut_off_itself_calls_no_host_lost(
    settled_sweep: Sweep, redis: Redis, time: Time
) -> None:
    """Other processes may not have reached Redis either. A look before the gap does not count."""
    lease(redis, DEAD, job())
    settled_sweep.run()
    time.now += 31
    time.advance(SETTLING - 1, settled_sweep)
    assert queued(redis) == []
    time.advance(2, settled_sweep)
    assert len(queued(redis)) == 1


def test_two_clocks_of_a_host_accept_the_same_mark(
    settled_sweep: Sweep, connection: RedisConnection, log: RecordedLog, redis: Redis, time: Time
) -> None:
    other = make_sweep(connection, log, time)
    time.advance(SETTLING + 1, settled_sweep, other)
    lease(redis, DEAD, job())
    time.advance(SECOND_LOOK + 1, settled_sweep)
    assert len(queued(redis)) == 1


def test_jobs_are_recovered_on_a_full_server(log: RecordedLog, time: Time) -> None:
    server = Server().start()
    try:
        redis, connection = server.client(), RedisConnection(server.url)
        connection.connect()
        lease(redis, DEAD, job())
        server.cli("CONFIG", "SET", "maxmemory", "1")
        time.advance(SETTLING + 1, make_sweep(connection, log, time))
        assert len(queued(redis)) == 1
        assert redis.hlen(Keys().lost(DEAD)) == 1
        connection.close()
    finally:
        server.close()


def test_an_owner_that_has_just_returned_stays_on_the_list_of_processes(
    connection: RedisConnection, redis: Redis
) -> None:
    record(redis, ALIVE)
    Recovery(DeadSetLimits(Keys())).remove_from_processes(connection, ALIVE)
    assert redis.smembers("processes") == {ALIVE.encode()}
    redis.delete(ALIVE)
    Recovery(DeadSetLimits(Keys())).remove_from_processes(connection, ALIVE)
    assert redis.smembers("processes") == set()


@linux
def test_an_owner_that_lives_on_this_host_keeps_its_jobs_without_a_heartbeat(
    settled_sweep: Sweep, redis: Redis, time: Time
) -> None:
    """A job may block heartbeats for minutes, or the child is stopped: it is not dead."""
    redis.set(Keys().process_ref(ALIVE), process_ref())
    lease(redis, ALIVE, job(jid="1"))
    time.advance(60, settled_sweep)
    assert queued(redis) == []


def test_a_queue_that_cannot_be_read_does_not_stop_the_sweep_of_others(
    settled_sweep: Sweep, redis: Redis, time: Time, log: RecordedLog
) -> None:
    redis.sadd("queues", b"\xff\xfe", "odd")
    redis.set("{queue:odd}:inflight", "no hash")
    lease(redis, DEAD, job(jid="1"))
    time.advance(SECOND_LOOK + 1, settled_sweep)
    assert [entry["jid"] for entry in queued(redis)] == ["1"]
    assert log.events().count("queue left out of the sweep") == 2


def test_an_owner_that_sends_a_heartbeat_between_two_looks_keeps_its_jobs(
    settled_sweep: Sweep, redis: Redis, time: Time
) -> None:
    lease(redis, ALIVE, job())
    time.advance(SECOND_LOOK - 1, settled_sweep)
    record(redis, ALIVE)
    time.advance(20, settled_sweep)
    redis.delete(ALIVE)
    time.advance(SECOND_LOOK - 1, settled_sweep)
    assert queued(redis) == []
    assert redis.hlen("{queue:q}:inflight") == 1


def test_live_owners_keep_their_jobs_in_every_sweep(
    settled_sweep: Sweep, redis: Redis, time: Time, log: RecordedLog
) -> None:
    record(redis, ALIVE, process_ref())
    record(redis, "vm:3:bbbbbbbbbbbb", ELSEWHERE)
    lease(redis, ALIVE, job(jid="1"))
    lease(redis, "vm:3:bbbbbbbbbbbb", job(jid="2"))
    time.advance(100, settled_sweep)
    assert queued(redis) == []
    assert redis.hlen("{queue:q}:inflight") == 2
    assert log.events() == []


def test_jobs_of_several_queues_go_back_to_their_own_queues(
    settled_sweep: Sweep, redis: Redis, time: Time
) -> None:
    lease(redis, DEAD, job(jid="a"), queue="a")
    lease(redis, DEAD, job(jid="b"), queue="b")
    time.advance(SECOND_LOOK + 1, settled_sweep)
    assert [entry["jid"] for entry in queued(redis, "a")] == ["a"]
    assert [entry["jid"] for entry in queued(redis, "b")] == ["b"]


def test_two_sweeps_at_once_recover_each_job_once(
    sweep: Sweep, redis: Redis, time: Time, connection: RedisConnection, log: RecordedLog
) -> None:
    lease(redis, DEAD, job(jid="1"))
    time.advance(60, sweep, make_sweep(connection, log, time))
    assert len(queued(redis)) == 1


def test_without_leases_there_is_nothing_to_do(sweep: Sweep, redis: Redis) -> None:
    sweep.run()
    redis.sadd("queues", "q")
    assert sweep.run() == 15
    assert set(redis.keys("*")) == {b"queues", Keys().host(pid_scope()).encode()}


def test_a_deleted_queue_is_swept(sweep: Sweep, redis: Redis, dead_ref: str) -> None:
    """Its job makes it a queue again; names from which no child fetches any more are removed."""
    redis.zadd(Keys().fetched, {"q": 1.0, "old": 2.0, "new": now()})
    lease(redis, DEAD, job(jid="1"))
    redis.delete("queues")
    record(redis, DEAD, dead_ref)
    sweep.run()
    assert [found["jid"] for found in queued(redis)] == ["1"]
    assert redis.smembers("queues") == {b"q"}
    assert set(redis.zrange(Keys().fetched, 0, -1)) == {b"q", b"new"}
    sweep.run()
    assert redis.zrange(Keys().fetched, 0, -1) == [b"new"]


@pytest.mark.parametrize("damaged", [Keys().queues, Keys().fetched])
def test_a_damaged_list_of_queues_is_replaced_by_the_other_list(
    sweep: Sweep, redis: Redis, dead_ref: str, damaged: str
) -> None:
    lease(redis, DEAD, job(jid="1"))
    redis.zadd(Keys().fetched, {"q": now()})
    redis.delete(damaged)
    redis.hset(damaged, "something", "else")
    record(redis, DEAD, dead_ref)
    sweep.run()
    assert [found["jid"] for found in queued(redis)] == ["1"]


@pytest.mark.parametrize("damaged", [Keys().queues, Keys().fetched])
def test_a_recovery_by_pattern_needs_only_one_list_of_queues(
    redis: Redis, redis_server: Server, damaged: str
) -> None:
    lease(redis, DEAD, job(jid="1"))
    redis.zadd(Keys().fetched, {"q": now()})
    redis.delete(damaged)
    redis.hset(damaged, "something", "else")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    recovery = Recovery(DeadSetLimits(Keys(), 10, 1))
    assert carry_out(connection, recovery.recover(["q*"], DEAD, ProcessDeath(signal=9))).moved == 1
    connection.close()
    assert [found["jid"] for found in suspects(redis)] == ["1"]


def test_a_damaged_list_of_fetched_queues_is_logged_once_and_stops_nothing(
    sweep: Sweep, redis: Redis, dead_ref: str, log: RecordedLog
) -> None:
    redis.set(Keys().fetched, "something else")
    lease(redis, DEAD, job(jid="1"))
    record(redis, DEAD, dead_ref)
    sweep.run()
    sweep.run()
    assert [found["jid"] for found in queued(redis)] == ["1"]
    assert log.events().count("deleted queues are left out of the sweep") == 1


# Recovery itself, as the master uses it too


def test_a_job_that_also_kills_the_child_that_is_to_bury_it_is_buried_with_the_reason(
    connection: RedisConnection, redis: Redis
) -> None:
    """After the third crash a solo child is to bury it, which calls the app's death handlers."""
    recovery = Recovery(DeadSetLimits(Keys()))
    lease(redis, DEAD_SOLO, job(jid="bad"))
    for crash in range(1, 5):
        done = carry_out(connection, recovery.recover(["q"], DEAD_SOLO, ProcessDeath(signal=11)))
        assert done == Recovered(1, ["J bad"] if crash == 4 else [])
        if crash < 4:
            payload = redis.rpop(SUSPECTS)
            assert isinstance(payload, bytes)
            assert ("failed" in json.loads(payload)["forkq"]) == (crash == 3)
            lease(redis, DEAD_SOLO, payload.decode())
    dead: Any = redis.zrange("dead", 0, -1)[0]
    assert json.loads(dead)["error_class"] == "forkq.errors.Crashed"
    assert queued(redis) == []
    assert redis.exists("{queue:q}:inflight") == 0


def test_a_graceful_requeue_is_no_crash(connection: RedisConnection, redis: Redis) -> None:
    payloads = [job(jid="1"), "{nope"]
    lease(redis, DEAD, *payloads)
    done = carry_out(connection, Recovery(DeadSetLimits(Keys())).requeue(["q"], DEAD))
    assert done == Recovered(2, [])
    assert redis.lrange("queue:q", 0, -1)[::-1] == [payload.encode() for payload in payloads]


def large(**keys: Any) -> str:
    """A job that stays in Redis while its crash record is written."""
    return json.dumps({"class": "J", "jid": "1", "args": ["x" * 200_000], "queue": "q", **keys})


@pytest.mark.parametrize(
    "payload",
    [
        large(),
        large(forkq={"other": 1}),
        large(args=["forkq", "x" * 200_000]),
        large(args=[{"forkq": {"crashes": []}}, "x" * 200_000]),
        large(last={"y": 1, "forkq": {"crashes": []}}),
        large() + "\n",
    ],
    ids=["bare", "key", "argument", "inside", "inside the end", "blank"],
)
def test_a_large_job_is_recovered_like_any_other(
    connection: RedisConnection, redis: Redis, payload: str
) -> None:
    """It goes back, unchanged but for its marks, until it has killed too many."""
    recovery = Recovery(DeadSetLimits(Keys()))
    for crash in range(1, 5):
        lease(redis, DEAD_SOLO, payload)
        done = carry_out(
            connection, recovery.recover(["q"], DEAD_SOLO, ProcessDeath(signal=11), may_return=True)
        )
        assert done == Recovered(1, ["J 1"] if crash == 4 else [])
        assert redis.hget(Keys().lost(DEAD_SOLO), "1") == b"J 1"
        if crash < 4:
            before, [found] = json.loads(payload), suspects(redis)
            assert len(found["forkq"]["crashes"]) == crash
            assert before.pop("forkq", {}).get("other") == found.pop("forkq").get("other")
            assert found == before
            payload = redis.rpop(SUSPECTS).decode()  # type: ignore[union-attr]
    assert redis.zcard("dead") == 1
    assert redis.exists("{queue:q}:inflight") == 0


@pytest.mark.parametrize("where", ["bare", "key", "inside", "far"])
def test_large_jobs_that_were_in_progress_together_become_suspects_where_they_are(
    connection: RedisConnection, redis: Redis, where: str
) -> None:
    """Those that a child had only leased go back unchanged, behind them."""
    keys: dict[str, Any] = {
        "key": {"forkq": {"other": 1}, "retry_count": 3, "failed_at": 1.5},
        "inside": {"last": {"forkq": 1}},
        "far": {"forkq": {"other": 1}, "last": "y" * 10_000},
    }
    lease(redis, DEAD, *(large(jid=str(n), **keys.get(where, {})) for n in range(3)))
    recovery = Recovery(DeadSetLimits(Keys()))
    steps = recovery.recover(["q"], DEAD, ProcessDeath(signal=9), last_begun=2)
    carry_out(connection, steps)
    found = suspects(redis)
    assert [job["jid"] for job in found] == ["0", "1"]
    for job in found:
        assert {**job, **keys.get(where, {}), "forkq": 0} == {**job, "forkq": 0}
        assert job["forkq"]["suspect"] is True
        assert [crash["jobs"] for crash in job["forkq"]["crashes"]] == [2]
    [ahead] = queued(redis)
    assert ahead == json.loads(large(jid="2", **keys.get(where, {})))


def test_large_jobs_stay_in_redis_and_keep_their_order(
    connection: RedisConnection, redis: Redis
) -> None:
    """How much is sent does not depend on how large they are."""
    payloads = [large(jid=str(number), args=["x" * 3_000_000]) for number in range(5)]
    lease(redis, DEAD, *payloads)
    before = traffic(redis)
    carry_out(
        connection, Recovery(DeadSetLimits(Keys())).recover(["q"], DEAD, ProcessDeath(signal=9))
    )
    assert traffic(redis) - before < 100_000
    assert [found["jid"] for found in suspects(redis)] == list("01234")


def test_a_graceful_requeue_of_large_jobs_keeps_their_order(
    connection: RedisConnection, redis: Redis
) -> None:
    payloads = [large(jid=str(number), args=["x" * 3_000_000]) for number in range(5)]
    lease(redis, DEAD, *payloads)
    done = carry_out(connection, Recovery(DeadSetLimits(Keys())).requeue(["q"], DEAD))
    assert done == Recovered(5, [])
    assert [found["jid"] for found in queued(redis)] == list("01234")


def traffic(redis: Redis) -> int:
    """Bytes that the server has received and sent."""
    found: Any = redis.info("stats")
    return int(found["total_net_input_bytes"]) + int(found["total_net_output_bytes"])


def test_a_damaged_queue_does_not_stop_the_recovery_of_other_queues(
    connection: RedisConnection, redis: Redis
) -> None:
    """Neither after a crash nor at a stop; the error is raised when the other jobs are back."""
    recovery = Recovery(DeadSetLimits(Keys()))
    for steps in (recovery.requeue(["bad", "q"], DEAD),
                  recovery.recover(["bad", "q"], DEAD, ProcessDeath(signal=9))):  # fmt: skip
        redis.delete("queue:q", SUSPECTS)
        for key in ("queue:bad", Keys().suspects("bad")):
            redis.set(key, "something else")
        lease(redis, DEAD, job(jid="bad"), queue="bad")
        lease(redis, DEAD, job(jid="1"))
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            carry_out(connection, steps)
        assert [found["jid"] for found in queued(redis) + suspects(redis)] == ["1"]
        assert redis.hlen("{queue:bad}:inflight") == 1


def test_a_damaged_list_of_suspects_is_replaced_by_the_queue(
    connection: RedisConnection, redis: Redis
) -> None:
    redis.set(SUSPECTS, "something else")
    lease(redis, DEAD, job(jid="1"))
    steps = Recovery(DeadSetLimits(Keys())).recover(["q"], DEAD, ProcessDeath(signal=9))
    assert carry_out(connection, steps) == Recovered(1, [])
    [found] = queued(redis)
    assert (found["jid"], found["forkq"]["suspect"]) == ("1", True)


def test_a_suspect_that_has_crashed_alone_goes_to_the_tail(
    connection: RedisConnection, redis: Redis
) -> None:
    """The index names its queue, and a graceful end of a solo child returns it to the head."""
    redis.lpush(SUSPECTS, job(jid="1"), job(jid="2"))
    for jid, crash in (("bad", ProcessDeath(signal=9)), ("innocent", None)):
        lease(redis, DEAD_SOLO, job(jid=jid))
        recovery = Recovery(DeadSetLimits(Keys()))
        owner = (["q"], DEAD_SOLO)
        steps = recovery.requeue(*owner) if crash is None else recovery.recover(*owner, crash)
        carry_out(connection, steps)
    assert [found["jid"] for found in suspects(redis)] == ["innocent", "1", "2", "bad"]
    assert redis.smembers(Keys().suspected) == {b"q"}


def test_malformed_payloads_are_recovered_as_they_are(
    connection: RedisConnection, redis: Redis
) -> None:
    lease(redis, DEAD, "{nope", "", job(jid="1"))
    steps = Recovery(DeadSetLimits(Keys())).recover(["q"], DEAD, ProcessDeath(signal=9))
    assert carry_out(connection, steps) == Recovered(3, [])
    assert redis.lrange(SUSPECTS, 1, -1)[::-1] == [b"{nope", b""]


def test_forgetting_takes_the_whole_record_away(connection: RedisConnection, redis: Redis) -> None:
    record(redis, DEAD)
    redis.hset(f"{DEAD}:work", "1", "{}")
    redis.lpush(f"{DEAD}-signals", "TSTP")
    redis.hset(Keys().flushed(DEAD), "number", "7")
    redis.set(Keys().process_ref(DEAD), ELSEWHERE)
    redis.hset(Keys().lost(DEAD), "1", "J 1")
    carry_out(connection, Recovery(DeadSetLimits(Keys())).forget(DEAD))
    kept = {Keys().lost(DEAD).encode(), Keys().flushed(DEAD).encode()}
    assert set(redis.keys("*")) == kept, (
        "what the owner, or the process that adds its counts, may still read"
    )
    assert 0 < redis.ttl(Keys().flushed(DEAD)) <= 3600


@linux
def test_a_process_name_cut_within_a_character_can_be_read(request: pytest.FixtureRequest) -> None:
    """The kernel cuts a process's name at 15 bytes, wherever that falls."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import setproctitle as s; s.setproctitle('é' * 20); input()"],
        stdin=subprocess.PIPE,
    )
    request.addfinalizer(process.communicate)
    comm = Path(f"/proc/{process.pid}/comm")
    wait_until(lambda: comm.read_bytes().startswith("éé".encode()), what="its title")
    assert liveness_of(process_ref(process.pid)) == "alive"
    pid_scope = process_ref().rpartition("]/")[0]
    assert liveness_of(f"{pid_scope}]/x/1") == "unknown"


@linux
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda redis: redis.set("queue:bad", "x"), id="queue of a wrong type"),
        pytest.param(
            lambda redis: redis.hset("{queue:bad}:inflight", f"{DEAD[:-1]}e/x", "{}"),
            id="no number",
        ),
        pytest.param(
            lambda redis: (
                redis.delete(Keys().process_ref(f"{DEAD[:-1]}e")),
                redis.lpush(Keys().process_ref(f"{DEAD[:-1]}e"), "x"),
            ),
            id="process_ref of a wrong type",
        ),
    ],
)
def test_a_broken_owner_does_not_stop_the_recovery_of_others(
    sweep: Sweep, redis: Redis, dead_ref: str, damage: Callable[[Redis], object]
) -> None:
    broken = f"{DEAD[:-1]}e"
    lease(redis, broken, job(jid="odd"), queue="bad")
    redis.set(Keys().process_ref(broken), dead_ref)
    damage(redis)
    lease(redis, DEAD, job(jid="a"), job(jid="b"))
    record(redis, DEAD, dead_ref)
    sweep.run()
    assert [found["jid"] for found in queued(redis)] == ["a", "b"]
    leased = int(redis.hlen("{queue:bad}:inflight"))
    queued_jobs = int(redis.llen("queue:bad")) if redis.type("queue:bad") == b"list" else 0
    assert leased + queued_jobs >= 1, "no job of the broken owner is lost either"
