"""Pushing: exactly Sidekiq's formats, and pushes to a server that is away or refuses them."""

from __future__ import annotations

import _thread
import gc
import json
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sized
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import default_client, middleware, registry
from forkq.client import Client
from forkq.errors import InvalidJob, ServerFull, ServerReadOnly, ServerUnavailable, TooFewReplicas
from forkq.store.push_steps import BATCH
from forkq.wire.validation import check_args
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.tree import CHECKOUT
from tests.support.waiting import wait_until

# As Sidekiq 7.2.4 wrote them, on the queue and in the schedule.
QUEUED = {
    "retry": True,
    "queue": "default",
    "args": ["a", 1, 2.5, None, True, {"k": ["é", 'x/y<z>&"q"']}],
    "class": "MyJob",
    "jid": "7ff3cf34efff6d76635f23dd",
    "created_at": 1795216065.6910222,
    "enqueued_at": 1795216065.6910915,
}
SCHEDULED = {
    "retry": True,
    "queue": "default",
    "class": "MyJob",
    "args": [1],
    "jid": "c7184b560c3431e20e908224",
    "created_at": 1795216065.875125,
}
OPTIONS: dict[str, Any] = {
    "retry": 3,
    "queue": "critical",
    "tags": ["a", "b"],
    "retry_for": 3600,
    "backtrace": 5,
    "dead": False,
    "custom": "x",
    "retry_queue": "rq",
}


@pytest.fixture
def client(redis: Redis, redis_server: Server) -> Iterator[Client]:
    client = Client(redis_server.url)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def no_middleware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def queued(redis: Redis, queue: str = "default") -> list[dict[str, Any]]:
    """The jobs of a queue, next to run first."""
    found: Any = redis.lrange(f"queue:{queue}", 0, -1)
    return [json.loads(payload) for payload in reversed(found)]


def scheduled(redis: Redis) -> list[tuple[dict[str, Any], float]]:
    found: list[Any] = redis.zrange("schedule", 0, -1, withscores=True)
    return [(json.loads(member), score) for member, score in found]


def shape(job: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in job.items()}


def test_a_pushed_job_has_exactly_sidekiqs_keys_and_types(client: Client, redis: Redis) -> None:
    before = time.time()
    jid = client.push({"class": "MyJob", "args": QUEUED["args"]})
    [found] = queued(redis)
    assert shape(found) == shape(QUEUED)
    assert found["args"] == QUEUED["args"]
    assert found["jid"] == jid
    assert re.fullmatch("[0-9a-f]{24}", jid or "")
    assert before <= found["created_at"] <= found["enqueued_at"] <= time.time() + 0.001
    assert redis.smembers("queues") == {b"default"}
    assert sorted(redis.keys("*")) == [b"queue:default", b"queues"]


@pytest.mark.parametrize("form", ["relative", "absolute"])
def test_a_scheduled_job_has_neither_at_nor_enqueued_at(
    client: Client, redis: Redis, form: str
) -> None:
    at = time.time() + 3600
    client.push({"class": "MyJob", "args": [1], "at": 3600 if form == "relative" else at})
    [(found, score)] = scheduled(redis)
    assert shape(found) == shape(SCHEDULED)
    assert score == pytest.approx(at, abs=5)
    assert redis.keys("*") == [b"schedule"]


@pytest.mark.parametrize("at", [0, -5, 1_000_000_000.5])
def test_a_time_that_is_not_in_the_future_means_now(
    client: Client, redis: Redis, at: float
) -> None:
    client.push({"class": "MyJob", "args": [], "at": at})
    assert shape(queued(redis)[0]) == shape(QUEUED)
    assert redis.exists("schedule") == 0


@pytest.mark.parametrize("created_at", [1795216257296, 1.5])
def test_a_future_time_is_kept_with_any_created_at(
    client: Client, redis: Redis, created_at: float
) -> None:
    """A job taken over from Sidekiq 8 has milliseconds there."""
    client.push({"class": "MyJob", "args": [], "created_at": created_at, "at": 3600})
    [(found, _)] = scheduled(redis)
    assert found["created_at"] == created_at


