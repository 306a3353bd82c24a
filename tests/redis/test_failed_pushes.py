"""A push that Redis refuses, or whose reply is lost: the error, and what it says of the jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import forkq
from forkq import registry
from forkq.client import Client
from forkq.errors import InvalidJob, ServerUnavailable
from forkq.store import push_steps
from forkq.store.push_steps import BATCH
from forkq.store.refusals import failure
from tests.redis.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import wait_until

ROWS = [[number] for number in range(5 * BATCH)]
JOB = {"class": "MyJob", "args": []}


def in_redis(redis: Redis, *queues: str) -> set[str]:
    jobs: list[Any] = []
    for queue in queues or ("default",):
        found: Any = redis.lrange(f"queue:{queue}", 0, -1)
        jobs += found
    return {json.loads(job)["jid"] for job in jobs}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("\ud800", r"row 2400 \(the first is 0\): .*args\[0\] has half a surrogate"),
        ([1, {"a": 10**5000}], r"row 2400 .*args\[0\]\[1\]\['a'\] is a number of about 5,001"),
        ({1, 2}, r"row 2400 .*args\[0\] is a set"),
        (object(), r"row 2400 .*args\[0\] is an object"),
    ],
    ids=["surrogate", "digits", "set", "object"],
)  # fmt: skip
@pytest.mark.parametrize("strict", ["raise", "off"])
def test_one_bad_row_of_a_bulk_push_is_named_and_nothing_is_written(
    redis: Redis, redis_server: Server, bad: Any, why: str, strict: Any
) -> None:
    if strict == "off" and isinstance(bad, set):
        pytest.skip("a set travels as a list")
    client = Client(redis_server.url, strict_args=strict)
    with pytest.raises(InvalidJob, match=why):
        client.push_bulk({"class": "MyJob", "args": [*ROWS[:2400], [bad], *ROWS]})
    client.close()
    assert redis.dbsize() == 0


@pytest.mark.parametrize("row", [7, "ab", [1, 2]])
def test_a_row_that_does_not_fit_is_named(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})

    @forkq.job(name="One")
    def one(number: int) -> None: ...

    with pytest.raises(InvalidJob, match=r"row 1 \(the first is 0\): job 'One'"):
        one.perform_bulk([(1,), row, (3,)])
    assert redis.dbsize() == 0


def test_a_bulk_push_with_a_lost_reply_says_which_jobs_are_in_and_which_may_be(
    redis: Redis, redis_server: Server
) -> None:
    """The reply to the third batch is lost, and then the server is away. Some batches were sent
    before the replies to those before them had come."""
    clients = len(redis.client_list())
    with Proxy(redis_server.port) as proxy:
        client = Client(proxy.url)
        proxy.cut(b'"args":[2999]')  # the end of that batch
        said = r"of 5,000 jobs were pushed; whether \d,000 more were is not known"
        with pytest.raises(ServerUnavailable, match=said) as caught:
            client.push_bulk({"class": "MyJob", "args": ROWS})
        client.close()
    pushed, unknown = set(caught.value.pushed), set(caught.value.unknown)
    assert len(pushed) <= 2000
    assert len(pushed | unknown) == len(pushed) + len(unknown) >= 3000
    wait_until(lambda: len(redis.client_list()) == clients, what="the server to carry out the rest")
    assert pushed <= in_redis(redis) <= pushed | unknown


def test_a_bulk_push_never_says_nothing_was_pushed_when_something_was(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away before the fifth batch is sent; the reply to the first has come."""
    client = Client(own_server.url)
    made: list[object] = []
    writes = push_steps._writes

    def away(jobs: Any, keys: Any) -> Any:
        made.append(jobs)
        if len(made) == 5:
            own_server.stop()
        return writes(jobs, keys)

    monkeypatch.setattr(push_steps, "_writes", away)
    with pytest.raises(ServerUnavailable, match=r"[1-4],000 of 5,000 jobs were pushed") as caught:
        client.push_bulk({"class": "MyJob", "args": ROWS})
    client.close()
    own_server.start()
    pushed, unknown = set(caught.value.pushed), set(caught.value.unknown)
    assert pushed <= in_redis(own_server.client()) <= pushed | unknown


def test_a_bulk_push_that_is_refused_in_part_says_which_part(
    redis: Redis, redis_server: Server
) -> None:
    redis.set("schedule", "no sorted set")
    client = Client(redis_server.url)
    with pytest.raises(forkq.WrongType, match="2 of 3 jobs were pushed") as caught:
        client.push_bulk({**JOB, "args": [[1], [2], [3]], "at": [0, 60, 0]})
    client.close()
    assert in_redis(redis) == set(caught.value.pushed)
    assert caught.value.unknown == ()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_push_says_that_its_jobs_are_in_when_only_the_set_of_queues_is_damaged(
    redis: Redis, redis_server: Server, rows: int
) -> None:
    redis.set("queues", "no set")
    client = Client(redis_server.url)
    said = "the job was pushed all the same" if rows == 1 else "3 of 3 jobs were pushed"
    with pytest.raises(forkq.WrongType, match=f"RENAME queues damaged:queues.*{said}") as caught:
        client.push_bulk({**JOB, "args": [[1]] * rows})
    client.close()
    assert in_redis(redis) == set(caught.value.pushed)
    assert (len(caught.value.pushed), caught.value.unknown) == (rows, ())


