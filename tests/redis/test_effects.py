"""What a feature has in Redis changes in the very script in which its job takes a way: each row of
the table of all ways out (forkq/features/ways.py) is tried, by each process that decides so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.child.failure.ends import Ends
from forkq.child.failure.retry import Bury, End, Postpone, Retry, Snoozed
from forkq.clock.cancelled_jobs import CancelledJobs
from forkq.clock.due_jobs import DueJobMover
from forkq.clock.expired_jobs import ExpiredJobs
from forkq.features.ways import WAYS
from forkq.store.connection import RedisConnection
from forkq.store.crash_record import ProcessDeath
from forkq.store.dead_set import DeadSetLimits
from forkq.store.recovery import Recovery
from forkq.store.scripts import Call
from forkq.store.steps import carry_out
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.marks import KEY
from forkq.wire.payload import dumps, loads
from forkq.wire.times import now
from tests.redis.in_process_child import InProcessChild
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

IDENTITY, SOLO = "vm:7:0123456789ab", "vm:7:solo23456789"
KEYS = Keys()
LOCK = KEYS.unique("d1")
ENDS = KEYS.totals("ends")
QUEUE = "queue:default"
INFLIGHT = "{queue:default}:inflight"
HELD_FOR = 300.0
MORE: dict[str, Any] = {}  # what all jobs of a test need beside their lock


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


@pytest.fixture
def connection(redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


def payload(
    *, jid: str = "m1", name: str = "Unique", until: str = "end", expires_at: float = 0, **more: Any
) -> bytes:
    needs: dict[str, Any] = {"unique": {"lock": "d1", "for": HELD_FOR, "until": until}}
    needs |= {"batch": {"bid": "b1", "i": 2}, **MORE}
    if expires_at:
        needs["expires_at"] = expires_at
    made = {"class": name, "args": [1], "queue": "default", "jid": jid}
    return dumps({**made, **more, "forkq": {"v": 2, "needs": needs, **more.get("forkq", {})}})


def hold(redis: Redis, jid: str = "m1") -> None:
    redis.hset(LOCK, mapping={"jid": jid, "class": "Unique", "at": 1, "sure": 1})
    redis.pexpire(LOCK, 5000)


def holder(redis: Redis) -> Any:
    return redis.hget(LOCK, "jid")


def unit(raw: bytes) -> UnitOfWork:
    made = UnitOfWork(1, "default", 7, raw)
    job = loads(raw)
    made.marked = {name: job[name] for name in ("class", "jid", "queue", KEY)}
    return made


def leased(redis: Redis, raw: bytes, identity: str = IDENTITY) -> None:
    redis.hset(INFLIGHT, f"{identity}/7", raw)


# The ways.


class Take(NamedTuple):
    """How one way is taken. ``begin`` brings Redis to the moment before it; ``act`` takes it, twice
    where a call may be sent again."""

    begin: Callable[[Redis], object]
    act: Callable[[Redis, RedisConnection], object]

    def __call__(self, redis: Redis, connection: RedisConnection) -> None:
        self.begin(redis)
        self.act(redis, connection)


def by_child(make: Callable[[Ends, UnitOfWork], Any]) -> Take:
    def act(redis: Redis, connection: RedisConnection) -> None:
        call = make(Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)), unit(payload())).call()
        reply = connection.script(call.script, call.keys, call.arguments)
        damaged = [LOCK.encode(), BATCH.encode(), KEYS.result("m1").encode()]
        assert reply in (1, *([1, key] for key in damaged))
        again = connection.script(call.script, call.keys, call.arguments)
        assert again == 0  # sent again after a lost reply: the lease is gone

    return Take(lambda redis: leased(redis, payload()), act)


def crash(*, last: bool) -> Take:
    """The master, or the clock, gives the job of a solo child back. ``last``: that child was to
    settle it."""

    def begin(redis: Redis) -> None:
        records = [{"at": now(), "signal": 9, "alone": True} for _ in range(2)]
        marks: dict[str, Any] = {"crashes": records, "suspect": True}
        if last:
            marks["failed"] = {"class": "forkq.errors.Crashed", "message": "died"}
        leased(redis, payload(forkq=marks), SOLO)

    def act(redis: Redis, connection: RedisConnection) -> None:
        recovery = Recovery(DeadSetLimits(KEYS))
        for _ in range(2):
            carry_out(connection, recovery.recover(["default"], SOLO, ProcessDeath(signal=9)))

    return Take(begin, act)


def in_set(key: str, **more: Any) -> Callable[[Redis], object]:
    return lambda redis: redis.zadd(key, {payload(**more): now() - 5})


def move_due(redis: Redis, connection: RedisConnection) -> None:
    mover = DueJobMover(KEYS, connection)
    mover.load(watch=False)
    while (due := mover.next_due()) is not None and due <= now():
        mover.work()
    assert not redis.exists("retry", "schedule")


def expired_in_queue(redis: Redis) -> None:
    redis.lpush(QUEUE, *(dumps({"class": "P", "jid": f"p{n}", "args": []}) for n in range(300)))
    redis.lpush(QUEUE, payload(expires_at=now() - 1))
    redis.lpush(QUEUE, *(dumps({"class": "P", "jid": f"q{n}", "args": []}) for n in range(300)))
    redis.zadd(KEYS.marked, {"default": 1})


def end_expired(redis: Redis, connection: RedisConnection) -> None:
    redis.zadd(KEYS.marked, {"default": 1}, xx=True)  # the next look is due, within a minute
    looker = ExpiredJobs(KEYS, connection, RecordedLog())
    looker.load(watch=False)
    while (due := looker.next_due()) is not None and due <= max(now(), looker._rests_until):
        looker.work()
    assert b"m1" not in b"".join(redis.lrange(QUEUE, 0, -1))  # type: ignore[arg-type]
    assert redis.llen(QUEUE) >= 600


def cancel_in(place: str) -> Take:
    def begin(redis: Redis) -> None:
        redis.hset(KEYS.cancelled, "jid:m1", f"{now():.6f}")
        put(redis, place)

    def act(redis: Redis, connection: RedisConnection) -> None:
        leader = CancelledJobs(KEYS, connection, RecordedLog())
        leader.load(watch=False)
        leader.work()
        while leader._pass is not None:
            leader.work()
        left: Any = redis.lrange(QUEUE, 0, -1) if place == QUEUE else redis.zrange(place, 0, -1)
        assert b"m1" not in b"".join(left)
        assert not redis.exists(KEYS.cancelled)

    return Take(begin, act)


def put(redis: Redis, place: str) -> None:
    """The job waits in its queue, or in a set."""
    redis.sadd("queues", "default")
    redis.zadd(KEYS.marked, {"default": "inf"})
    if place == QUEUE:
        redis.lpush(QUEUE, payload())
    else:
        redis.zadd(place, {payload(): now() + 900})


def by_person(act: Callable[[], object], place: str = QUEUE) -> Take:
    return Take(lambda redis: put(redis, place), lambda redis, connection: act())


def by_undo(delete: Callable[[], api.Outcome], place: str) -> Take:
    tokens: list[str] = []

    def begin(redis: Redis) -> None:
        put(redis, place)
        tokens.append(delete().undo)

    return Take(begin, lambda redis, connection: api.undo(tokens[-1]))


CHILD: dict[str, Callable[[Ends, UnitOfWork], Any]] = {
    "done": lambda ends, one: ends.done(one, "done"),
    "dropped": lambda ends, one: ends.done(one, "dropped"),
    "retried": lambda ends, one: ends.retry(one, Retry(now() + 50, one.payload)),
    "snoozed": lambda ends, one: ends.retry(one, Snoozed(now() + 50, one.payload, "Unique")),
    "left to a newer forkq": lambda ends, one: ends.retry(one, Postpone(now() + 50, one.payload)),
    "dead": lambda ends, one: ends.bury(one, Bury(one.payload, None)),
    "expired": lambda ends, one: ends.end(one, End("expired", "Unique", unrun=True)),
    "discarded": lambda ends, one: ends.end(one, End("discarded", "Unique")),
    "cancelled": lambda ends, one: ends.end(one, End("cancelled", "Unique", jid="m1")),
    "requeued": lambda ends, one: ends.return_to_queue(one),
    "made a suspect": lambda ends, one: ends.isolate(one),
    "replaced": lambda ends, one: ends.end(one, End("replaced", "Unique", unrun=True)),
}
OTHERS: dict[str, list[Take]] = {
    "due": [
        Take(in_set("schedule"), move_due),
        by_person(lambda: next(iter(api.ScheduledSet())).add_to_queue(), "schedule"),
    ],
    "dead": [crash(last=True), by_person(lambda: api.RetrySet().kill_all(), "retry")],
    "expired": [
        Take(in_set("retry", expires_at=1.0), move_due),
        Take(expired_in_queue, end_expired),
    ],
    "cancelled": [cancel_in("retry"), cancel_in(QUEUE)],
    "deleted": [
        by_person(lambda: api.Queue("default").delete_all()),
        by_person(lambda: api.Queue("default").clear()),
        by_person(lambda: api.ScheduledSet().clear(), "schedule"),
        by_person(lambda: api.RetrySet().clear(), "retry"),
        by_person(lambda: next(iter(api.ScheduledSet())).delete(), "schedule"),
    ],
    "made a suspect": [crash(last=False)],
    "moved to another queue or shard": [
        by_person(lambda: next(iter(api.Queue("default"))).move("other"))
    ],
    "retried from the dead set": [by_person(lambda: api.DeadSet().retry_all(), "dead")],
    "restored by undo": [
        by_undo(lambda: api.Queue("default").delete_all(undo=True), QUEUE),
        by_undo(lambda: api.ScheduledSet().delete_all(undo=True), "schedule"),
    ],
}
TAKES = {
    way.name: [by_child(make) for name, make in CHILD.items() if name == way.name]
    + OTHERS.get(way.name, [])
    for way in WAYS
    if way.by != ("Ruby",)
}
CASES = [(name, number) for name, takes in TAKES.items() for number in range(len(takes))]
FATES = {way.name: way.lock for way in WAYS}
BATCH, BITS = KEYS.of_members("b1")
# What a member is after its way that has waited, and that was dead; and the field that names it.
AS_MEMBER = {
    "done": (1, 1),
    "waits": (0, 2),
    "failing": (0, 2),
    "dead": (2, 2),
    "ended otherwise": (3, 2),
    "waits again": (0, 0),
}


def test_each_way_of_the_table_is_tried() -> None:
    assert all(TAKES.values())


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_of_a_job_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    hold(redis)
    TAKES[name][number](redis, connection)
    fate = FATES[name]
    assert (holder(redis) is None) == (fate == "freed")
    if fate in ("held", "taken again"):  # its time begins anew
        assert redis.pttl(LOCK) > 1000 * (HELD_FOR - 10)
    elif fate == "kept":
        assert 0 < redis.pttl(LOCK) <= 5000


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_lock_of_another_job_stays(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    """The end of the old job came late: the new one has the lock."""
    hold(redis, "new")
    TAKES[name][number](redis, connection)
    assert (holder(redis), 0 < redis.pttl(LOCK) <= 5000) == (b"new", True)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_lock_of_another_type_keeps_no_job_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int
) -> None:
    redis.set(LOCK, "x")
    TAKES[name][number](redis, connection)
    assert redis.get(LOCK) == b"x"
    counted: Any = redis.hget(ENDS, "(feature)|damaged")
    assert (int(counted or 0) > 0) == (FATES[name] not in ("kept", "the newest job's"))
    assert redis.hlen(INFLIGHT) == 0


def member(redis: Redis) -> int:
    return int(redis.bitfield(BITS).get("u2", "#2").execute()[0])


def open_batch(redis: Redis, state: int) -> None:
    """A batch of three members whose last one is in this state."""
    redis.hset(BATCH, mapping={"state": "open", "total": 3, "dead": int(state == 2)})
    redis.bitfield(BITS).set("u2", "#2", state).execute()


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_member_of_a_batch_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int, before: int
) -> None:
    """It counts once, also if the call is sent again; one that is put back counts as before."""
    open_batch(redis, before)
    [fate] = [way.batch for way in WAYS if way.name == name]
    TAKES[name][number](redis, connection)
    state = AS_MEMBER[fate][before == 2]
    if name == "restored by undo":  # to where it was
        state = before
    assert member(redis) == state
    counts: Any = redis.hmget(BATCH, "done", "dead", "other")
    expected = [int(state == each) for each in (1, 2, 3)]
    assert [int(count or 0) for count in counts] == expected
    assert (redis.hget(BATCH, "failing:2") == b"m1") == (fate == "failing")
    assert (redis.hget(BATCH, "dead:2") == b"m1") == (state == 2 and before == 0)


@pytest.mark.parametrize("key", [BATCH, BITS])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_batch_of_another_type_keeps_no_job_from_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int, key: str
) -> None:
    open_batch(redis, 0)
    redis.delete(key)
    redis.lpush(key, "x")
    TAKES[name][number](redis, connection)
    assert redis.lrange(key, 0, -1) == [b"x"]
    assert redis.hlen(INFLIGHT) == 0
    assert (holder(redis) is None) == (FATES[name] in ("freed", "kept", "the newest job's"))


@pytest.mark.parametrize(("name", "number"), CASES)
def test_what_a_job_remembers_has_the_fate_of_its_way(
    client: Any, redis: Redis, connection: RedisConnection, name: str, number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The cursor of an iterable job, and the steps of any."""
    monkeypatch.setitem(MORE, "cursor", True)
    monkeypatch.setitem(MORE, "steps", True)
    kept = {KEYS.iteration("m1"): 30, KEYS.steps("m1"): 180}  # days
    for key in kept:
        redis.hset(key, "c", "7")
        redis.pexpire(key, 5000)
    TAKES[name][number](redis, connection)
    [fate] = [way.cursor for way in WAYS if way.name == name]
    for key, days in kept.items():
        left, least = redis.pttl(key), 1000 * 86_400 * (180 if fate == "held long" else days) - 9000
        if fate == "deleted" or name == "restored by undo":  # the delete before that
            assert not redis.exists(key)
        elif fate == "kept":
            assert 0 < left <= 5000
        else:
            assert left > least


