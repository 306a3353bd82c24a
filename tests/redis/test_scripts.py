"""Each Lua script on the real server: all of a move or none, once, in order, and when full."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from forkq.store.connection import RedisConnection
from forkq.store.scripts import (
    BURY,
    DUE_JOBS,
    FETCH,
    FETCH_SUSPECTS,
    ISOLATE,
    LEASES_OF_OWNER,
    RECOVER,
    REQUEUE,
    RETRY,
    Script,
)
from tests.support.fetch_calls import KEYS, counted, keys_of
from tests.support.server import Server

OWNER = "vm:1:aaaaaaaaaaaa/"
OTHER = "vm:2:bbbbbbbbbbbb/"
LIST, INFLIGHT = "queue:q", "{queue:q}:inflight"
SUSPECTS, INDEX = "{queue:q}:suspects", "forkq:suspects"
MARK, BUCKET = "{queue:q}:awaited", "{queue:q}:bucket"
# What fetch.lua reads after the acknowledgements if there are no groups and no rules.
NO_RULES: tuple[int, ...] = ()


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def full() -> Iterator[Server]:
    """A server that refuses additions once `fill` was called."""
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
    connection: RedisConnection,
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
    count = len(queues)
    arguments = (want, owner, first, seed, count, want, count, *counted(done), *rules)
    keys = keys_of(*queues, done=done)
    taken: list[bytes] = connection.script(FETCH, keys, arguments)[4:]
    return taken[1::2]


def plain(weights: Sequence[int]) -> list[int]:
    """Its arguments for groups of one queue each, without rules."""
    return [len(weights), *(part for weight in weights for part in (1, weight, 0)), 0]


def line(redis: Redis, queue: str = "q") -> list[bytes]:
    """The jobs of a queue, the next one to run first."""
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return list(reversed(found))


def inflight(redis: Redis, queue: str = "q") -> dict[bytes, bytes]:
    found: Any = redis.hgetall(f"{{queue:{queue}}}:inflight")
    return dict(found)


# fetch


def test_fetch_leases_the_oldest_jobs_in_order(connection: RedisConnection, redis: Redis) -> None:
    push(redis, "1", "2", "3", "4")
    assert fetch(connection, 3, first=7) == [b"1", b"2", b"3"]
    assert line(redis) == [b"4"]
    assert inflight(redis) == {
        f"{OWNER}{7 + number}".encode(): payload
        for number, payload in enumerate([b"1", b"2", b"3"])
    }


def test_fetch_takes_no_more_than_there_is(connection: RedisConnection, redis: Redis) -> None:
    assert fetch(connection, 5) == []
    push(redis, "1")
    assert fetch(connection, 5) == [b"1"]
    assert redis.exists(LIST) == 0


def test_fetch_of_none_only_acknowledges(connection: RedisConnection, redis: Redis) -> None:
    push(redis, "1", "2", "3")
    fetch(connection, 2)
    assert fetch(connection, 0, done=(1, 2, 1, 2)) == []
    assert inflight(redis) == {}
    assert line(redis) == [b"3"]


def test_acknowledging_twice_changes_nothing_and_leaves_other_owners_leases(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2", "3")
    fetch(connection, 1)
    fetch(connection, 1, owner=OTHER)
    assert fetch(connection, 1, first=2, done=(1, 1, 1)) == [b"3"]
    fetch(connection, 0, done=(1, 1, 1))
    assert inflight(redis) == {f"{OTHER}1".encode(): b"2", f"{OWNER}2".encode(): b"3"}


def test_acknowledging_without_a_lease_is_reported(
    connection: RedisConnection, redis: Redis
) -> None:
    """The first element is 1: another process may have been given that job."""
    push(redis, "1", "2", "3")
    fetch(connection, 2)
    once, twice = (
        (1, OWNER, 3, 0, 1, 1, 1, *counted(done), *NO_RULES) for done in ((1, 1, 1), (1, 2, 1, 2))
    )
    keys = keys_of("q", done=(1, 1, 1))
    assert connection.script(FETCH, keys, once) == [0, 0, [], [], 1, b"3"]
    assert connection.script(FETCH, keys, twice)[0] == 1


def test_one_exchange_acknowledges_in_several_queues(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "a1", queue="a")
    push(redis, "b1", "b2", queue="b")
    assert fetch(connection, 3, queues=("a", "b")) == [b"a1", b"b1", b"b2"]
    fetch(connection, 0, queues=("a", "b"), done=(1, 1, 1, 2, 2, 2, 3))
    assert inflight(redis, "a") == inflight(redis, "b") == {}


def test_strict_order_empties_the_higher_queue_first(
    connection: RedisConnection, redis: Redis
) -> None:
    for queue in ("low", "mid", "high"):
        push(redis, f"{queue}1", f"{queue}2", f"{queue}3", queue=queue)
    queues = ("high", "mid", "low")
    assert fetch(connection, 4, queues=queues) == [b"high1", b"high2", b"high3", b"mid1"]
    push(redis, "high4", queue="high")
    assert fetch(connection, 2, queues=queues, first=5) == [b"high4", b"mid2"]


def shares(connection: RedisConnection, redis: Redis, want: int, jobs: int = 18_000) -> list[float]:
    """How many of so many jobs came from each of three queues, in percent."""
    seeds = random.Random(7)
    queues, weights = ("a", "b", "c"), (10, 5, 3)
    for queue in queues:
        push(redis, *[queue] * jobs, queue=queue)
    keys = keys_of(*queues)
    connection.call("SCRIPT", "LOAD", FETCH.text)
    head = ("EVALSHA", FETCH.sha, len(keys), *keys, want, OWNER)
    commands: list[tuple[Any, ...]] = [
        (*head, first, seeds.getrandbits(31) | 1, 3, want, 3, 0, *plain(weights))
        for first in range(1, jobs + 1, want)
    ]
    drawn: Counter[bytes] = Counter()
    for start in range(0, len(commands), 500):
        for taken in connection.pipeline(commands[start : start + 500]):
            drawn.update(taken[5::2])
    assert drawn.total() == jobs
    return [100 * drawn[queue.encode()] / jobs for queue in queues]


@pytest.mark.parametrize("want", [1, 4, 10, 1000])
def test_weighted_shares_of_18000_jobs_come_within_two_points(
    connection: RedisConnection, redis: Redis, want: int
) -> None:
    found = shares(connection, redis, want)
    assert found == pytest.approx([1000 / 18, 500 / 18, 300 / 18], abs=2)


def test_a_weighted_fetch_takes_all_that_is_wanted_while_any_queue_has_jobs(
    connection: RedisConnection, redis: Redis
) -> None:
    queues, weights = ("a", "b", "c"), (1000, 1, 1)
    push(redis, "b1", "b2", queue="b")
    push(redis, "c1", queue="c")
    taken = fetch(connection, 10, queues=queues, weights=weights, seed=5)
    assert sorted(taken) == [b"b1", b"b2", b"c1"]
    assert taken.index(b"b1") < taken.index(b"b2")


def test_each_weighted_job_gets_a_lease_of_its_own(
    connection: RedisConnection, redis: Redis
) -> None:
    for queue in ("a", "b"):
        push(redis, *(f"{queue}{number}" for number in range(50)), queue=queue)
    taken = fetch(connection, 60, queues=("a", "b"), weights=(3, 1), seed=99)
    leases = {**inflight(redis, "a"), **inflight(redis, "b")}
    assert len(taken) == len(leases) == 60
    assert [leases[f"{OWNER}{number}".encode()] for number in range(1, 61)] == taken


def test_a_thousand_processors_fetch_and_acknowledge_at_once(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, *map(str, range(1000)))
    assert len(fetch(connection, 1000)) == 1000
    fetch(connection, 0, done=(1, 1000, *range(1, 1001)))
    assert inflight(redis) == {}


def test_a_fetch_asks_for_the_keys_of_a_queue_with_rules_changed_at_run_time(
    connection: RedisConnection, redis: Redis
) -> None:
    """It makes no key. It still acknowledges, but takes nothing: else it could break that rule, or
    the order of the queues."""
    for queue in "abc":
        push(redis, f"{queue}1", f"{queue}2", queue=queue)
    fetch(connection, 1, queues=("a", "b", "c"))
    redis.hset("{queue:b}:control", "limit", 1)
    redis.hset("forkq:controlled", "b", 1)
    head = (4, OWNER, 2, 0, 3, 4, 3)
    lacking = connection.script(FETCH, keys_of(*"abc", done=(1, 1, 1)), (*head, 1, 1, 1, 1))
    assert lacking == [0, 1, [2, b"unkeyed", 0], []]
    assert inflight(redis, "a") == {}
    rules = (0, 1, 2, "", "", "", "", "", 0)  # says nothing of queue 2
    found = connection.script(FETCH, keys_of(*"abc", ruled=["b"]), (*head, 0, *rules))
    assert found[4:] == [1, b"a2", 2, b"b1", 3, b"c1", 3, b"c2"]


# requeue, leases


def requeue(
    connection: RedisConnection, *keep: int, queues: tuple[str, ...] = ("q",), bound: int = 0
) -> int:
    keys = KEYS.of_returns(queues)
    moved, left = connection.script(REQUEUE, ("queues", *keys), (OWNER, bound, 1000, *keep))
    assert left == 0
    return int(moved)


def test_requeued_jobs_are_at_the_head_in_their_old_order(
    connection: RedisConnection, redis: Redis
) -> None:
    payloads = [str(number) for number in range(1, 13)]  # beyond 9: numbers, not text, are sorted
    push(redis, *payloads)
    fetch(connection, 11)
    push(redis, "new")
    assert requeue(connection) == 11
    assert line(redis) == [payload.encode() for payload in [*payloads, "new"]]
    assert inflight(redis) == {}


def test_requeue_leaves_the_excepted_leases_and_those_of_other_owners(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2", "3", "4")
    fetch(connection, 3)
    fetch(connection, 1, owner=OTHER)
    assert requeue(connection, 2) == 2
    assert line(redis) == [b"1", b"3"]
    assert sorted(inflight(redis).values()) == [b"2", b"4"]
    assert requeue(connection, 2) == 0


def test_a_requeue_that_arrives_late_leaves_younger_leases(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2", "3")
    fetch(connection, 3)
    assert requeue(connection, bound=3) == 2
    assert list(inflight(redis)) == [f"{OWNER}3".encode()]


def test_requeue_returns_each_job_to_its_own_queue(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "a1", queue="a")
    push(redis, "b1", queue="b")
    fetch(connection, 2, queues=("a", "b"))
    assert requeue(connection, queues=("a", "b")) == 2
    assert (line(redis, "a"), line(redis, "b")) == ([b"a1"], [b"b1"])


def leases(
    connection: RedisConnection,
    *,
    at: tuple[object, object] = (1, ""),
    most: int = 1000,
    large: int = 1000,
    owner: str = OWNER,
) -> list[Any]:
    found: list[Any] = connection.script(LEASES_OF_OWNER, (INFLIGHT,), (owner, *at, most, large))
    return found


def test_leases_lists_what_one_owner_holds_newest_first_and_changes_nothing(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, *(str(number) for number in range(1, 13)))
    fetch(connection, 11)
    fetch(connection, 1, owner=OTHER)
    found = leases(connection)
    assert found[:2] == [0, b""]
    assert found[2::5] == [1] * 11
    assert found[3::5] == [f"{OWNER}{number}".encode() for number in range(11, 0, -1)]
    assert set(found[4::5]) == {b"whole"}
    assert found[5::5] == [str(number).encode() for number in range(11, 0, -1)]
    assert len(inflight(redis)) == 12


def test_leases_continues_where_it_stopped(connection: RedisConnection, redis: Redis) -> None:
    push(redis, *(str(number) for number in range(1, 8)))
    fetch(connection, 7)
    seen, at = [], (1, "")
    while at[0]:
        found = leases(connection, at=at, most=3)
        at = (found[0], found[1])
        assert 0 < len(found[5::5]) <= 3
        seen += found[5::5]
    assert seen == [str(number).encode() for number in range(7, 0, -1)]


@pytest.mark.parametrize(
    ("payload", "how"),
    [
        ('{"class":"J","args":["%s"]}', b"bare"),
        ('{"class":"J","args":["%s","\\"forkq\\""]}', b"bare"),
        ('{"class":"J","args":["%s"],"forkq":{}}', b"ends"),
        ('{"class":"J","forkq":{},"args":["%s","forkq"]}', b"ends"),
        ('{"class":"J","args":["%s"]} ', b"ends"),
        ('"%s"', b"ends"),
    ],
)
def test_leases_returns_the_ends_of_a_large_payload(
    connection: RedisConnection, redis: Redis, payload: str, how: bytes
) -> None:
    text = (payload % ("x" * 10_000)).encode()
    push(redis, text.decode())
    fetch(connection, 1)
    *_, found, head, tail = leases(connection)
    assert found == how
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head + tail) < 5000


def test_an_owner_whose_name_begins_like_another_is_another(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    fetch(connection, 1, owner="vm:11:aaaaaaaaaaaa/")
    assert leases(connection, owner="vm:1:aaaaaaaaaaaa/") == [0, b""]
    assert requeue(connection) == 0


def test_requeue_moves_the_newest_first_and_not_too_much_at_a_time(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "11", "22", "33")
    fetch(connection, 3)
    keys, arguments = ("queues", LIST, INFLIGHT, MARK), (OWNER, 0, 3)
    assert connection.script(REQUEUE, keys, arguments) == [2, 1]
    assert line(redis) == [b"22", b"33"]
    assert connection.script(REQUEUE, keys, arguments) == [1, 0]
    assert line(redis) == [b"11", b"22", b"33"]


def test_a_returned_job_adds_a_deleted_queue_to_the_queue_names(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    fetch(connection, 2)
    redis.delete("queues")
    assert recover(connection, 1, f"{OWNER}2", "requeue", 0, "2", "") == 1
    assert redis.smembers("queues") == {b"q"}
    redis.delete("queues")
    assert requeue(connection) == 1
    assert redis.smembers("queues") == {b"q"}


# recover


NOTE = "forkq:lost:vm:1:aaaaaaaaaaaa"


def recover(
    connection: RedisConnection,
    *moves: object,
    size: int = 10_000,
    note_for: int = 0,
    read: str = "",
) -> int:
    keys = ("dead", NOTE, "queues", "schedule", INDEX, LIST, INFLIGHT, MARK, SUSPECTS)
    given = [(*moves[at : at + 5], read, moves[at + 5]) for at in range(0, len(moves), 6)]
    arguments = [part for each in given for part in each]
    moved: int = connection.script(RECOVER, keys, (100.5, 0, size, note_for, *arguments))
    return moved


def test_recovered_jobs_are_at_the_head_oldest_first_with_their_new_payload(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2", "3", "4")
    fetch(connection, 3)
    moves = [
        part
        for number in (3, 2, 1)
        for part in (1, f"{OWNER}{number}", "requeue", 0, f"{number}, stamped", f"J {number}")
    ]
    assert recover(connection, *moves) == 3
    assert line(redis) == [b"1, stamped", b"2, stamped", b"3, stamped", b"4"]
    assert recover(connection, *moves) == 0
    assert len(line(redis)) == 4


def test_recover_writes_only_the_end_of_a_payload_that_stays(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "12345", "67890")
    fetch(connection, 2)
    moves = (1, f"{OWNER}2", "requeue", -1, "!", "J", 1, f"{OWNER}1", "requeue", -3, "?", "J")
    assert recover(connection, *moves) == 2
    assert line(redis) == [b"12?", b"6789!"]


def test_a_payload_that_has_changed_since_it_was_read_goes_back_as_it_is(
    connection: RedisConnection, redis: Redis
) -> None:
    """A late command of the dead owner has changed it: the crash is not that of this payload."""
    push(redis, "one", "two", "three")
    fetch(connection, 3)
    moves = [(1, f"{OWNER}{n}", "requeue", 0, "stamped", "J") for n in (3, 2)]
    assert recover(connection, *moves[0], read="thr") == 1
    assert recover(connection, *moves[1], read="two") == 1
    assert recover(connection, 1, f"{OWNER}1", "bury", -2, "!", "J", read="nx") == 1
    assert line(redis) == [b"stamped", b"three"]
    assert redis.lrange(SUSPECTS, 0, -1) == [b"one"]
    assert redis.exists("dead", INFLIGHT) == 0


def test_recover_buries_the_named_jobs_and_trims(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("dead", {"old": 1, "older": 0.5})
    push(redis, "1", "2")
    fetch(connection, 2)
    moves = (1, f"{OWNER}2", "bury", 0, "two", "J 2", 1, f"{OWNER}1", "requeue", 0, "one", "J 1")
    assert recover(connection, *moves, size=2) == 2
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"old", 1.0], [b"two", 100.5]]
    assert line(redis) == [b"one"]


def test_recover_notes_what_it_took_and_nothing_else(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    fetch(connection, 2)
    moves = (1, f"{OWNER}2", "bury", 0, "two", "J 2", 1, f"{OWNER}9", "requeue", 0, "gone", "J 9")
    assert recover(connection, *moves, note_for=60) == 1
    assert redis.hgetall(NOTE) == {b"2": b"J 2"}
    assert 0 < redis.ttl(NOTE) <= 60
    assert recover(connection, 1, f"{OWNER}1", "requeue", 0, "one", "J 1") == 1
    assert redis.hgetall(NOTE) == {b"2": b"J 2"}


def test_recovered_suspects_go_to_either_end_of_their_list(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2", "3")
    fetch(connection, 3)
    redis.lpush(SUSPECTS, "first", "last")
    wheres = ("isolate_last", "isolate", "isolate")
    rows = [(1, f"{OWNER}{3 - n}", where, -1, f"{n}", "J") for n, where in enumerate(wheres)]
    assert recover(connection, *(part for row in rows for part in row)) == 3
    assert redis.lrange(SUSPECTS, 0, -1)[::-1] == [b"2", b"1", b"first", b"last", b"0"]
    assert redis.smembers(INDEX) == {b"q"}
    assert line(redis) == []


# suspects


def fetch_suspects(
    connection: RedisConnection, *rules: object, first: int = 1, solo: str = "vm:1:soloaaaaaaaa/"
) -> list[Any]:
    of_rules = KEYS.of_rules("q") if rules else ()
    keys = ("paused", "forkq:controlled", SUSPECTS, INFLIGHT, *of_rules, INDEX)
    arguments = (1, solo, first, 0, 1, 1, 1, 0, *rules)
    found: list[Any] = connection.script(FETCH_SUSPECTS, keys, arguments)
    return found


LIMIT_1 = (0, 1, 1, 1, "", "", "", "", 0)  # no groups; the rules of queue 1
RATE = (0, 1, 1, "", "", 1, 1_000_000, 1, 0)
TURN = "{queue:q}:turn"


def test_who_takes_the_last_suspect_removes_the_name_of_the_queue(
    connection: RedisConnection, redis: Redis
) -> None:
    redis.sadd(INDEX, "q", "other")
    redis.lpush(SUSPECTS, "1", "2")
    push(redis, "ordinary")
    assert fetch_suspects(connection)[4:] == [1, b"1"]
    assert redis.smembers(INDEX) == {b"q", b"other"}
    assert fetch_suspects(connection, first=2)[4:] == [1, b"2"]
    assert redis.smembers(INDEX) == {b"other"}
    assert fetch_suspects(connection, first=3)[4:] == []
    assert line(redis) == [b"ordinary"]


def test_an_ordinary_child_moves_a_suspect_to_the_head_of_their_list(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    fetch(connection, 2)
    redis.lpush(SUSPECTS, "next")
    keys = (INFLIGHT, SUSPECTS, INDEX, LIST, "classes", MARK, BUCKET)
    assert connection.script(ISOLATE, keys, (f"{OWNER}1", "q")) == 1
    assert connection.script(ISOLATE, keys, (f"{OWNER}1", "q")) == 0
    assert redis.lrange(SUSPECTS, 0, -1)[::-1] == [b"1", b"next"]
    assert redis.smembers(INDEX) == {b"q"}
    assert list(inflight(redis).values()) == [b"2"]


def fetch_by(connection: RedisConnection, rules: tuple[object, ...], *done: int) -> list[Any]:
    """What an ordinary child gets that acknowledges ``done`` and wants two jobs."""
    first = max((0, *done)) + 1
    acknowledged = (1, len(done), *done) if done else ()
    keys = keys_of("q", done=acknowledged, ruled=["q"])
    found: list[Any] = connection.script(
        FETCH, keys, (2, OWNER, first, 0, 1, 2, 1, *counted(acknowledged), *rules)
    )
    return found


@pytest.mark.parametrize(("rules", "reason"), [(LIMIT_1, b"full"), (RATE, b"dry")])
def test_a_solo_child_that_a_rule_refuses_is_left_the_next_permit_or_token(
    connection: RedisConnection, redis: Redis, rules: tuple[object, ...], reason: bytes
) -> None:
    """Else an ordinary child with an endless backlog would free and take it in one step."""
    push(redis, *map(str, range(9)))
    redis.lpush(SUSPECTS, "suspect")
    assert fetch_by(connection, rules)[4:] == [1, b"0"]
    assert fetch_suspects(connection, *rules)[2][1] == reason
    assert redis.hkeys(TURN) == [b"vm:1:soloaaaaaaaa/"]
    redis.delete("{queue:q}:bucket")  # a token comes
    assert fetch_by(connection, rules, 1)[4:] == []
    assert fetch_suspects(connection, *rules, first=2)[4:] == [1, b"suspect"]
    assert redis.exists(TURN) == 0
    redis.hdel(INFLIGHT, "vm:1:soloaaaaaaaa/2")
    redis.delete("{queue:q}:bucket", MARK)
    assert fetch_by(connection, rules, 2)[4:] == [1, b"1"]


def test_the_note_of_a_solo_child_that_is_gone_soon_counts_no_more(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    redis.lpush(SUSPECTS, "suspect")
    [seconds, _] = redis.time()
    redis.hset(TURN, "vm:1:soloaaaaaaaa/", seconds - 14)
    assert fetch_by(connection, LIMIT_1)[4:] == []
    assert 0 < redis.ttl(MARK) <= 15, "its end wakes those that wait"
    redis.hset(TURN, "vm:1:soloaaaaaaaa/", seconds - 16)
    assert fetch_by(connection, LIMIT_1)[4:] == [1, b"1"]


def test_no_more_permits_are_left_than_suspects_wait(
    connection: RedisConnection, redis: Redis
) -> None:
    """The solo children of several trees wait, one gets the suspect, and their notes stay."""
    push(redis, "1", "2", "3")
    redis.lpush(SUSPECTS, "suspect")
    rules = (0, 1, 1, 2, "", "", "", "", 0)
    [seconds, _] = redis.time()
    redis.hset(TURN, mapping={f"vm:{n}:soloaaaaaaaa/": seconds for n in range(3)})
    assert fetch_by(connection, rules)[4:] == [1, b"1"]
    redis.delete(SUSPECTS)
    assert fetch_by(connection, rules, 1)[4:] == [1, b"2", 1, b"3"]


def test_a_solo_child_without_a_suspect_keeps_no_permit(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    fetch_by(connection, LIMIT_1)
    fetch_suspects(connection, *LIMIT_1)
    assert redis.exists(TURN) == 0


def test_of_a_large_payload_a_fetch_returns_the_length(
    connection: RedisConnection, redis: Redis
) -> None:
    """The processor reads it, once it has noted that the job begins."""
    push(redis, "x" * 262_144, "y" * 262_145, "z")
    assert fetch(connection, 3) == [b"x" * 262_144, 262_145]
    assert len(inflight(redis)[f"{OWNER}2".encode()]) == 262_145


def test_a_note_that_cannot_be_written_keeps_no_job_from_going_back(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    fetch(connection, 1)
    redis.set(NOTE, "another type")
    assert recover(connection, 1, f"{OWNER}1", "requeue", 0, "one", "J 1", note_for=60) == 1
    assert (line(redis), inflight(redis)) == ([b"one"], {})


# retry, bury


def test_retry_drops_the_lease_and_schedules_or_neither(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    fetch(connection, 1)
    arguments = (f"{OWNER}1", 1795216073.7703071, "one again")
    assert connection.script(RETRY, (INFLIGHT, "retry", MARK, BUCKET), arguments) == 1
    assert inflight(redis) == {}
    assert redis.zrange("retry", 0, -1, withscores=True) == [[b"one again", 1795216073.7703071]]
    redis.delete("retry")
    assert connection.script(RETRY, (INFLIGHT, "retry", MARK, BUCKET), arguments) == 0
    assert redis.exists("retry") == 0


def test_bury_drops_the_lease_and_adds_to_the_dead_or_neither(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1")
    fetch(connection, 1)
    arguments = (f"{OWNER}1", 100.25, "one", 50, 10_000)
    assert connection.script(BURY, (INFLIGHT, "dead", MARK), arguments) == 1
    assert inflight(redis) == {}
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"one", 100.25]]
    redis.delete("dead")
    assert connection.script(BURY, (INFLIGHT, "dead", MARK), arguments) == 0
    assert redis.exists("dead") == 0


# due


def due(
    connection: RedisConnection, name: str, *moves: object, lists: tuple[str, ...] = ("a", "b")
) -> list[bytes]:
    """Moves at time 100.5, and asks for what is ripe next: at most 10 jobs, about 1000 bytes."""
    pairs = ((f"queue:{queue}", f"{{queue:{queue}}}:suspects") for queue in lists)
    fixed = (name, "queues", "dead", INDEX, "forkq:marked", "forkq:totals:ends")
    keys = (*fixed, *(key for pair in pairs for key in pair))
    first, _, *ripe = connection.script(DUE_JOBS, keys, (100.5, 10, 1000, *moves))
    return [first, *ripe]


def test_due_moves_a_member_only_if_it_is_still_there(
    connection: RedisConnection, redis: Redis
) -> None:
    redis.zadd("schedule", {"1": 1, "2": 2})
    moves = (1, 0, "", "1", "one", 2, 0, "", "2", "two", 1, 0, "", "gone", "three")
    for _ in range(2):
        due(connection, "schedule", *moves)
    assert (line(redis, "a"), line(redis, "b")) == ([b"one"], [b"two"])
    assert redis.smembers("queues") == {b"a", b"b"}
    assert redis.exists("schedule") == 0


def test_due_suspects_go_to_their_list(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("retry", {"1": 1, "2": 2})
    due(connection, "retry", 1, 1, "", "1", "one", 1, 0, "", "2", "two", lists=("q",))
    assert redis.lrange(SUSPECTS, 0, -1) == [b"one"]
    assert line(redis) == [b"two"]
    assert (redis.smembers(INDEX), redis.smembers("queues")) == ({b"q"}, {b"q"})


def test_due_returns_the_beginning_of_a_large_member_and_moves_it_unchanged(
    connection: RedisConnection, redis: Redis
) -> None:
    plain, suspect = "a" * 300_000, "b" * 300_000 + '"forkq":{"suspect":true}}'
    redis.zadd("schedule", {"1": 1, plain: 2, suspect: 3, "later": 200})
    found: list[Any] = due(connection, "schedule")
    assert found == [b"100.5", b"1", [1, 300_000, b"a" * 512, b"a" * 4096]]
    head = (1, 0, 1, "a" * 512, 300_000)
    again: Any = due(connection, "schedule", *head, 1, 0, "", "1", "one", lists=("q",))
    assert again[0] == b"100.5"
    rank, length, beginning, end = again[1]
    assert (rank, length, beginning) == (0, len(suspect), b"b" * 512)
    assert suspect.endswith(end.decode())
    assert line(redis) == [plain.encode(), b"one"]
    wrong = (
        (1, 0, 1, "b" * 512, len(suspect)),
        (1, 0, 0, "b" * 512, 5),
        (1, 0, 0, "c", len(suspect)),
    )
    for move in wrong:
        due(connection, "schedule", *move, lists=("q",))
    assert redis.zcard("schedule") == 2
    due(connection, "schedule", 1, 0, 0, "b" * 512, len(suspect), lists=("q",))
    assert redis.lrange(SUSPECTS, 0, -1) == [suspect.encode()]


def test_due_buries_what_is_no_job(connection: RedisConnection, redis: Redis) -> None:
    redis.zadd("retry", {"{nope": 1})
    due(connection, "retry", 0, 0, "", "{nope", "{nope")
    assert redis.zrange("dead", 0, -1, withscores=True) == [[b"{nope", 100.5]]
    assert redis.keys("*") == [b"dead"]


# An error in the middle of a script: Redis does not undo what was done before


@pytest.mark.parametrize("command", ["hdel", "zadd", "hexists"])
@pytest.mark.parametrize(("script", "target"), [(RETRY, "retry"), (BURY, "dead")])
def test_a_refused_command_moves_no_failed_job(
    own_server: Server, script: Script, target: str, command: str
) -> None:
    """Else the job would stay leased, and be in the set as well: each try would add it again."""
    redis = own_server.client()
    redis.hset(INFLIGHT, f"{OWNER}1", "1")
    own_server.cli("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all")
    own_server.cli("ACL", "SETUSER", "limited", f"-{command}")
    connection = RedisConnection(own_server.url.replace("//", "//limited:secret@"))
    connection.connect()
    arguments = (f"{OWNER}1", 5.5, "1 again", 0, *((10,) if script is BURY else ()))
    with pytest.raises(ResponseError):
        connection.script(script, (INFLIGHT, target, MARK, BUCKET), arguments)
    assert (redis.hlen(INFLIGHT), redis.zcard(target)) == (1, 0)
    own_server.cli("ACL", "SETUSER", "limited", f"+{command}")
    assert connection.script(script, (INFLIGHT, target, MARK, BUCKET), arguments) == 1
    assert (redis.hlen(INFLIGHT), redis.zcard(target)) == (0, 1)
    connection.close()


@pytest.mark.parametrize(("script", "target"), [(RETRY, "retry"), (BURY, "dead")])
def test_a_job_that_cannot_be_added_keeps_its_lease(
    connection: RedisConnection, redis: Redis, script: Script, target: str
) -> None:
    push(redis, "1")
    fetch(connection, 1)
    redis.set(target, "another type")
    most = (100,) if script is BURY else ()
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        connection.script(
            script, (INFLIGHT, target, MARK, BUCKET), (f"{OWNER}1", 5.5, "one", 0, *most)
        )
    assert list(inflight(redis).values()) == [b"1"]


def test_jobs_that_cannot_go_back_keep_their_leases(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    fetch(connection, 2)
    redis.set(LIST, "another type")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        requeue(connection)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        recover(connection, 1, f"{OWNER}1", "requeue", 0, "one", "J 1", note_for=60)
    assert len(inflight(redis)) == 2
    assert redis.exists(NOTE) == 0, "a note of a lease that stands"


def test_a_due_job_for_a_damaged_queue_is_tried_later_and_delays_no_other(
    connection: RedisConnection, redis: Redis
) -> None:
    redis.set("queue:a", "another type")
    redis.zadd("schedule", {"1": 1, "2": 2})
    due(connection, "schedule", 1, 0, "", "1", "one", 2, 0, "", "2", "two")
    assert redis.zrange("schedule", 0, -1, withscores=True) == [[b"one", 160.5]]
    assert not redis.exists("dead")
    assert line(redis, "b") == [b"two"]


# A full server


def test_on_a_full_server_every_move_still_works(full: Server) -> None:
    """The first write of each script is a removal, so forkq drains a server that refuses pushes."""
    redis, connection = full.client(), RedisConnection(full.url)
    connection.connect()
    push(redis, *map(str, range(1, 11)))
    redis.zadd("schedule", {"due": 1, "{nope": 1})
    fill(full)
    assert fetch(connection, 5) == [b"1", b"2", b"3", b"4", b"5"]
    assert fetch(connection, 1, first=6, done=(1, 1, 1)) == [b"6"]
    assert (
        connection.script(RETRY, (INFLIGHT, "retry", MARK, BUCKET), (f"{OWNER}2", 5.5, "2 again"))
        == 1
    )
    assert (
        connection.script(BURY, (INFLIGHT, "dead", MARK), (f"{OWNER}3", 5.5, "3 dead", 0, 100)) == 1
    )
    last = (1, f"{OWNER}6", "bury", 0, "6 dead", "J 6")
    moves = (*last, 1, f"{OWNER}5", "requeue", 0, "5 stamped", "J 5")
    assert recover(connection, *moves, note_for=60) == 2
    assert redis.hgetall(NOTE) == {b"6": b"J 6", b"5": b"J 5"}
    assert requeue(connection) == 1
    ripe = (1, 0, "", "due", "due now", 0, 0, "", "{nope", "{nope")
    due(connection, "schedule", *ripe, lists=("q",))
    assert line(redis) == [b"4", b"5 stamped", b"7", b"8", b"9", b"10", b"due now"]
    assert inflight(redis) == {}
    assert redis.zrange("retry", 0, -1) == [b"2 again"]
    assert set(redis.zrange("dead", 0, -1)) == {b"3 dead", b"6 dead", b"{nope"}
    connection.close()


def test_a_weighted_fetch_works_on_a_full_server(full: Server) -> None:
    redis, connection = full.client(), RedisConnection(full.url)
    connection.connect()
    push(redis, "a1", queue="a")
    push(redis, "b1", queue="b")
    fill(full)
    taken = fetch(connection, 5, queues=("a", "b"), weights=(2, 1), seed=3)
    assert sorted(taken) == [b"a1", b"b1"]
    connection.close()


def test_a_script_is_sent_again_if_the_server_has_forgotten_it(
    connection: RedisConnection, redis: Redis
) -> None:
    push(redis, "1", "2")
    assert fetch(connection, 1) == [b"1"]
    redis.script_flush()
    assert fetch(connection, 1, first=2) == [b"2"]
