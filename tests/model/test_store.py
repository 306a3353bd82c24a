"""The small Redis of the model does what a real server does: command by command, and script by
script in states that worlds really have. ``make explore`` compares 100,000 sequences."""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from forkq.features.expire.parts import MOMENT
from tests.support.server import Server

from . import worlds
from .commands import COMMANDS, NOW, Mapped, Ok, Refused
from .explorer import explore
from .store import Frozen, Reply, Store, every_script, thaw

SEQUENCES: Final = int(os.environ.get("FORKQ_TEST_MODEL_SEQUENCES", "150"))
LENGTH: Final = 8
# So many steps of explored worlds are done again on the server.
STEPS: Final = 3 * SEQUENCES

KEYS: Final = (b"l", b"h", b"s", b"z", b"t")
VALUES: Final = (b"", b"a", b"b", b"c", b"7")
NUMBERS: Final = (b"-2", b"-1", b"0", b"1", b"2")
BOUNDS: Final = (b"-inf", b"(1", b"1", b"2.5", b"+inf")

# For each command: what its arguments after the key are. v: a value, n: a number, b: a bound.
SHAPES: Final = {
    "LPUSH": "vv", "RPUSH": "v", "LPOP": "", "RPOP": "", "LLEN": "", "LRANGE": "nn", "LTRIM": "nn",
    "LINDEX": "n", "LSET": "nv", "LREM": "nv", "LPOS": "v", "HSET": "vv", "HGET": "v",
    "HMGET": "vv", "HEXISTS": "v", "HDEL": "vv", "HLEN": "", "HKEYS": "", "HVALS": "",
    "HGETALL": "", "HINCRBY": "vn", "SADD": "vv", "SREM": "vv", "SMEMBERS": "", "SISMEMBER": "v",
    "SMISMEMBER": "vv", "ZADD": "nv", "ZREM": "v", "ZSCORE": "v", "ZMSCORE": "vv", "ZCARD": "",
    "ZRANK": "v", "ZRANGE": "nn", "ZRANGEBYSCORE": "bb", "ZCOUNT": "bb", "ZREMRANGEBYSCORE": "bb",
    "ZREMRANGEBYRANK": "nn", "SET": "v", "GET": "", "INCRBY": "n", "INCR": "", "DEL": "",
    "EXISTS": "", "TYPE": "", "GETEX": "", "EXPIRE": "x", "PEXPIRE": "p", "PTTL": "", "TIME": "t",
    "ZSCAN": "c",
}  # fmt: skip
# Scripts that look at when jobs expire have one of these keys.
KEYS_OF_MARKED: Final = frozenset((b"forkq:marked", b"forkq:totals:ends"))
# Keys that have moments of the server's clock: what is doubted depends on them, too.
TIMES: Final = (
    b"forkq:fetched",
    b"forkq:tickets",
    b"forkq:cancelled:ended",
    b"forkq:unique:doubt",
    NOW,
)
# Their replies are times.
NOT_COMPARED: Final = (b"PTTL", b"TIME")
_POOLS: Final = {"v": VALUES, "n": NUMBERS, "b": BOUNDS, "x": (b"100",), "p": (b"100000",)} | {
    "c": (b"0",)
}


def random_command(chance: random.Random) -> tuple[bytes, ...]:
    name = chance.choice(list(SHAPES))
    if SHAPES[name] == "t":
        return (name.encode(),)
    rest = [chance.choice(_POOLS[kind]) for kind in SHAPES[name]]
    if name == "ZRANGE" and chance.random() < 0.3:
        rest.append(b"WITHSCORES")
    if name == "ZADD" and chance.random() < 0.5:
        rest.insert(0, chance.choice((b"NX", b"LT")))
    return (name.encode(), chance.choice(KEYS), *rest)


def on_server(redis: Any, command: tuple[bytes, ...]) -> Any:
    try:
        return redis.execute_command(*command)
    except ResponseError as error:
        return Refused(str(error))


def plain(value: Any) -> Any:
    """A reply without the differences that no caller sees: the order of a hash or a set, and the
    words of an error."""
    if isinstance(value, Refused):
        return "wrong type" if "wrong kind" in str(value) else "refused"
    if isinstance(value, Ok):
        return value.text
    if value is True:
        return b"OK"
    if isinstance(value, Mapped):
        value = dict(value.pairs)
    if isinstance(value, dict):
        return [part for pair in sorted(value.items()) for part in pair]
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def contents(redis: Any) -> dict[bytes, Frozen]:
    """What the server has."""
    found: dict[bytes, Frozen] = {}
    for key in redis.execute_command("KEYS", "*"):
        kind = redis.execute_command("TYPE", key).decode()
        if kind == "list":
            value: Any = tuple(redis.execute_command("LRANGE", key, 0, -1))
        elif kind == "hash":
            value = tuple(sorted(redis.execute_command("HGETALL", key).items()))
        elif kind == "set":
            value = tuple(sorted(redis.execute_command("SMEMBERS", key)))
        elif kind == "zset":
            pairs = redis.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
            value = tuple((member, float(score)) for member, score in pairs)
        else:
            value = redis.execute_command("GET", key)
        found[key] = (kind, value)
    return found


