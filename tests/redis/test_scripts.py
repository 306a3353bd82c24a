"""Each Lua script on the real server: both or neither, once, in order, and when it is full."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from forkq.connection import Wire
from forkq.scripts import BURY, DUE, FETCH, LEASES, RECOVER, REQUEUE, RETRY, Script
from tests.support.server import Server

OWNER = "vm:1:aaaaaaaaaaaa/"
OTHER = "vm:2:bbbbbbbbbbbb/"
LIST, INFLIGHT = "queue:q", "{queue:q}:inflight"
# What fetch.lua wants where queues are just taken from in order.
NO_RULES: tuple[int, ...] = ()


@pytest.fixture
def wire(redis: Redis, redis_server: Server) -> Iterator[Wire]:
    wire = Wire(redis_server.url)
    wire.connect()
    yield wire
    wire.close()


@pytest.fixture
def full() -> Iterator[Server]:
    """A server that takes no more writes once `fill` is called."""
    server = Server().start()
    yield server
    server.close()


def fill(server: Server) -> None:
    server.cli("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        server.cli("LPUSH", "queue:q", "refused")


def push(redis: Redis, *payloads: str, queue: str = "q") -> None:
    redis.lpush(f"queue:{queue}", *payloads)


def fetch(
    wire: Wire,
    want: int,
    *,
    queues: tuple[str, ...] = ("q",),
    weights: tuple[int, ...] | None = None,
    first: int = 1,
    seed: int = 0,
    done: tuple[int, ...] = (),
    owner: str = OWNER,
) -> list[bytes]:
    rules = plain(weights) if weights else NO_RULES
    arguments = (want, owner, first, seed, len(queues), *counted(done), *rules)
    taken: list[bytes] = wire.script(FETCH, keys_of(*queues), arguments)[4:]
    return taken[1::2]


def keys_of(*queues: str) -> list[str]:
    """What fetch.lua wants as KEYS."""
    lists = [key for name in queues for key in (f"queue:{name}", f"{{queue:{name}}}:inflight")]
    return ["paused", "forkq:controlled", *lists]


def plain(weights: Sequence[int]) -> list[int]:
    """What it wants of groups of one queue each, under no rules."""
    return [len(weights), *(part for weight in weights for part in (1, weight, 0)), 0]


def counted(done: Sequence[int]) -> list[int]:
    """Queue, how many, their sequence numbers, and so on; preceded by how many queues."""
    queues, at = 0, 0
    while at < len(done):
        queues, at = queues + 1, at + 2 + done[at + 1]
    return [queues, *done]


def line(redis: Redis, queue: str = "q") -> list[bytes]:
    """The queue, next to run first."""
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return list(reversed(found))


def inflight(redis: Redis, queue: str = "q") -> dict[bytes, bytes]:
    found: Any = redis.hgetall(f"{{queue:{queue}}}:inflight")
    return dict(found)


# fetch


def test_fetch_leases_the_oldest_jobs_in_order(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2", "3", "4")
    assert fetch(wire, 3, first=7) == [b"1", b"2", b"3"]
    assert line(redis) == [b"4"]
    assert inflight(redis) == {
        f"{OWNER}{7 + number}".encode(): payload
        for number, payload in enumerate([b"1", b"2", b"3"])
    }


def test_fetch_takes_no_more_than_there_is(wire: Wire, redis: Redis) -> None:
    assert fetch(wire, 5) == []
    push(redis, "1")
    assert fetch(wire, 5) == [b"1"]
    assert redis.exists(LIST) == 0


def test_fetch_of_none_only_acknowledges(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2", "3")
    fetch(wire, 2)
    assert fetch(wire, 0, done=(1, 2, 1, 2)) == []
    assert inflight(redis) == {}
    assert line(redis) == [b"3"]


def test_acknowledging_twice_is_as_good_as_once_and_touches_nobody_elses(
    wire: Wire, redis: Redis
) -> None:
    push(redis, "1", "2", "3")
    fetch(wire, 1)
    fetch(wire, 1, owner=OTHER)
    assert fetch(wire, 1, first=2, done=(1, 1, 1)) == [b"3"]
    fetch(wire, 0, done=(1, 1, 1))
    assert inflight(redis) == {f"{OTHER}1".encode(): b"2", f"{OWNER}2".encode(): b"3"}


def test_acknowledging_what_has_no_lease_is_told(wire: Wire, redis: Redis) -> None:
    """The first element says so: somebody else may have been given that job."""
    push(redis, "1", "2", "3")
    fetch(wire, 2)
    once, twice = (
        (1, OWNER, 3, 0, 1, *counted(done), *NO_RULES) for done in ((1, 1, 1), (1, 2, 1, 2))
    )
    assert wire.script(FETCH, keys_of("q"), once) == [0, 0, [], [], 1, b"3"]
    assert wire.script(FETCH, keys_of("q"), twice)[0] == 1


def test_one_exchange_acknowledges_in_several_queues(wire: Wire, redis: Redis) -> None:
    push(redis, "a1", queue="a")
    push(redis, "b1", "b2", queue="b")
    assert fetch(wire, 3, queues=("a", "b")) == [b"a1", b"b1", b"b2"]
    fetch(wire, 0, queues=("a", "b"), done=(1, 1, 1, 2, 2, 2, 3))
    assert inflight(redis, "a") == inflight(redis, "b") == {}


def test_strict_order_empties_the_higher_queue_first(wire: Wire, redis: Redis) -> None:
    for queue in ("low", "mid", "high"):
        push(redis, f"{queue}1", f"{queue}2", f"{queue}3", queue=queue)
    queues = ("high", "mid", "low")
    assert fetch(wire, 4, queues=queues) == [b"high1", b"high2", b"high3", b"mid1"]
    push(redis, "high4", queue="high")
    assert fetch(wire, 2, queues=queues, first=5) == [b"high4", b"mid2"]


def shares(wire: Wire, redis: Redis, want: int, jobs: int = 18_000) -> list[float]:
    """What each of three full queues contributed to so many jobs, in percent."""
    seeds = random.Random(7)
    queues, weights = ("a", "b", "c"), (10, 5, 3)
    for queue in queues:
        push(redis, *[queue] * jobs, queue=queue)
    keys = keys_of(*queues)
    wire.call("SCRIPT", "LOAD", FETCH.text)
    head = ("EVALSHA", FETCH.sha, len(keys), *keys, want, OWNER)
    commands: list[tuple[Any, ...]] = [
        (*head, first, seeds.getrandbits(31) | 1, 3, 0, *plain(weights))
        for first in range(1, jobs + 1, want)
    ]
    drawn: Counter[bytes] = Counter()
    for start in range(0, len(commands), 500):
        for taken in wire.pipeline(commands[start : start + 500]):
            drawn.update(taken[5::2])
    assert drawn.total() == jobs
    return [100 * drawn[queue.encode()] / jobs for queue in queues]


@pytest.mark.parametrize("want", [1, 4, 10, 1000])
def test_weighted_shares_of_18000_jobs_come_within_two_points(
    wire: Wire, redis: Redis, want: int
) -> None:
    found = shares(wire, redis, want)
    assert found == pytest.approx([1000 / 18, 500 / 18, 300 / 18], abs=2)


def test_a_weighted_fetch_takes_all_that_is_wanted_while_any_queue_has_jobs(
    wire: Wire, redis: Redis
) -> None:
    queues, weights = ("a", "b", "c"), (1000, 1, 1)
    push(redis, "b1", "b2", queue="b")
    push(redis, "c1", queue="c")
    taken = fetch(wire, 10, queues=queues, weights=weights, seed=5)
    assert sorted(taken) == [b"b1", b"b2", b"c1"]
    assert taken.index(b"b1") < taken.index(b"b2")


def test_each_weighted_job_gets_a_lease_of_its_own(wire: Wire, redis: Redis) -> None:
    for queue in ("a", "b"):
        push(redis, *(f"{queue}{number}" for number in range(50)), queue=queue)
    taken = fetch(wire, 60, queues=("a", "b"), weights=(3, 1), seed=99)
    leases = {**inflight(redis, "a"), **inflight(redis, "b")}
    assert len(taken) == len(leases) == 60
    assert [leases[f"{OWNER}{number}".encode()] for number in range(1, 61)] == taken


def test_a_thousand_processors_fetch_and_acknowledge_at_once(wire: Wire, redis: Redis) -> None:
    push(redis, *map(str, range(1000)))
    assert len(fetch(wire, 1000)) == 1000
    fetch(wire, 0, done=(1, 1000, *range(1, 1001)))
    assert inflight(redis) == {}


# requeue, leases


def requeue(wire: Wire, *keep: int, queues: tuple[str, ...] = ("q",), bound: int = 0) -> int:
    keys = [key for name in queues for key in (f"queue:{name}", f"{{queue:{name}}}:inflight")]
    moved, left = wire.script(REQUEUE, ("queues", *keys), (OWNER, bound, 1000, *keep))
    assert left == 0
    return int(moved)


def test_requeued_jobs_stand_at_the_head_in_their_old_order(wire: Wire, redis: Redis) -> None:
    payloads = [str(number) for number in range(1, 13)]  # beyond 9: numbers, not text, are sorted
    push(redis, *payloads)
    fetch(wire, 11)
    push(redis, "new")
    assert requeue(wire) == 11
    assert line(redis) == [payload.encode() for payload in [*payloads, "new"]]
    assert inflight(redis) == {}


def test_requeue_leaves_what_it_is_told_to_and_what_others_hold(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2", "3", "4")
    fetch(wire, 3)
    fetch(wire, 1, owner=OTHER)
    assert requeue(wire, 2) == 2
    assert line(redis) == [b"1", b"3"]
    assert sorted(inflight(redis).values()) == [b"2", b"4"]
    assert requeue(wire, 2) == 0


def test_a_requeue_that_arrives_late_leaves_what_was_fetched_after_it(
    wire: Wire, redis: Redis
) -> None:
    push(redis, "1", "2", "3")
    fetch(wire, 3)
    assert requeue(wire, bound=3) == 2
    assert list(inflight(redis)) == [f"{OWNER}3".encode()]


def test_requeue_returns_each_job_to_its_own_queue(wire: Wire, redis: Redis) -> None:
    push(redis, "a1", queue="a")
    push(redis, "b1", queue="b")
    fetch(wire, 2, queues=("a", "b"))
    assert requeue(wire, queues=("a", "b")) == 2
    assert (line(redis, "a"), line(redis, "b")) == ([b"a1"], [b"b1"])


def leases(
    wire: Wire, *, at: tuple[object, object] = (1, ""), most: int = 1000, large: int = 1000,
    owner: str = OWNER,
) -> list[Any]:  # fmt: skip
    found: list[Any] = wire.script(LEASES, (INFLIGHT,), (owner, *at, most, large))
    return found


def test_leases_lists_what_one_owner_holds_newest_first_and_changes_nothing(
    wire: Wire, redis: Redis
) -> None:
    push(redis, *(str(number) for number in range(1, 13)))
    fetch(wire, 11)
    fetch(wire, 1, owner=OTHER)
    found = leases(wire)
    assert found[:2] == [0, b""]
    assert found[2::5] == [1] * 11
    assert found[3::5] == [f"{OWNER}{number}".encode() for number in range(11, 0, -1)]
    assert set(found[4::5]) == {b"whole"}
    assert found[5::5] == [str(number).encode() for number in range(11, 0, -1)]
    assert len(inflight(redis)) == 12


def test_leases_goes_on_where_it_had_enough(wire: Wire, redis: Redis) -> None:
    push(redis, *(str(number) for number in range(1, 8)))
    fetch(wire, 7)
    seen, at = [], (1, "")
    while at[0]:
        found = leases(wire, at=at, most=3)
        at = (found[0], found[1])
        assert 0 < len(found[5::5]) <= 3
        seen += found[5::5]
    assert seen == [str(number).encode() for number in range(7, 0, -1)]


@pytest.mark.parametrize(
    ("payload", "how"),
    [
        ('{"class":"J","args":["%s"]}', b"bare"),
        ('{"class":"J","args":["%s","\\"forkq\\""]}', b"bare"),
        ('{"class":"J","args":["%s"],"forkq":{}}', b"once"),
        ('{"class":"J","forkq":{},"args":["%s","forkq"]}', b"large"),
        ('{"class":"J","args":["%s"]} ', b"large"),
        ('"%s"', b"large"),
    ],
)
def test_of_a_large_payload_leases_shows_the_ends(
    wire: Wire, redis: Redis, payload: str, how: bytes
) -> None:
    text = (payload % ("x" * 10_000)).encode()
    push(redis, text.decode())
    fetch(wire, 1)
    *_, found, head, tail = leases(wire)
    assert found == how
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head + tail) < 5000


def test_an_owner_whose_name_begins_like_another_is_another(wire: Wire, redis: Redis) -> None:
    push(redis, "1")
    fetch(wire, 1, owner="vm:11:aaaaaaaaaaaa/")
    assert leases(wire, owner="vm:1:aaaaaaaaaaaa/") == [0, b""]
    assert requeue(wire) == 0


def test_requeue_moves_the_newest_first_and_not_too_much_at_a_time(
    wire: Wire, redis: Redis
) -> None:
    push(redis, "11", "22", "33")
    fetch(wire, 3)
    keys, arguments = ("queues", LIST, INFLIGHT), (OWNER, 0, 3)
    assert wire.script(REQUEUE, keys, arguments) == [2, 1]
    assert line(redis) == [b"22", b"33"]
    assert wire.script(REQUEUE, keys, arguments) == [1, 0]
    assert line(redis) == [b"11", b"22", b"33"]


def test_what_goes_back_makes_a_deleted_queue_a_queue_again(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2")
    fetch(wire, 2)
    redis.delete("queues")
    assert recover(wire, 1, f"{OWNER}2", "requeue", 0, "2", "") == 1
    assert redis.smembers("queues") == {b"q"}
    redis.delete("queues")
    assert requeue(wire) == 1
    assert redis.smembers("queues") == {b"q"}


# recover


NOTE = "forkq:lost:vm:1:aaaaaaaaaaaa"


def recover(wire: Wire, *moves: object, size: int = 10_000, note_for: int = 0) -> int:
    keys = ("dead", NOTE, "queues", LIST, INFLIGHT)
    moved: int = wire.script(RECOVER, keys, (100.5, 0, size, note_for, *moves))
    return moved


def test_recovered_jobs_stand_at_the_head_oldest_first_with_their_new_payload(
    wire: Wire, redis: Redis
) -> None:
    push(redis, "1", "2", "3", "4")
    fetch(wire, 3)
    moves = [
        part
        for number in (3, 2, 1)
        for part in (1, f"{OWNER}{number}", "requeue", 0, f"{number}, stamped", f"J {number}")
    ]
    assert recover(wire, *moves) == 3
    assert line(redis) == [b"1, stamped", b"2, stamped", b"3, stamped", b"4"]
    assert recover(wire, *moves) == 0
    assert len(line(redis)) == 4


def test_recover_writes_only_the_end_of_a_payload_that_stays(wire: Wire, redis: Redis) -> None:
    push(redis, "12345", "67890")
    fetch(wire, 2)
    moves = (1, f"{OWNER}2", "requeue", -1, "!", "J", 1, f"{OWNER}1", "requeue", -3, "?", "J")
    assert recover(wire, *moves) == 2
    assert line(redis) == [b"12?", b"6789!"]


def test_recover_buries_what_it_is_told_to_and_trims(wire: Wire, redis: Redis) -> None:
    redis.zadd("dead", {"old": 1, "older": 0.5})
    push(redis, "1", "2")
    fetch(wire, 2)
    moves = (1, f"{OWNER}2", "bury", 0, "two", "J 2", 1, f"{OWNER}1", "requeue", 0, "one", "J 1")
    assert recover(wire, *moves, size=2) == 2
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"old", 1.0], [b"two", 100.5]]
    assert line(redis) == [b"one"]


def test_recover_notes_what_it_took_and_nothing_else(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2")
    fetch(wire, 2)
    moves = (1, f"{OWNER}2", "bury", 0, "two", "J 2", 1, f"{OWNER}9", "requeue", 0, "gone", "J 9")
    assert recover(wire, *moves, note_for=60) == 1
    assert redis.hgetall(NOTE) == {b"2": b"J 2"}
    assert 0 < redis.ttl(NOTE) <= 60
    assert recover(wire, 1, f"{OWNER}1", "requeue", 0, "one", "J 1") == 1
    assert redis.hgetall(NOTE) == {b"2": b"J 2"}


def test_a_note_that_cannot_be_written_keeps_no_job_from_going_back(
    wire: Wire, redis: Redis
) -> None:
    push(redis, "1")
    fetch(wire, 1)
    redis.set(NOTE, "something else")
    assert recover(wire, 1, f"{OWNER}1", "requeue", 0, "one", "J 1", note_for=60) == 1
    assert (line(redis), inflight(redis)) == ([b"one"], {})


# retry, bury


def test_retry_drops_the_lease_and_schedules_or_neither(wire: Wire, redis: Redis) -> None:
    push(redis, "1")
    fetch(wire, 1)
    arguments = (f"{OWNER}1", 1795216073.7703071, "one again")
    assert wire.script(RETRY, (INFLIGHT, "retry"), arguments) == 1
    assert inflight(redis) == {}
    assert redis.zrange("retry", 0, -1, withscores=True) == [[b"one again", 1795216073.7703071]]
    redis.delete("retry")
    assert wire.script(RETRY, (INFLIGHT, "retry"), arguments) == 0
    assert redis.exists("retry") == 0


def test_bury_drops_the_lease_and_adds_to_the_dead_or_neither(wire: Wire, redis: Redis) -> None:
    push(redis, "1")
    fetch(wire, 1)
    arguments = (f"{OWNER}1", 100.25, "one", 50, 10_000)
    assert wire.script(BURY, (INFLIGHT, "dead"), arguments) == 1
    assert inflight(redis) == {}
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"one", 100.25]]
    redis.delete("dead")
    assert wire.script(BURY, (INFLIGHT, "dead"), arguments) == 0
    assert redis.exists("dead") == 0


# due


def due(wire: Wire, name: str, *moves: object, lists: tuple[str, ...] = ("a", "b")) -> list[bytes]:
    """Moves at time 100.5, and asks for what is ripe next: at most 10 jobs, about 1000 bytes."""
    keys = (name, "queues", "dead", *(f"queue:{queue}" for queue in lists))
    first, _, *ripe = wire.script(DUE, keys, (100.5, 10, 1000, *moves))
    return [first, *ripe]


def test_due_moves_a_member_only_if_it_is_still_there(wire: Wire, redis: Redis) -> None:
    redis.zadd("schedule", {"1": 1, "2": 2})
    moves = (4, "a", "1", "one", 5, "b", "2", "two", 4, "a", "gone", "three")
    for _ in range(2):
        due(wire, "schedule", *moves)
    assert (line(redis, "a"), line(redis, "b")) == ([b"one"], [b"two"])
    assert redis.smembers("queues") == {b"a", b"b"}
    assert redis.exists("schedule") == 0


def test_due_buries_what_is_no_job(wire: Wire, redis: Redis) -> None:
    redis.zadd("retry", {"{nope": 1})
    due(wire, "retry", 3, "", "{nope", "{nope")
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"{nope", 100.5]]
    assert redis.keys("*") == [b"dead"]


# An error in the middle: Redis undoes nothing, so nothing may be undone


@pytest.mark.parametrize(("script", "target"), [(RETRY, "retry"), (BURY, "dead")])
def test_a_job_that_cannot_be_added_keeps_its_lease(
    wire: Wire, redis: Redis, script: Script, target: str
) -> None:
    push(redis, "1")
    fetch(wire, 1)
    redis.set(target, "something else")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        wire.script(script, (INFLIGHT, target), (f"{OWNER}1", 5.5, "one", 0, 100))
    assert list(inflight(redis).values()) == [b"1"]


def test_jobs_that_cannot_go_back_keep_their_leases(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2")
    fetch(wire, 2)
    redis.set(LIST, "something else")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        requeue(wire)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        recover(wire, 1, f"{OWNER}1", "requeue", 0, "one", "J 1", note_for=60)
    assert len(inflight(redis)) == 2
    assert redis.exists(NOTE) == 0, "a note of a lease that stands"


def test_a_due_job_whose_queue_is_no_list_is_put_off_and_holds_no_other_up(
    wire: Wire, redis: Redis
) -> None:
    redis.set("queue:a", "something else")
    redis.zadd("schedule", {"1": 1, "2": 2})
    due(wire, "schedule", 4, "a", "1", "one", 5, "b", "2", "two")
    assert redis.zrange("schedule", 0, -1, withscores=True) == [[b"one", 160.5]]
    assert not redis.exists("dead")
    assert line(redis, "b") == [b"two"]


# A server that is full


def test_on_a_full_server_every_move_still_works(full: Server) -> None:
    """Its first write is always a removal; so forkq drains a server that nobody can push to."""
    redis, wire = full.client(), Wire(full.url)
    wire.connect()
    push(redis, *map(str, range(1, 11)))
    redis.zadd("schedule", {"due": 1, "{nope": 1})
    fill(full)
    assert fetch(wire, 5) == [b"1", b"2", b"3", b"4", b"5"]
    assert fetch(wire, 1, first=6, done=(1, 1, 1)) == [b"6"]
    assert wire.script(RETRY, (INFLIGHT, "retry"), (f"{OWNER}2", 5.5, "2 again")) == 1
    assert wire.script(BURY, (INFLIGHT, "dead"), (f"{OWNER}3", 5.5, "3 dead", 0, 100)) == 1
    last = (1, f"{OWNER}6", "bury", 0, "6 dead", "J 6")
    moves = (*last, 1, f"{OWNER}5", "requeue", 0, "5 stamped", "J 5")
    assert recover(wire, *moves, note_for=60) == 2
    assert redis.hgetall(NOTE) == {b"6": b"J 6", b"5": b"J 5"}
    assert requeue(wire) == 1
    due(wire, "schedule", 4, "q", "due", "due now", 3, "", "{nope", "{nope", lists=("q",))
    assert line(redis) == [b"4", b"5 stamped", b"7", b"8", b"9", b"10", b"due now"]
    assert inflight(redis) == {}
    assert redis.zrange("retry", 0, -1) == [b"2 again"]
    assert set(redis.zrange("dead", 0, -1)) == {b"3 dead", b"6 dead", b"{nope"}
    wire.close()


def test_a_weighted_fetch_works_on_a_full_server(full: Server) -> None:
    redis, wire = full.client(), Wire(full.url)
    wire.connect()
    push(redis, "a1", queue="a")
    push(redis, "b1", queue="b")
    fill(full)
    taken = fetch(wire, 5, queues=("a", "b"), weights=(2, 1), seed=3)
    assert sorted(taken) == [b"a1", b"b1"]
    wire.close()


def test_a_server_that_forgot_the_scripts_is_told_again(wire: Wire, redis: Redis) -> None:
    push(redis, "1", "2")
    assert fetch(wire, 1) == [b"1"]
    redis.script_flush()
    assert fetch(wire, 1, first=2) == [b"2"]