@pytest.mark.parametrize("name", ["done", "dropped", "expired", "retried", "dead"])
def test_a_full_server_takes_the_effects_of_a_child(
    redis: Redis, connection: RedisConnection, name: str
) -> None:
    hold(redis)
    leased(redis, payload())
    call = CHILD[name](Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)), unit(payload())).call()
    redis.config_set("maxmemory", 1)
    try:
        assert connection.script(call.script, call.keys, call.arguments) == 1
    finally:
        redis.config_set("maxmemory", 0)
    assert (holder(redis) is None) == (FATES[name] == "freed")


def test_a_lock_that_lapsed_is_taken_again_by_a_retry(
    redis: Redis, connection: RedisConnection
) -> None:
    TAKES["retried"][0](redis, connection)
    assert holder(redis) == b"m1"
    assert 1000 * (HELD_FOR + 40) < redis.pttl(LOCK) <= 1000 * (HELD_FOR + 50)


@pytest.mark.parametrize(("until", "at_last"), [("end", b"m1"), ("start", None)])
def test_a_start_that_arrives_late_changes_no_lock(
    redis: Redis, connection: RedisConnection, until: str, at_last: bytes | None
) -> None:
    """Its connection has ended, and the job, too: it would take a lock that no end frees, or free
    that of a job which waits for its retry."""
    raw = payload(until=until)
    call = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).start(unit(raw), 1000.0)
    assert call is not None
    if until == "start":
        hold(redis)
    before = holder(redis)
    connection.script(call.script, call.keys, call.arguments)
    assert holder(redis) == before
    leased(redis, raw)
    connection.script(call.script, call.keys, call.arguments)
    assert holder(redis) == at_last