def test_options_travel_as_given(client: Client, redis: Redis) -> None:
    client.push({"class": "MyJob", "args": [1], **OPTIONS})
    [found] = queued(redis, "critical")
    assert {key: found[key] for key in OPTIONS} == OPTIONS
    assert found.keys() == {*OPTIONS, "class", "args", "jid", "created_at", "enqueued_at"}


def test_a_jid_of_ones_own_is_kept(client: Client, redis: Redis) -> None:
    assert client.push({"class": "MyJob", "args": [], "jid": "f" * 24}) == "f" * 24
    assert queued(redis)[0]["jid"] == "f" * 24


def test_jobs_run_in_the_order_in_which_they_were_pushed(client: Client, redis: Redis) -> None:
    for number in range(5):
        client.push({"class": "MyJob", "args": [number]})
    client.push_bulk({"class": "MyJob", "args": [[number] for number in range(5, 10)]})
    assert [job["args"] for job in queued(redis)] == [[number] for number in range(10)]


def test_bulk_pushes_one_job_a_row_in_batches_of_a_thousand(
    client: Client, redis: Redis, redis_server: Server
) -> None:
    rows = [[number] for number in range(2 * BATCH + 500)]
    before = redis.info("commandstats")["cmdstat_lpush"]["calls"] if queued(redis) else 0
    redis.config_resetstat()
    jids = client.push_bulk({"class": "MyJob", "args": rows, "queue": "bulk"})
    stats = redis.info("commandstats")
    assert (before, stats["cmdstat_lpush"]["calls"], stats["cmdstat_sadd"]["calls"]) == (0, 3, 3)
    found = queued(redis, "bulk")
    assert [job["args"] for job in found] == rows
    assert [job["jid"] for job in found] == jids
    assert len(set(jids)) == len(rows)
    assert shape(found[0]) == shape(QUEUED)


def test_bulk_takes_one_time_or_one_for_each(client: Client, redis: Redis) -> None:
    client.push_bulk({"class": "MyJob", "args": [[1], [2]], "at": 60})
    assert len(scheduled(redis)) == 2
    redis.flushall()
    client.push_bulk({"class": "MyJob", "args": [[1], [2], [3]], "at": [60, 0, 120]})
    assert [job["args"] for job, _ in scheduled(redis)] == [[1], [3]]
    assert [job["args"] for job in queued(redis)] == [[2]]
    with pytest.raises(InvalidJob, match="1 times `at` for 2"):
        client.push_bulk({"class": "MyJob", "args": [[1], [2]], "at": [60]})


def test_bulk_of_nothing_is_nothing(client: Client, redis: Redis) -> None:
    assert client.push_bulk({"class": "MyJob", "args": []}) == []
    assert redis.dbsize() == 0


def test_bulk_writes_nothing_if_anything_is_wrong(client: Client, redis: Redis) -> None:
    rows: list[Any] = [[number] for number in range(BATCH + 1)]
    for wrong in ([object()], 5, "ab"):
        with pytest.raises(InvalidJob):
            client.push_bulk({"class": "MyJob", "args": [*rows, wrong]})
    assert redis.dbsize() == 0


@pytest.mark.parametrize(
    "job", [None, [], "MyJob", {}, {"class": "MyJob"}, {"args": []}, {"class": "X", "args": [{1}]},
            {"class": "X", "args": [], "at": "noon"}, {"class": "X", "args": ["\ud800"]}],
    ids=repr,
)  # fmt: skip
def test_what_could_never_run_is_refused_and_nothing_is_written(
    client: Client, redis: Redis, job: Any
) -> None:
    with pytest.raises(InvalidJob):
        client.push(job)
    assert redis.dbsize() == 0


def test_the_pushed_dict_is_not_touched(client: Client) -> None:
    job = {"class": "MyJob", "args": [1], "at": 60}
    client.push(job)
    assert job == {"class": "MyJob", "args": [1], "at": 60}


def test_a_prefix_keeps_the_data_apart(redis: Redis, redis_server: Server) -> None:
    client = Client(redis_server.url, prefix="app:")
    client.push({"class": "MyJob", "args": []})
    client.push({"class": "MyJob", "args": [], "at": 60})
    client.close()
    assert sorted(redis.keys("*")) == [b"app:queue:default", b"app:queues", b"app:schedule"]


def test_strictness_is_the_clients(redis: Redis, redis_server: Server) -> None:
    client = Client(redis_server.url, strict_args="off")
    client.push({"class": "MyJob", "args": [(1, 2)]})
    client.close()
    assert queued(redis)[0]["args"] == [[1, 2]]