def _no_right(server: Server) -> str:
    server.cli("ACL", "SETUSER", "ann", "on", ">x", "+@all", "-lpush", "allkeys")
    return server.url.replace("redis://", "redis://ann:x@")


def _no_right_to_the_key(server: Server) -> str:
    server.cli("ACL", "SETUSER", "ann", "on", ">x", "+@all", "~other:*")
    return server.url.replace("redis://", "redis://ann:x@")


def _full(server: Server) -> str:
    server.cli("CONFIG", "SET", "maxmemory", 1)
    return server.url


def _replica(server: Server) -> str:
    server.cli("REPLICAOF", "127.0.0.1", 1)
    return server.url


def _too_few(server: Server) -> str:
    server.cli("CONFIG", "SET", "min-replicas-to-write", 1)
    return server.url


def _wrong_type(server: Server) -> str:
    server.cli("SET", "queue:default", "x")
    return server.url


def _wrong_password(server: Server) -> str:
    server.cli("ACL", "SETUSER", "default", "resetpass", ">sesame")
    return server.url.replace("redis://", "redis://:guess@")


def _no_password(server: Server) -> str:
    server.cli("ACL", "SETUSER", "default", "resetpass", ">sesame")
    return server.url


@pytest.mark.parametrize(
    ("make", "kind", "remedy"),
    [
        (_no_right, forkq.NotPermitted, "docs/redis.md"),
        (_no_right_to_the_key, forkq.NotPermitted, "docs/redis.md"),
        (_full, forkq.ServerFull, "raise maxmemory"),
        (_replica, forkq.ServerReadOnly, "address of the master"),
        (_too_few, forkq.TooFewReplicas, "min-replicas-to-write"),
        (_wrong_type, forkq.WrongType, "TYPE"),
        (_wrong_password, forkq.WrongPassword, "give the right password"),
        (_no_password, forkq.WrongPassword, "asks for a password, and none was given; give the"),
    ],
)
def test_each_refusal_of_a_push_is_an_error_of_its_own_with_the_remedy(
    make: Callable[[Server], str], kind: type[ServerUnavailable], remedy: str
) -> None:
    server = Server(tcp=True).start()
    try:
        client = Client(make(server))
        for push in (client.push, lambda job: client.push_bulk({**job, "args": [[1]]})):
            with pytest.raises(kind, match="nothing was pushed") as caught:
                push(JOB)
            assert remedy in str(caught.value)
            assert "guess" not in str(caught.value)
            assert (caught.value.pushed, caught.value.unknown) == ((), ())
            assert isinstance(caught.value, forkq.ForkqError)
            assert caught.value.exit_code == (7 if kind is forkq.ServerReadOnly else 6)
        client.close()
    finally:
        server.close()


def test_a_server_that_cannot_save_raises_cannot_save() -> None:
    """What Redis answers then; a disk that is really full is not for a test."""
    error = ResponseError("MISCONF Redis is configured to save RDB snapshots, but ...")
    assert type(failure(error, "redis://h")) is forkq.CannotSave


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1", "unix:///nonexistent/redis.sock", "redis://no-such-host.invalid"],
    ids=["port", "socket", "host"],
)
def test_an_address_where_no_server_listens_comes_with_the_remedy(url: str) -> None:
    with closing(Client(url)) as client, pytest.raises(ServerUnavailable) as caught:
        client.push(JOB)
    said = str(caught.value)
    assert said.startswith(f"Redis at {url}: ")
    assert "start a server there, or give the address of another one" in said
    assert said.endswith("; nothing was pushed")


def test_a_server_that_is_no_redis_is_called_so() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever).start()
        try:
            with (
                closing(Client(f"redis://127.0.0.1:{server.server_port}")) as client,
                pytest.raises(ServerUnavailable, match="does not speak Redis's protocol"),
            ):
                client.push(JOB)
        finally:
            server.shutdown()


def test_a_lost_reply_does_not_say_that_a_server_should_be_started(redis_server: Server) -> None:
    """It runs: who follows that remedy looks in the wrong place."""
    with Proxy(redis_server.port) as proxy, closing(Client(proxy.url)) as client:
        proxy.cut(b"LPUSH")
        with pytest.raises(ServerUnavailable) as caught:
            client.push(JOB)
    assert "start a server" not in str(caught.value)