def write(redis: Any, state: dict[bytes, Frozen]) -> None:
    """Gives the server these contents."""
    redis.execute_command("FLUSHALL")
    for key, (kind, value) in state.items():
        if kind == "list":
            redis.execute_command("RPUSH", key, *value)
        elif kind == "hash":
            redis.execute_command("HSET", key, *(part for pair in value for part in pair))
        elif kind == "set":
            redis.execute_command("SADD", key, *value)
        elif kind == "zset":
            redis.execute_command("ZADD", key, *(x for m, score in value for x in (repr(score), m)))
        else:
            redis.execute_command("SET", key, value, "EX", 10)


@pytest.fixture
def raw(redis: Redis) -> Any:
    """The server's client, whose replies redis-py leaves as they are."""
    client: Any = redis
    client.response_callbacks.clear()
    return client


def test_every_command_is_compared() -> None:
    assert {name.encode() for name in SHAPES} == set(COMMANDS)


@pytest.mark.parametrize("seed", range(4))
def test_random_commands_do_what_they_do_on_a_server(raw: Any, seed: int) -> None:
    chance, store = random.Random(seed), Store()
    for _ in range(SEQUENCES // 4):
        raw.execute_command("FLUSHALL")
        state = store.empty
        done = []
        for _ in range(LENGTH):
            command = random_command(chance)
            done.append(command)
            reply = store.run(state, command)
            state, theirs = reply.state, on_server(raw, command)
            if command[0] not in NOT_COMPARED:
                ours = _unordered(command, plain(reply.value))
                assert ours == _unordered(command, plain(theirs)), done
        assert store.states[state] == contents(raw), done


def _unordered(command: tuple[bytes, ...], reply: Any) -> Any:
    """Hashes and sets have no order."""
    is_set = command[0] in (b"HKEYS", b"HVALS", b"SMEMBERS")
    if command[0] == b"HGETALL" and isinstance(reply, list):
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    return sorted(reply) if is_set and isinstance(reply, list) else reply


@pytest.mark.parametrize("seed", range(2))
def test_the_steps_of_worlds_do_what_they_do_on_a_server(
    raw: Any, redis_server: Server, seed: int
) -> None:
    """Scripts included: each in a state, and with the arguments, that a world really has."""
    for script in every_script().values():
        raw.execute_command("SCRIPT", "LOAD", script.text)
    store, chance = Store(), random.Random(seed)
    for world in (worlds.ALONE, worlds.RETRIES, worlds.DELETED, worlds.SUSPECTS, worlds.LIMIT):
        explore(world, store)
    for world in (worlds.EXPIRY, worlds.RETRY_EXPIRES, worlds.SCHEDULED, worlds.SNOOZE):
        explore(world, store)
    for world in (worlds.UNIQUE, worlds.LATEST, worlds.REPLACE, worlds.CANCELS, worlds.CURSOR):
        explore(world, store)
    known = [each for each in store.known() if not each[0][2] and _has_expired(store, *each)]
    for (state, command, _), ours in chance.sample(known, min(len(known), STEPS // 2)):
        if command[0] in NOT_COMPARED:
            continue
        write(raw, {key: value for key, value in store.states[state].items() if key != NOW})
        theirs = on_server(raw, command)
        assert _unordered(command, plain(ours.value)) == _unordered(command, plain(theirs)), command
        assert _timeless(store.states[ours.state]) == _timeless(contents(raw)), command


def _has_expired(store: Store, asked: tuple[int, tuple[bytes, ...], str], reply: Reply) -> bool:
    """Whether a step is the same at the time of the real server: no job expires, or all have, and
    push.lua writes no time."""
    state, command, _ = asked
    if command[1] == every_script()["push"].sha:
        return not any(MOMENT in part for part in command)
    depends = NOW in reply.seen and KEYS_OF_MARKED.intersection(command)
    return not depends or NOW in store.states[state]


def _timeless(state: dict[bytes, Frozen]) -> dict[bytes, Frozen]:
    """Without what a script took from the server's clock."""
    return {
        key: (kind, _without_times(contents) if kind == "hash" else contents)
        for key, (kind, contents) in state.items()
        if key not in TIMES and b"death" not in key
    }


def _without_times(fields: Any) -> tuple[tuple[bytes, bytes], ...]:
    """The fields of a lock, a cursor or a note without the moments that they have."""
    kept = ((name, b"" if name.startswith(b"jid:") else value) for name, value in fields)
    return tuple(pair for pair in kept if pair[0] not in (b"at", b"sure", b"cancelled"))


def test_a_state_is_frozen_and_thawed_unchanged() -> None:
    store = Store()
    state = store.empty
    for command in ((b"LPUSH", b"l", b"x"), (b"HSET", b"h", b"f", b"v"), (b"SADD", b"s", b"m")):
        state = store.run(state, command).state
    assert {key: thaw(value) for key, value in store.states[state].items()} == {
        b"l": [b"x"], b"h": {b"f": b"v"}, b"s": {b"m"}
    }  # fmt: skip


def test_a_full_server_takes_additions_after_a_removal() -> None:
    """As a server does: forkq's scripts rely on it."""
    store = Store()
    assert store.run(store.empty, (b"LPUSH", b"l", b"x"), "OOM").value == Refused(
        "OOM command not allowed when used memory > 'maxmemory'."
    )
    script = every_script()["set_add"]
    call = (b"EVALSHA", script.sha, b"1", b"s", b"m")
    assert store.run(store.empty, call, "OOM").value == 1
