"""Each key that forkq uses, with each wrong type: it stops only its own queue or set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from redis import Redis, exceptions

import forkq
from forkq import default_client, middleware, registry
from forkq.cli.main import main
from forkq.cron.entry import Entry
from forkq.limits.rules import Rate, Rules
from forkq.store import damage
from forkq.store.connection import Call, ConnectionLost, RedisConnection
from forkq.store.scripts import QUEUES_IN_FLIGHT
from forkq.wire.keys import Keys
from tests.redis.in_process_child import IDENTITY, InProcessChild, ProcessorThreads
from tests.redis.in_process_clock import InProcessClock
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS: Final = Keys()
# Every member of Keys that names a key, with the arguments that a test needs. ``x`` is the queue
# that is damaged.
EVERY: Final[dict[str, tuple[str, ...]]] = {
    "queues": (), "schedule": (), "retry": (), "dead": (), "processes": (), "paused": (),
    "controlled": (), "fetched": (), "ran_twice": (), "leader": (), "leader_left": (), "cron": (),
    "cron_paused": (), "cron_last": (), "cron_pending": (), "dead_bounds": (), "secret": (),
    "parameters": (), "paused_by": (),
    "cancelled": (), "cancelled_lately": (), "doubted": (), "tickets": (),
    "iteration": ("7ff3",), "steps": ("7ff3",), "event": ("go",), "signalled": (),
    "pushed": ("7ff3",), "window": ("0f",),
    "result": ("7ff3",), "results_ended": (), "notes": (), "carrier": ("mail",),
    "batch": ("b1",), "batch_ends": ("b1",), "batches": (), "batch_counts": (),
    "flow_steps": ("b1",), "flows_unfinished": (),
    "suspected": (), "marked": (), "unique": ("0f",), "moves": (), "arrived": (), "moving": ("x",),
    "held_classes": (), "released_classes": (), "deaths_of_class": ("Boom",),
    "totals": ("jobs",),
    "queue": ("x",), "inflight": ("x",), "control": ("x",), "bucket": ("x",), "awaited": ("x",),
    "suspects": ("x",), "turn": ("x",),
    "process": (IDENTITY,), "process_ref": (IDENTITY,), "work": (IDENTITY,), "signals": (IDENTITY,),
    "work_of_sidekiq_6": (IDENTITY,), "flushed": (IDENTITY,), "lost": (IDENTITY,),
    "stat": ("processed",), "stat_of_day": ("processed", "2026-11-21"), "host": ("view",),
    "cron_origin": ("app",), "cron_runs": ("nightly",), "metrics": ("261121|9:59",),
    "cron_claim": ("child",),
    "histogram": ("Good", "21-9:59"), "marks": ("20261121",), "deploy_lock": ("v1",),
    "task": ("7ff3cf34efff6d76635f23dd",), "ran_twice_of": ("7ff3cf34efff6d76635f23dd",),
    "went_back": ("host:1",),
    "web_message": ("0123456789abcdef",),
    "undo": ("0123456789abcdef",), "undo_list": ("0123456789abcdef", "0"),
}  # fmt: skip
OTHER_MEMBERS: Final = {
    *("prefix", "queue_of", "lists_and_leases", "of_returns", "of_rules", "shared", "works"),
    *("of_suspects", "of_moves", "of_ticket", "of_batch", "of_members", "of_flow"),
}

WRITE: Final[dict[str, Callable[[Redis, str], Any]]] = {
    "string": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "set": lambda redis, key: redis.sadd(key, "x"),
    "zset": lambda redis, key: redis.zadd(key, {"x": 1}),
    "hash": lambda redis, key: redis.hset(key, "x", "y"),
    "stream": lambda redis, key: redis.xadd(key, {"x": "y"}),
}


def put_wrong(redis: Redis, member: str, wrong: str) -> None:
    """Puts a value of the type ``wrong`` there in one step: a child may write there meanwhile."""
    WRITE[wrong](redis, "damage")
    redis.rename("damage", key_of(member))


def key_of(member: str) -> str:
    found = getattr(KEYS, member)
    return str(found(*EVERY[member]) if EVERY[member] else found)


def wrong_types(member: str) -> list[str]:
    return [kind for kind in WRITE if kind != damage.kind(key_of(member))]


def two_wrong_types(member: str) -> list[str]:
    """Of all keys together, each type a dozen times."""
    first = list(EVERY).index(member) % 4
    return wrong_types(member)[first : first + 2]


def test_every_key_is_in_the_table_and_has_a_type() -> None:
    members = {name for name in dir(Keys) if not name.startswith("_")} | {"prefix"}
    assert members - OTHER_MEMBERS == set(EVERY)
    assert [member for member in EVERY if damage.kind(key_of(member)) is None] == []
    assert damage.kind("app:queue:retry") == "list"
    assert damage.kind("app:retry") == "zset"
    assert damage.kind("another program's") is None


# A child


def push(redis: Redis, queue: str, number: int) -> None:
    redis.lpush(f"queue:{queue}", number)


SHAPES: Final[dict[str, dict[str, Any]]] = {
    "in order": {"queues": {"x": 0, "other": 0}},
    "by weight": {"queues": {"x": 2, "other": 1}},
    "ruled": {
        "queues": {"x": 0, "other": 0},
        "rules": {"x": Rules(limit=5, process_limit=5, rate=Rate(100, 1), blocking=True)},
    },
    "a pattern": {"queues": {"x*": 0, "other": 0}},
    "in turn": {"queues": {"*": 0}, "rules": {"*": Rules(fair=True)}},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "member", ["queue", "inflight", "control", "bucket", "awaited", "paused", "controlled"]
)
def test_a_child_goes_on_with_all_other_queues(
    redis: Redis, redis_server: Server, member: str, shape: str
) -> None:
    """Also while a job of the damaged queue is in progress; that job is acknowledged, too."""
    key = key_of(member)
    redis.sadd("queues", "x", "other")
    with ProcessorThreads(redis_server.url, **SHAPES[shape]) as child:
        for turn, wrong in enumerate(wrong_types(member)):
            push(redis, "x", turn)
            wait_until(lambda: redis.llen("queue:x") == 0, what="a job of x before the damage")
            if member != "paused":
                redis.sadd("paused", "nothing")  # so that the fetch looks at rules
            put_wrong(redis, member, wrong)
            if member != "queue":
                push(redis, "x", 1000 + turn)
            for number in range(3):
                push(redis, "other", 10 * turn + number)
            wait_until(lambda: redis.llen("queue:other") == 0, what=f"{key} as {wrong}")
            redis.delete(key)
            wait_until(lambda: redis.llen("queue:x") == 0, what=f"x once {key} is mended")
    assert "redis lost" not in child.log.events()
    told = [values for _, event, values in child.log.lines if event.startswith("damaged key")]
    # Mended each time, and so named each time.
    assert [values["key"] for values in told] in ([key] * len(wrong_types(member)), [])
    assert told or member in ("awaited", "bucket", "control")


def test_a_damaged_set_of_queues_stops_only_what_is_new_to_a_pattern(
    redis: Redis, redis_server: Server
) -> None:
    redis.sadd("queues", "tenant-a")
    with ProcessorThreads(redis_server.url, queues={"tenant-*": 0, "other": 0}) as child:
        push(redis, "tenant-a", 1)
        child.wait_runs(1)
        redis.set("queues", "x")
        push(redis, "tenant-a", 2)
        push(redis, "other", 3)
        child.wait_runs(3)
        redis.delete("queues")
        redis.sadd("queues", "tenant-b")
        push(redis, "tenant-b", 4)
        child.wait_runs(4)
    assert child.log.events().count("damaged key; left out until it is mended") == 1


def test_what_was_in_flight_of_a_damaged_queue_goes_back_once_it_is_mended(
    redis: Redis, redis_server: Server
) -> None:
    redis.hset(KEYS.inflight("x"), f"{IDENTITY}/7", "1")
    redis.hset(KEYS.inflight("other"), f"{IDENTITY}/8", "2")
    redis.set("queue:x", "x")
    child = ProcessorThreads(redis_server.url, queues={"x": 0, "other": 0})
    child.fetch.channel._sequence = 9
    assert not child.fetcher.give_back()
    assert redis.lrange("queue:other", 0, -1) == [b"2"]
    redis.delete("queue:x")
    assert child.fetcher.give_back()
    assert redis.lrange("queue:x", 0, -1) == [b"1"]


def test_a_refusal_is_logged_as_one_and_not_as_an_outage(own_server: Server) -> None:
    redis = own_server.client()
    own_server.cli("ACL", "SETUSER", "default", "-evalsha")
    with ProcessorThreads(own_server.url) as child:
        push(redis, "q", 1)
        wait_until(lambda: "redis gives no jobs" in child.log.events(), what="the line")
        own_server.cli("ACL", "SETUSER", "default", "+evalsha")
        child.wait_runs(1)
    assert child.log.events()[-1] == "redis gives jobs again"
    assert "redis lost" not in child.log.events()


def test_a_late_reply_raises_an_error_with_a_message(own_server: Server) -> None:
    connection = RedisConnection(own_server.url, timeout=1)
    connection.connect()
    own_server.pause()
    try:
        with pytest.raises(exceptions.TimeoutError, match=r"^no answer within 1 s$"):
            connection.call("PING")
    finally:
        own_server.resume()
    assert not connection.connected


@pytest.mark.parametrize(
    "ask",
    [
        lambda connection: connection.call("GET", "a"),
        lambda connection: connection.pipeline([("MULTI",), ("GET", "a")]),
        lambda connection: connection.exchange([Call(QUEUES_IN_FLIGHT, (KEYS.fetched,), ("q",))]),
        lambda connection: connection.script(QUEUES_IN_FLIGHT, (KEYS.fetched,), ("q",)),
    ],
    ids=["call", "pipeline", "exchange", "script"],
)
def test_a_server_that_is_busy_with_a_script_is_an_outage(
    own_server: Server, ask: Callable[[RedisConnection], Any]
) -> None:
    """However it was asked: no caller takes BUSY for a refusal that concerns one key."""
    connection = RedisConnection(own_server.url)
    connection.connect()
    with own_server.busy(), pytest.raises(ConnectionLost, match="BUSY"):
        ask(connection)
    assert not connection.connected


# All but the master: a child, a clock and the commands


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that have run."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "server", middleware.Chain())  # the demo's is loaded by tests
    done: list[str] = []

    @forkq.job(name="Good", queue="other")
    def good(number: str) -> None:
        done.append(number)

    @forkq.job(name="Bad", queue="other")
    def bad() -> None:
        raise ValueError("on purpose")

    return done


def job(name: str, *args: str, jid: str = "1") -> str:
    return json.dumps({"class": name, "args": args, "jid": jid, "queue": "other"})


@pytest.mark.parametrize("member", EVERY)
def test_jobs_and_retries_go_on(
    redis: Redis, redis_server: Server, ran: list[str], member: str
) -> None:
    """Jobs run, fail and wait for their retry, and what is due runs too."""
    source = "schedule" if member == "retry" else "retry"
    with (
        InProcessClock(redis_server.url) as clock,
        InProcessChild(redis_server.url, queue="other") as child,
    ):
        wait_until(lambda: clock.leads_until > time.monotonic(), what="a leading clock")
        for turn, wrong in enumerate(two_wrong_types(member)):
            put_wrong(redis, member, wrong)
            redis.zadd(source, {job("Good", f"due {turn}"): 1})
            redis.lpush("queue:other", job("Bad", jid=f"bad {turn}"), job("Good", f"{turn}"))
            expected = {f"due {turn}", f"{turn}"}
            wait_until(lambda: expected <= set(ran), what=f"{expected} with a {wrong}")  # noqa: B023
        redis.delete(key_of(member))
        # The last job may be parked only now: its processor had been refused before.
        wait_until(lambda: not child.again() and redis.zcard("retry") == turn + 1,
                   what="all retries")  # fmt: skip
    assert "redis lost" not in child.log.events()


COMMANDS: Final = [
    ["stats"], ["stats", "--days", "2"], ["running"], ["stuck"], ["find", "nothing"],
    ["limits", "show"], ["limits", "set", "other", "3"], ["limits", "unset", "other"],
    ["limits", "reset", "other"], ["pause", "other"], ["resume", "other"],
    ["cron", "list"], ["cron", "next"], ["cron", "pause", "nightly"], ["cron", "resume", "nightly"],
    ["cron", "history", "nightly"], ["cron", "run", "nightly"], ["mark-deploy", "v1"],
    ["push", "Good", "[1]", "--force"], ["queues", "list"], ["queues", "show", "x"],
    ["jobs", "list"], ["queues", "clear", "x", "--yes"],
]  # fmt: skip
NOT_ASKED: Final = {"push": ("queues", "queue", "schedule")}


@pytest.fixture
def default_server(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(default_client, "_default", None)
    monkeypatch.setenv("FORKQ_REDIS", redis_server.url)
    yield
    if default_client._default:
        default_client._default.close()


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("member", EVERY)
def test_a_command_works_or_names_the_key_and_the_remedy(
    redis: Redis, capsys: pytest.CaptureFixture[str], member: str
) -> None:
    key = key_of(member)
    nightly = Entry.make(name="nightly", cron="0 3 * * *", job={"class": "Good", "args": []})
    redis.hset("forkq:cron", "nightly", nightly.encode())
    redis.sadd("queues", "x")
    redis.sadd("forkq:suspects", "x")
    redis.lpush("queue:x", job("Good"))
    redis.lpush("{queue:x}:suspects", job("Good"))
    put_wrong(redis, member, wrong_types(member)[0])
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main(command)
        shown = capsys.readouterr()
        if "nightly" in command and member == "cron":
            assert ended.value.code != 0
        elif ended.value.code != 0 and command[0] not in ("find", "stuck"):
            assert f'the key "{key}" holds something else than a ' in shown.err, command
            assert f"RENAME {key} damaged:{key}" in shown.err
            assert ended.value.code == 6


@pytest.mark.usefixtures("default_server")
def test_stats_list_what_is_damaged(redis: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    redis.sadd("queues", "x")
    for member in ("inflight", "dead", "processes"):
        redis.set(key_of(member), "x")
    for arguments in (["stats"], ["stats", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "RENAME dead damaged:dead" in shown
    assert json.loads(shown[shown.index('{"processed') :])["damaged"] == [
        "dead", "processes", "{queue:x}:inflight",
    ]  # fmt: skip


@pytest.mark.usefixtures("default_server")
@pytest.mark.parametrize("command", [["pause", "other"], ["limits", "set", "other", "3"]])
def test_a_queue_can_be_paused_while_the_dead_set_is_damaged(
    redis: Redis, command: list[str]
) -> None:
    redis.set("dead", "x")
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0


def test_on_a_full_server_a_periodic_job_can_be_paused(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_client, "_default", None)
    monkeypatch.setenv("FORKQ_REDIS", own_server.url)
    entry = Entry.make(name="nightly", cron="0 3 * * *", job={"class": "Good", "args": []})
    own_server.cli("HSET", "forkq:cron", "nightly", entry.encode())
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    for command in (["cron", "pause", "nightly"], ["mark-deploy", "v1"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    assert own_server.cli("SISMEMBER", "forkq:cron:paused", "nightly") == 1
