"""How fetch.lua moves jobs: their leases, their bytes, and what a refused command changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from forkq.store.connection import RedisConnection
from forkq.store.scripts import FETCH
from tests.redis.test_scripts import LIST, OWNER, fetch, fill, inflight, line, push
from tests.support.fetch_calls import counted, keys_of
from tests.support.server import Server

ANSWER_BYTES = 524_288  # as in fetch/move.lua


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


@pytest.fixture
def limited(own_server: Server) -> Iterator[RedisConnection]:
    """A connection of a user whose rights a test takes away."""
    own_server.cli("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all")
    connection = RedisConnection(own_server.url.replace("//", "//limited:secret@"))
    connection.connect()
    yield connection
    connection.close()


@pytest.mark.parametrize("first", [1, 9, 10, 98, 995, 999_999, 99_999_999_990])
@pytest.mark.parametrize("want", [1, 7, 25, 120])
def test_leases_are_numbered_from_the_first_on(
    connection: RedisConnection, redis: Redis, first: int, want: int
) -> None:
    """Also where a number gets one more digit."""
    jobs = [str(number).encode() for number in range(want + 3)]
    redis.lpush(LIST, *jobs)
    assert fetch(connection, want, first=first) == jobs[:want]
    numbers = range(first, first + want)
    assert inflight(redis) == {
        f"{OWNER}{number}".encode(): job for number, job in zip(numbers, jobs, strict=False)
    }
    assert line(redis) == jobs[want:]


def test_one_call_numbers_the_jobs_of_several_queues(
    connection: RedisConnection, redis: Redis
) -> None:
    for queue in "abc":
        push(redis, *(f"{queue}{number}" for number in range(7)), queue=queue)
    taken = fetch(connection, 21, queues=("a", "b", "c"), first=95)
    leases = {**inflight(redis, "a"), **inflight(redis, "b"), **inflight(redis, "c")}
    assert [leases[f"{OWNER}{number}".encode()] for number in range(95, 116)] == taken


@pytest.mark.parametrize("size", [100, 10_000, 200_000, 1_000_000])
def test_an_answer_holds_half_a_megabyte_and_one_job(
    connection: RedisConnection, redis: Redis, size: int
) -> None:
    for _ in range(100):
        push(redis, "x" * size)
    taken = fetch(connection, 100)
    assert len(taken) == min(100, 1 + (ANSWER_BYTES - 1) // size)
    assert redis.llen(LIST) == 100 - len(taken)
    assert len(inflight(redis)) == len(taken)


@pytest.mark.parametrize("command", ["lrange", "hset", "ltrim"])
@pytest.mark.parametrize("want", [5, 100])
def test_a_refused_command_loses_no_job(
    own_server: Server, limited: RedisConnection, command: str, want: int
) -> None:
    redis = own_server.client()
    push(redis, *map(str, range(120)))
    jobs = line(redis)
    own_server.cli("ACL", "SETUSER", "limited", f"-{command}")
    with pytest.raises(ResponseError):
        fetch(limited, want)
    assert line(redis) == jobs
    assert inflight(redis) == {}
    own_server.cli("ACL", "SETUSER", "limited", f"+{command}")
    assert fetch(limited, want) == jobs[:want]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_damaged_hash_leaves_the_jobs_in_their_list_and_numbers_the_next_ones_from_the_first(
    is_full: bool,
) -> None:
    server = Server().start()
    redis, connection = server.client(), RedisConnection(server.url)
    connection.connect()
    push(redis, "a1", "a2", queue="a")
    push(redis, "b1", "b2", queue="b")
    redis.set("{queue:a}:inflight", "another type")
    if is_full:
        fill(server)
    arguments = (3, OWNER, 9, 0, 2, 3, 2, *counted(()))
    reply = connection.script(FETCH, keys_of("a", "b"), arguments)
    assert reply == [0, 0, [1, b"damaged", 2], [b"{queue:a}:inflight"], 2, b"b1", 2, b"b2"]
    assert line(redis, "a") == [b"a1", b"a2"]
    assert inflight(redis, "b") == {f"{OWNER}9".encode(): b"b1", f"{OWNER}10".encode(): b"b2"}
    connection.close()
    server.close()