@pytest.mark.parametrize("way", ["push", "push_bulk", "perform_async", "perform_bulk"])
def test_a_warning_names_the_line_that_pushes(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})

    @forkq.job(name="Pair")
    def pair(numbers: Any) -> None: ...

    client = Client(redis_server.url, strict_args="warn")
    monkeypatch.setattr(default_client, "_default", client)
    args: list[Any] = [(1, 2)]
    job = {"class": "Pair", "args": [args] if way == "push_bulk" else args}
    ways: dict[str, Callable[[], object]] = {
        "push": lambda: client.push(job),
        "push_bulk": lambda: client.push_bulk(job),
        "perform_async": lambda: pair.perform_async(*args),
        "perform_bulk": lambda: pair.perform_bulk([args]),
    }
    with pytest.warns(UserWarning, match=r"args\[0\] is a tuple") as caught:
        ways[way]()
    client.close()
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_about_code_without_a_module_stops_no_push(
    redis_server: Server, redis: Redis
) -> None:
    """Code of exec() may have no name, and a function that C calls has no line above it."""
    job = {"class": "Pair", "args": [(1, 2)]}
    client = Client(redis_server.url, strict_args="warn")
    names = {"push": client.push, "job": job}
    with pytest.warns(UserWarning, match=r"args\[0\] is a tuple") as caught:
        exec("push(job)", names)  # noqa: S102 - as some templates and shells do
    client.close()
    assert [warning.filename for warning in caught] == ["<string>"]
    assert len(queued(redis)) == 1
    with pytest.warns(UserWarning, match=r"args\[0\] is a tuple") as caught:
        _warn_without_a_line(job, caught)


def _warn_without_a_line(job: dict[str, Any], caught: Sized) -> None:
    _thread.start_new_thread(check_args, (job, "warn"))
    wait_until(lambda: len(caught) == 1, what="the warning")


# A job pushed alone, and one of a bulk push, which is encoded in another way


@pytest.mark.parametrize("args", [[], [1, 'ä\n"\\'], [{"a": [1.5, None]}, [[]], True]])
@pytest.mark.parametrize(
    "more", [{}, {"queue": "low", "retry": 3, "tags": ["x"], "cattr": {"a": 1}}]
)
def test_a_row_has_the_payload_of_a_single_push(
    client: Client, redis: Redis, args: list[Any], more: dict[str, Any]
) -> None:
    client.push({"class": "MyJob", "args": args, **more})
    client.push_bulk({"class": "MyJob", "args": [args, args], **more})
    single, *rows = queued(redis, more.get("queue", "default"))
    for row in rows:
        assert row.keys() == single.keys()
        each = {"jid", "created_at", "enqueued_at"}
        assert {**row, **{key: single[key] for key in each}} == single
        assert row["created_at"] <= row["enqueued_at"]
    assert len({job["jid"] for job in (single, *rows)}) == 3


# Middleware