@pytest.mark.parametrize("until", ["start", "expiry"])
def test_a_retry_does_not_hold_a_lock_for_longer_that_ends_otherwise(
    redis: Redis, connection: RedisConnection, until: str
) -> None:
    hold(redis)
    raw = payload(until=until)
    leased(redis, raw)
    call = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).retry(unit(raw), Retry(now(), raw)).call()
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert 0 < redis.pttl(LOCK) <= 5000


def test_a_lock_until_its_expiry_outlives_its_job(
    redis: Redis, connection: RedisConnection
) -> None:
    hold(redis)
    ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
    raw = payload(until="expiry").replace(b',"batch":{"bid":"b1","i":2}', b"")
    assert ends.done(unit(raw), "done") is None
    leased(redis, raw)
    call = ends.end(unit(raw), End("expired", "Unique", unrun=True)).call()
    assert connection.script(call.script, call.keys, call.arguments) == 1
    assert holder(redis) == b"m1"


@pytest.mark.parametrize(
    "odd",
    [None, 7, "d1", [], {}, {"lock": "d1"}, {"lock": "", "for": 1, "until": "end"},
     {"lock": "d1", "for": True, "until": "end"}, {"lock": "d1", "for": 1, "until": "x"},
     {"lock": "d1", "for": -1, "until": "end"}, {"lock": "x" * 65, "for": 1, "until": "end"},
     {"lock": "d1", "for": 1, "until": ["end"]}],
)  # fmt: skip
def test_odd_needs_ask_nothing(odd: object) -> None:
    one = unit(payload())
    assert one.marked is not None
    one.marked[KEY] = {"needs": {"unique": odd}}
    assert Ends(IDENTITY, KEYS, DeadSetLimits(KEYS)).done(one, "done") is None


