"""Finding a job by its jid: in each location, and also while it moves."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from forkq.store import find_job
from forkq.store.connection import RedisConnection, ResponseError
from forkq.store.find_job import ALIVE, Found, find
from forkq.wire.keys import Keys
from tests.process.shared import measured
from tests.support.server import Server

JID = "7ff3cf34efff6d76635f23dd"
LEASE = "host:17:0123456789ab/42"
INFLIGHT = "{queue:mail}:inflight"
SUSPECTS = "{queue:mail}:suspects"
MANY = 4_000  # jobs in a list, which one script does not read
DEEP = 100_000
# The steps of a job that has not ended.
WAYS = [
    *("schedule>tail", "retry>tail", "tail>lease", "head>lease", "lease>head", "lease>retry"),
    *("lease>suspects", "suspects>lease", "head>suspects"),
]


@pytest.fixture
def connection(redis: Redis, redis_server: Server) -> Iterator[RedisConnection]:
    redis.sadd("queues", "default", "mail")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    yield connection
    connection.close()


def payload(jid: str = JID, **more: Any) -> bytes:
    job = {"class": "Mail", "args": [], "queue": "mail", "jid": jid, "created_at": 1.5, **more}
    return json.dumps(job, separators=(",", ":")).encode()


def place(redis: Redis, where: str) -> None:
    """Puts the job into that location."""
    if where == "running":
        redis.hset(INFLIGHT, LEASE, payload())
    elif where == "queued":
        redis.lpush("queue:mail", payload())
    elif where == "suspect":
        redis.lpush(SUSPECTS, payload())
        redis.sadd("forkq:suspects", "mail")
    else:
        key = {"scheduled": "schedule", "retrying": "retry", "dead": "dead"}[where]
        redis.zadd(key, {payload(): 1700000000.25})


def add_others(redis: Redis, size: int) -> None:
    """Adds other jobs to each location; some have the jid as an argument."""
    for start in range(0, size, 10_000):
        others = [
            payload(f"{number:024x}", args=["x" * 150, f"{number:024x}"])
            for number in range(start, min(size, start + 10_000))
        ]
        redis.lpush("queue:mail", *others)
        redis.lpush(SUSPECTS, *others)
        redis.sadd("forkq:suspects", "mail")
        redis.zadd("schedule", dict.fromkeys(others[: len(others) // 10], 2e9))
        redis.zadd("dead", dict.fromkeys(others[: len(others) // 10], 5.5))


def test_a_running_job_of_a_queue_that_was_deleted_is_found(
    redis: Redis, connection: RedisConnection
) -> None:
    place(redis, "running")
    redis.srem("queues", "mail")
    redis.zadd(Keys().fetched, {"mail": 1.0})
    found = find(connection, Keys(), JID, locations=ALIVE)
    assert found is not None
    assert (found.location, found.queue) == ("running", "mail")
    redis.delete(Keys().fetched)
    redis.set(Keys().fetched, "something else")
    assert find(connection, Keys(), JID) is None


@pytest.mark.parametrize("size", [0, MANY], ids=["alone", "among many"])
@pytest.mark.parametrize("where", ["running", "queued", "suspect", "scheduled", "retrying", "dead"])
def test_a_job_is_found_where_it_is(
    redis: Redis, connection: RedisConnection, where: str, size: int
) -> None:
    """With the owner of its lease, or its score."""
    add_others(redis, size // 2)
    place(redis, where)
    add_others(redis, size - size // 2)
    owner = "host:17:0123456789ab" if where == "running" else ""
    at = 1700000000.25 if where in ("scheduled", "retrying", "dead") else 0.0
    alone = where == "suspect"
    location: Any = "queued" if alone else where
    assert find(connection, Keys(), JID) == Found(location, "mail", payload(), owner, at, alone)


@pytest.mark.parametrize("queues", [None, ("mail",)], ids=["all queues", "its queue"])
def test_a_suspect_of_a_queue_that_was_deleted_is_found(
    redis: Redis, connection: RedisConnection, queues: tuple[str, ...] | None
) -> None:
    place(redis, "suspect")
    redis.srem("queues", "mail")
    found = find(connection, Keys(), JID, ALIVE, queues)
    assert found == Found("queued", "mail", payload(), among_suspects=True)


def test_a_damaged_list_of_suspects_hides_no_other_job(
    redis: Redis, connection: RedisConnection
) -> None:
    add_others(redis, MANY)
    place(redis, "queued")
    for key in (SUSPECTS, "forkq:suspects"):
        redis.set(key, "something else")
        found = find(connection, Keys(), JID)
        assert found is not None
        assert found.queue == "mail"


def test_a_suspect_is_found_while_the_index_is_damaged(
    redis: Redis, connection: RedisConnection
) -> None:
    place(redis, "suspect")
    redis.set("forkq:suspects", "something else")
    assert find(connection, Keys(), JID) is not None


@pytest.mark.parametrize("size", [0, MANY])
def test_a_job_that_is_nowhere_is_not_found(
    redis: Redis, connection: RedisConnection, size: int
) -> None:
    add_others(redis, size)
    assert find(connection, Keys(), JID) is None


def test_a_jid_inside_another_job_is_not_that_job(
    redis: Redis, connection: RedisConnection
) -> None:
    """As a value, as a part of another jid, as a jid inside its arguments."""
    for other in (
        payload("a" * 24, args=[JID]),
        payload("b" * 24, args=[{"jid": JID}]),
        payload("c" * 24, bid=JID, args=[{"x": '"jid":"' + JID + '"'}]),
        payload(JID + "0"),
        b'{"jid":"' + JID.encode() + b'"}',
        b'"jid":"' + JID.encode() + b'"',
    ):
        redis.lpush("queue:mail", other)
        redis.hset(INFLIGHT, LEASE, other)
        redis.zadd("retry", {other: 1})
    assert find(connection, Keys(), JID) is None
    add_others(redis, MANY)
    assert find(connection, Keys(), JID) is None
    place(redis, "queued")
    found = find(connection, Keys(), JID)
    assert found is not None
    assert found.payload == payload()


def test_how_a_client_writes_its_json_does_not_matter(
    redis: Redis, connection: RedisConnection
) -> None:
    written = json.dumps(json.loads(payload()), indent=2).encode()
    redis.lpush("queue:mail", written)
    found = find(connection, Keys(), JID)
    assert found is not None
    assert found.payload == written


def test_a_jid_of_the_user_may_contain_any_text(redis: Redis, connection: RedisConnection) -> None:
    """Neither Redis nor Lua takes a part of it for a pattern."""
    for odd in ('a"b\\c', "50%.*[x]-+?", "*", "["):
        written = payload(odd)
        redis.flushall()
        redis.sadd("queues", "mail")
        redis.zadd("retry", {written: 1, payload("x" * 24): 2})
        add_others(redis, MANY)
        found = find(connection, Keys(), odd)
        assert found is not None
        assert found.payload == written


def test_only_the_places_and_queues_that_were_asked_for_are_searched(
    redis: Redis, connection: RedisConnection
) -> None:
    place(redis, "dead")
    assert find(connection, Keys(), JID, ALIVE) is None
    place(redis, "queued")
    assert find(connection, Keys(), JID, ALIVE, ["default"]) is None
    assert find(connection, Keys(), JID, ["running"]) is None
    found = find(connection, Keys(), JID, ["queued"], ["mail"])
    assert found is not None
    assert found.location == "queued"


def test_a_prefix_keeps_searches_apart(redis: Redis, connection: RedisConnection) -> None:
    place(redis, "queued")
    assert find(connection, Keys("app:"), JID) is None
    redis.sadd("app:queues", "mail")
    redis.lpush("app:queue:mail", payload())
    assert find(connection, Keys("app:"), JID) is not None


@pytest.mark.parametrize("size", [0, MANY])
def test_damaged_queues_and_odd_names_are_left_out(
    redis: Redis, connection: RedisConnection, size: int
) -> None:
    redis.sadd("queues", "wrong", b"\xff\xfe")
    redis.set("queue:wrong", "text")
    redis.set("{queue:wrong}:inflight", "text")
    add_others(redis, size)
    redis.lpush("queue:mail", b"\xff not JSON " + JID.encode())
    place(redis, "queued")
    found = find(connection, Keys(), JID)
    assert found is not None
    assert found.queue == "mail"


@pytest.mark.parametrize("size", [0, MANY])
@pytest.mark.parametrize("command", ["lrange", "llen", "hgetall", "zrange"])
def test_a_refused_command_raises_instead_of_finding_nothing(
    own_server: Server, command: str, size: int
) -> None:
    """A caller that takes the job for gone would do harm."""
    redis = own_server.client()
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", payload("a" * 24))
    add_others(redis, size)
    own_server.cli("ACL", "SETUSER", "short", "on", ">sighted", "~*", "+@all", f"-{command}")
    connection = RedisConnection(f"redis://short:sighted@127.0.0.1:{own_server.port}/0")
    connection.connect()
    if command == "zrange" and size:
        own_server.cli("ACL", "SETUSER", "short", "-zscan")
    with pytest.raises(ResponseError):
        find(connection, Keys(), JID)
    connection.close()


class Mover(threading.Thread):
    """Moves the job between locations, each time in one transaction, until ``end``."""

    def __init__(self, server: Server, ways: list[str]) -> None:
        super().__init__(daemon=True)
        self.moves = 0
        self._redis = server.client()
        self._ways = ways
        self._ended = threading.Event()
        self._redis.sadd("queues", "mail")
        self._redis.lpush("queue:mail", payload())

    def run(self) -> None:
        """Repeats the moves."""
        while not self._ended.is_set():
            for way in self._ways:
                self.move(way)

    def move(self, way: str) -> None:
        """One move, ``here>there``."""
        pipe = self._redis.pipeline(transaction=True)
        here, there = way.split(">")
        for key, leaves in ((here, True), (there, False)):
            if key == "lease":
                if leaves:
                    pipe.hdel(INFLIGHT, LEASE)
                else:
                    pipe.hset(INFLIGHT, LEASE, payload())
            elif key in ("head", "tail", "suspects"):
                name = SUSPECTS if key == "suspects" else "queue:mail"
                if leaves:
                    pipe.lrem(name, 1 if key == "tail" else -1, payload())  # type: ignore[arg-type]
                else:
                    (pipe.lpush if key == "tail" else pipe.rpush)(name, payload())
            elif key == "nowhere":
                continue
            elif leaves:
                pipe.zrem(key, payload())
            else:
                pipe.zadd(key, {payload(): 1.5})
        assert all(pipe.execute())
        self.moves += 1

    def end(self) -> None:
        """Stops the thread."""
        self._ended.set()
        self.join(10)


def look_while_it_moves(connection: RedisConnection, mover: Mover, times: int) -> None:
    """Searches while the job moves: at least so many searches, and so many moves."""
    searches = 0
    try:
        while searches < times or mover.moves < times:
            assert mover.is_alive(), "a move failed"
            assert find(connection, Keys(), JID) is not None
            searches += 1
    finally:
        mover.end()


def test_a_job_that_moves_while_we_look_is_never_missed(
    redis: Redis, redis_server: Server, connection: RedisConnection
) -> None:
    """All moves without a pause: fetched, given back, fetched, failed, due again."""
    mover = Mover(
        redis_server,
        [
            "tail>lease",
            "lease>head",
            "head>lease",
            "lease>suspects",
            "suspects>lease",
            "lease>retry",
            "retry>schedule",
            "schedule>tail",
        ],
    )
    mover.start()
    look_while_it_moves(connection, mover, 500)


def test_a_job_that_moves_among_many_others_is_not_missed(
    redis: Redis, redis_server: Server, connection: RedisConnection
) -> None:
    """More jobs than one script reads; the job is fetched, given back and pushed again."""
    add_others(redis, MANY)
    mover = Mover(redis_server, ["tail>lease", "lease>suspects", "suspects>lease", "lease>tail"])
    mover.start()
    look_while_it_moves(connection, mover, 30)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_takes_a_step_while_we_walk_is_not_missed(
    redis: Redis, redis_server: Server, connection: RedisConnection, way: str
) -> None:
    """At any time: before the first look, between two parts, after the last."""
    add_others(redis, MANY)
    mover = Mover(redis_server, [way])
    redis.lrem("queue:mail", 1, payload().decode())
    here, there = way.split(">")
    for _ in range(8):
        mover.move(f"nowhere>{here}")
        step = threading.Timer(random.uniform(0, 0.03), mover.move, [way])
        step.start()
        found = find(connection, Keys(), JID)
        step.join(10)
        assert found is not None
        mover.move(f"{there}>nowhere")


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_takes_a_step_while_we_look_in_parts_is_not_missed(
    redis: Redis,
    redis_server: Server,
    connection: RedisConnection,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find_job, "_CHUNK", 1)
    redis.sadd("queues", *(f"queue {number}" for number in range(30)), "mail")
    mover = Mover(redis_server, [way])
    here, there = way.split(">")
    for _ in range(30):
        mover.move(f"nowhere>{here}")
        step = threading.Timer(random.uniform(0, 0.01), mover.move, [way])
        step.start()
        found = find(connection, Keys(), JID)
        step.join(10)
        assert found is not None
        mover.move(f"{there}>nowhere")


def test_no_script_looks_at_more_than_a_part_of_many_queues(
    redis: Redis, connection: RedisConnection
) -> None:
    redis.sadd("queues", *(f"queue {number}" for number in range(1000)))
    looked_at: list[int] = []

    class Counting(RedisConnection):
        def script(self, script: Any, keys: Any, arguments: Any) -> Any:
            looked_at.append(len(keys))
            return super().script(script, keys, arguments)

    counting = Counting(connection.url)
    counting.connect()
    assert find(counting, Keys(), JID) is None
    counting.close()
    assert sum(looked_at) >= 2 * 3000
    assert max(looked_at) <= 600


def test_no_script_keeps_the_server_for_long(redis: Redis, connection: RedisConnection) -> None:
    """Many short scripts read a deep queue; a big payload has a script of its own."""
    add_others(redis, DEEP)
    redis.config_set("slowlog-log-slower-than", 0)
    redis.config_set("slowlog-max-len", 20_000)
    redis.config_resetstat()
    redis.slowlog_reset()
    try:
        assert find(connection, Keys(), JID) is None
        entries: Any = redis.slowlog_get(20_000)
        longest = max(entry["duration"] for entry in entries)
        scripts = redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    finally:
        redis.config_set("slowlog-log-slower-than", 10_000)
        redis.config_set("slowlog-max-len", 128)
    measured(f"{DEEP} jobs in a queue: {scripts} scripts, the longest command took {longest} us")
    assert scripts > DEEP // 10_000 * 2