def test_middleware_may_change_a_job_once_when_it_is_created(client: Client, redis: Redis) -> None:
    seen: list[str] = []

    @middleware.client.append
    def stamp(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        seen.append(job["jid"])
        job["cattr"] = {"tenant": 7}
        return call()

    jids = [client.push({"class": "MyJob", "args": []}),
            client.push({"class": "MyJob", "args": [], "at": 60})]  # fmt: skip
    assert queued(redis)[0]["cattr"] == scheduled(redis)[0][0]["cattr"] == {"tenant": 7}
    assert seen == jids


def test_middleware_vetoes_by_returning_none(client: Client, redis: Redis) -> None:
    @middleware.client.append
    def odd_ones_out(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        return None if job["args"][0] % 2 else call()

    assert client.push({"class": "MyJob", "args": [1]}) is None
    jids = client.push_bulk({"class": "MyJob", "args": [[1], [2], [3], [4]]})
    assert [job["args"] for job in queued(redis)] == [[2], [4]]
    assert [job["jid"] for job in queued(redis)] == jids


def test_middleware_that_adds_to_an_option_changes_no_later_job(
    client: Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_client, "_default", client)
    monkeypatch.setattr(registry, "_jobs", {})

    @forkq.job(name="Mail", tags=["mail"])
    def mail() -> None: ...

    @middleware.client.append
    def tag(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        job["tags"].append("eu")
        return call()

    mail.perform_async()
    mail.perform_async()
    mail.perform_bulk([[], []])
    assert [job["tags"] for job in queued(redis)] == [["mail", "eu"]] * 4


def test_a_job_that_middleware_makes_gets_what_it_leaves_out(client: Client, redis: Redis) -> None:
    @middleware.client.append
    def replace(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        return {"class": "Other", "args": []}

    jid = client.push({"class": "MyJob", "args": [1], "queue": "low", "retry": 3})
    [found] = queued(redis)
    assert shape(found) == shape(QUEUED)
    assert (found["class"], found["jid"]) == ("Other", jid)


def test_what_middleware_makes_must_be_a_job(client: Client, redis: Redis) -> None:
    @middleware.client.append
    def replace(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        return [job]

    with pytest.raises(InvalidJob, match=r"a job is a dict like .*, not a list"):
        client.push({"class": "MyJob", "args": []})
    assert redis.dbsize() == 0


def test_what_middleware_makes_of_a_job_is_validated_again(client: Client, redis: Redis) -> None:
    @middleware.client.append
    def spoil(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        job["args"] = [object()]
        return call()

    with pytest.raises(InvalidJob):
        client.push({"class": "MyJob", "args": []})
    assert redis.dbsize() == 0


# A server that refuses, is away, or closes the connection


def test_a_push_after_a_failover_is_sent_again_once_on_a_fresh_connection(
    own_server: Server,
) -> None:
    """The old master has become a replica; a new connection reaches the new master."""
    new_master = Server(tcp=True).start()
    try:
        with Proxy(own_server.port) as proxy:
            client = Client(proxy.url)
            client.push({"class": "MyJob", "args": ["before"]})
            own_server.cli("REPLICAOF", "127.0.0.1", new_master.port)
            proxy.target = new_master.port
            client.push({"class": "MyJob", "args": ["after"], "queue": "a"})
            assert client.push_bulk({"class": "MyJob", "args": [["bulk"]], "queue": "a"})
            client.close()
        found = queued(new_master.client(), "a")
        assert [job["args"] for job in found] == [["after"], ["bulk"]]
        assert new_master.cli("SMEMBERS", "queues") == {b"a"}
    finally:
        new_master.close()


def test_a_replica_that_stays_one_is_an_error(own_server: Server) -> None:
    own_server.cli("REPLICAOF", "127.0.0.1", 1)
    client = Client(own_server.url)
    with pytest.raises(ServerReadOnly, match=r"address of the master; nothing was pushed"):
        client.push({"class": "MyJob", "args": []})
    client.close()
    assert own_server.cli("DBSIZE") == 0


def test_too_few_replicas_are_an_error_and_nothing_is_pushed(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "min-replicas-to-write", 1)
    client = Client(own_server.url)
    with pytest.raises(TooFewReplicas, match=r"NOREPLICAS.*nothing was pushed"):
        client.push({"class": "MyJob", "args": []})
    client.close()
    assert own_server.cli("DBSIZE") == 0


def test_a_full_server_is_an_error_and_nothing_is_pushed(own_server: Server) -> None:
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    client = Client(own_server.url)
    with pytest.raises(ServerFull, match=r"maxmemory.*nothing was pushed"):
        client.push({"class": "MyJob", "args": []})
    own_server.cli("CONFIG", "SET", "maxmemory", 0)
    client.push({"class": "MyJob", "args": ["after"]})
    client.close()
    assert [job["args"] for job in queued(own_server.client())] == [["after"]]


def test_a_push_whose_reply_is_lost_is_never_sent_twice(redis: Redis, redis_server: Server) -> None:
    with Proxy(redis_server.port) as proxy:
        client = Client(proxy.url)
        client.push({"class": "MyJob", "args": ["first"]})
        proxy.cut(b"LPUSH")
        with pytest.raises(ServerUnavailable, match="whether the job was pushed is not known"):
            client.push({"class": "MyJob", "args": ["second"]})
        client.push({"class": "MyJob", "args": ["third"]})
        client.close()
    assert [job["args"] for job in queued(redis)] == [["first"], ["second"], ["third"]]


def test_a_connection_that_died_while_idle_costs_nothing(client: Client, redis: Redis) -> None:
    client.push({"class": "MyJob", "args": [1]})
    redis.client_kill_filter(_type="normal", skipme=True)
    client.push({"class": "MyJob", "args": [2]})
    assert [job["args"] for job in queued(redis)] == [[1], [2]]


def test_a_restarted_server_is_found_again(own_server: Server) -> None:
    client = Client(own_server.url)
    client.push({"class": "MyJob", "args": [1]})
    own_server.stop()
    with pytest.raises(ServerUnavailable, match=r"Redis at redis://.*; nothing was pushed"):
        client.push({"class": "MyJob", "args": ["lost"]})
    own_server.start()
    client.push({"class": "MyJob", "args": [2]})
    client.close()
    assert [job["args"] for job in queued(own_server.client())] == [[1], [2]]


def test_threads_share_a_client_and_keep_no_more_connections_than_its_pool(
    redis: Redis, redis_server: Server
) -> None:
    client = Client(redis_server.url, pool=3)
    others = len(redis.client_list())

    def push() -> None:
        for number in range(100):
            client.push({"class": "MyJob", "args": [number]})

    threads = [threading.Thread(target=push) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert redis.llen("queue:default") == 800
    wait_until(lambda: len(redis.client_list()) <= others + 3, what="the surplus to be closed")
    client.close()
    wait_until(lambda: len(redis.client_list()) <= others, what="the rest to be closed")


def test_both_sides_of_a_fork_can_push(redis: Redis, redis_server: Server) -> None:
    program = f"""
import os, sys
from forkq import Client
client = Client({redis_server.url!r})
client.push({{"class": "MyJob", "args": ["before"]}})
pid = os.fork()
who = "parent" if pid else "child"
for number in range(50):
    client.push({{"class": "MyJob", "args": [who]}})
if pid == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=True, timeout=120)
    args = [job["args"][0] for job in queued(redis)]
    assert (args.count("before"), args.count("parent"), args.count("child")) == (1, 50, 50)


# The client's connection, for other code


def test_the_client_lends_a_connection_and_takes_it_back(
    redis: Redis, redis_server: Server
) -> None:
    client = Client(redis_server.url)
    others = len(redis.client_list())
    for _ in range(3):
        with client.connection() as connection:
            assert connection.call("PING") == b"PONG"
    assert len(redis.client_list()) <= others + 1
    client.close()


def test_an_error_on_a_lent_connection_names_the_server_and_not_the_password(
    redis: Redis, redis_server: Server
) -> None:
    redis.set("queue:default", "no list")
    client = Client(redis_server.url)
    with (
        pytest.raises(ServerUnavailable, match=r"redis://127.0.0.1:\d+/0 refuses: WRONGTYPE"),
        client.connection() as connection,
    ):
        connection.call("LLEN", "queue:default")
    with client.connection() as connection:
        assert connection.call("PING") == b"PONG"
    client.close()
    client = Client("redis://:sesame@127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match=r"127.0.0.1:1") as caught, client.connection():
        pass
    assert "sesame" not in str(caught.value)


# Job classes


def test_a_job_class_pushes_with_the_configured_client(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})

    class Thumbnail(forkq.Job, name="Thumb", queue="images", retry=5):
        def perform(self, path: str, width: int) -> None: ...

    jid = Thumbnail.perform_async("a.png", 200)
    later = Thumbnail.perform_in(60, "b.png", 100)
    bulk = Thumbnail.set(queue="low").perform_bulk([("c.png", 1), ("d.png", 2)])
    client.close()
    [found] = queued(redis, "images")
    assert (found["jid"], found["class"], found["retry"]) == (jid, "Thumb", 5)
    assert found["args"] == ["a.png", 200]
    assert scheduled(redis)[0][0]["jid"] == later
    assert [job["jid"] for job in queued(redis, "low")] == bulk


def test_a_client_that_is_dropped_closes_its_sockets_at_once(redis_server: Server) -> None:
    """Python's garbage collector, which may come late, has nothing to do with it."""
    gc.disable()
    try:
        client = forkq.Client(redis_server.url)
        client.push({"class": "A", "args": []})
        channel = weakref.ref(client.routes[0].channel())
        del client
        assert channel() is None
    finally:
        gc.enable()