def test_a_child_ends_jobs_with_their_locks(redis: Redis, redis_server: Server) -> None:
    """Done, dropped and dead, in one child; a damaged lock is told once and stops nothing."""

    def perform(number: int) -> None:
        if number:
            raise ValueError(number)

    forkq.job(name="Unique", retry=False)(perform)
    forkq.job(name="Dying", retry=0)(perform)
    names = {
        "done": ("Unique", 0),
        "dropped": ("Unique", 1),
        "dead": ("Dying", 1),
        "odd": ("Unique", 0),
    }
    for jid, (name, number) in names.items():
        job = loads(payload(jid=jid, name=name, args=[number]))
        job["forkq"]["needs"]["unique"]["lock"] = jid
        if jid == "odd":
            redis.set(KEYS.unique(jid), "x")
        else:
            redis.hset(KEYS.unique(jid), "jid", jid)
        redis.lpush(QUEUE, dumps({**job, "retry": False if name == "Unique" else 0}))
    with InProcessChild(redis_server.url) as child:
        wait_until(lambda: not redis.exists(QUEUE, INFLIGHT), what="the ends")
    left = [jid for jid in names if redis.exists(KEYS.unique(jid))]
    assert (left, redis.zcard("dead")) == (["odd"], 1)
    told = [more for _, event, more in child.log.lines if "one of its features" in event]
    assert [more["key"] for more in told] == [KEYS.unique("odd")]


def test_clear_ends_each_marked_job_and_leaves_what_comes_meanwhile(
    client: Any, redis: Redis
) -> None:
    for number in range(450):
        job = loads(payload(jid=f"m{number}"))
        job["forkq"]["needs"]["unique"]["lock"] = f"d{number}"
        redis.lpush(QUEUE, dumps(job))
        redis.hset(KEYS.unique(f"d{number}"), "jid", f"m{number}")
    redis.sadd("queues", "default")
    redis.zadd(KEYS.marked, {"default": "inf"})
    assert api.Queue("default").clear() == 450
    assert not redis.exists(QUEUE, *(KEYS.unique(f"d{number}") for number in range(450)))
    assert redis.smembers("queues") == set()


def test_an_end_without_effects_is_the_call_that_it_was(redis: Redis) -> None:
    """No key and no argument more for a plain job."""
    ends = Ends(IDENTITY, KEYS, DeadSetLimits(KEYS))
    plain = UnitOfWork(1, "default", 7, b"{}")
    calls: list[Call] = [
        ends.retry(plain, Retry(5.5, b"{}")).call(),
        ends.bury(plain, Bury(b"{}", None)).call(),
        ends.end(plain, End("expired", "P")).call(),
    ]
    assert ends.done(plain, "done") is None
    assert [len(call.keys) for call in calls] == [4, 3, 4]
    assert [len(call.arguments) for call in calls] == [4, 5, 4]
