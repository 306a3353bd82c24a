"""Secrets are masked by the names of parameters, which children publish, and by their form; and the
name of a job (``JobEntry.key``) does not tell what is masked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, default_client, registry
from forkq.api import DeadSet, Filter, JobEntry
from forkq.child.heartbeat.stats import Totals
from forkq.child.heartbeat.tasks import PublishParameters, Snapshot
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.redis.shell import Shell
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch, client: forkq.Client) -> None:
    monkeypatch.setattr(registry, "_jobs", {})

    @forkq.job(name="pay")
    def pay(card: int, token: str, note: dict[str, str] | None = None) -> None: ...

    @forkq.job(name="login")
    def login(user: str, *passwords: str) -> None: ...

    class Reset(forkq.Job, name="reset"):
        def perform(self, user: str, new_password: str) -> None: ...

    @forkq.job(name="hidden", secret=True)
    def hidden(number: int) -> None: ...


def dead(redis: Redis, name: str, *args: Any, **more: Any) -> JobEntry:
    payload = {"class": name, "args": args, "queue": "mail", "jid": "a", **more}
    redis.zadd("dead", {json.dumps(payload): 1.5})
    [entry] = DeadSet()
    return entry


SHOWN: list[tuple[str, list[Any], list[Any]]] = [
    ("pay", [7, "t"], [7, "***"]),
    ("pay", [7, "t", {"pin": 1, "by": "me"}], [7, "***", {"pin": "***", "by": "me"}]),
    ("pay", [7, "t", {}, "more than it takes"], [7, "***", {}, "more than it takes"]),
    ("login", ["ann", "one", "two"], ["ann", "***", "***"]),
    ("reset", ["ann", "new"], ["ann", "***"]),
    ("hidden", [5], ["***"]),  # pushed by a program that does not know the option
    ("unknown", [7, "t"], [7, "t"]),
]


@pytest.mark.parametrize(("name", "args", "shown"), SHOWN)
def test_by_the_names_of_parameters(
    name: str, args: list[Any], shown: list[Any], redis: Redis
) -> None:
    entry = dead(redis, name, *args)
    assert entry.args == shown
    assert json.loads(entry.masked) == {**json.loads(entry.raw), "args": shown}


def test_the_registry_knows_the_names_of_parameters() -> None:
    assert registry.lookup("pay").parameters == ("card", "token", "note")
    assert registry.lookup("reset").parameters == ("user", "new_password")
    assert registry.lookup("login").parameters == ("user", "*passwords")


def test_deep_arguments_are_masked_alone(redis: Redis) -> None:
    deep = json.loads("[" * 400 + "]" * 400)
    assert dead(redis, "pay", deep, "t").args[1] == "***"


@pytest.fixture
def elsewhere(redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the app has booted; this process knows no job of it."""
    task = PublishParameters(Keys(), "vm:1:0123456789ab", RecordedLog())
    with closing(RedisConnection(redis_server.url, timeout=20)) as connection:
        connection.connect()
        task.attend(connection, Snapshot([], Totals(), quiet=False))
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("name", "args", "shown"), SHOWN)
def test_by_what_a_child_has_published(
    name: str, args: list[Any], shown: list[Any], redis: Redis
) -> None:
    entry = dead(redis, name, *args)
    assert entry.args == shown
    assert json.loads(entry.masked) == {**json.loads(entry.raw), "args": shown}


@pytest.mark.usefixtures("elsewhere")
def test_what_is_published_has_names_and_no_more(redis: Redis) -> None:
    found: Any = redis.hgetall("forkq:parameters")
    assert {name.decode(): json.loads(value) for name, value in found.items()} == {
        "pay": {"names": ["card", "token", "note"], "secret": False},
        "login": {"names": ["user", "*passwords"], "secret": False},
        "reset": {"names": ["user", "new_password"], "secret": False},
        "hidden": {"names": ["number"], "secret": True},
    }
    assert redis.ttl("forkq:parameters") == -1


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "payload",
    [
        {"class": "pay", "args": [7, "topsecret"]},  # without a jid it is no job
        {
            "class": "forkq.malformed",
            "jid": "a",
            "args": ['{"class":"pay","args":[7,"topsecret"]}'],
        },
    ],
)
def test_a_payload_that_is_no_job_is_masked_by_the_class_in_it(
    payload: dict[str, Any], redis: Redis
) -> None:
    redis.zadd("dead", {json.dumps(payload): 1.5})
    [entry] = DeadSet()
    assert "topsecret" not in f"{entry.args}{entry.masked!r}"


@pytest.mark.usefixtures("elsewhere")
def test_all_is_secret_where_another_program_has_written(redis: Redis) -> None:
    redis.hset("forkq:parameters", "pay", b"\xff")
    assert dead(redis, "pay", 7, "t").args == ["***", "***"]
    redis.delete("dead")
    redis.set("forkq:parameters", "damaged")
    assert dead(redis, "unknown", 7, "t").args == ["***", "***"]


@pytest.mark.usefixtures("elsewhere")
def test_redis_is_asked_once_for_many_jobs(redis: Redis, redis_server: Server) -> None:
    for number in range(30):
        redis.zadd("dead", {json.dumps({"class": "pay", "args": [number, "t"], "jid": "a"}): 1.5})
    redis.config_resetstat()
    assert all(entry.args[1] == "***" for entry in DeadSet())
    calls: Any = redis.info("commandstats")
    assert calls["cmdstat_hget"]["calls"] == 1


@pytest.mark.usefixtures("elsewhere", "environment")
def test_a_command_without_the_app_shows_no_secret(redis: Redis, shell: Shell) -> None:
    dead(redis, "pay", 7, "topsecret")
    assert (shell("dead show a"), '[7, "***"]' in shell.out) == (0, True)
    assert (shell("dead show a --json"), "topsecret" in shell.out) == (0, False)


@pytest.mark.usefixtures("environment")
def test_a_command_masks_as_the_api_does(redis: Redis, shell: Shell) -> None:
    dead(redis, "pay", 7, "topsecret")
    assert (shell("dead show a"), '[7, "***"]' in shell.out) == (0, True)
    assert (shell("dead show a --json"), "topsecret" in shell.out) == (0, False)


# Names of jobs (JobEntry.key)


def guessed(shown: str, masked: bytes, secret: bytes = b"") -> list[int]:
    """The values of three digits with which the name would be ``shown``, for a person who sees all
    of the payload but these."""
    before, after = masked.split(b'"***"')
    digests = {
        hashlib.blake2b(before + b"%03d" % cvv + after, digest_size=8, key=secret).hexdigest(): cvv
        for cvv in range(1000)
    }
    return [cvv for digest, cvv in digests.items() if digest in shown]


def dead_card(redis: Redis) -> JobEntry:
    payload = {"class": "unknown", "args": [{"cvv": 417}], "queue": "mail", "jid": "a"}
    redis.zadd("dead", {json.dumps(payload, separators=(",", ":")): 1.5})
    return one_dead()


def one_dead() -> JobEntry:
    [entry] = DeadSet()
    return entry


def test_a_key_does_not_tell_what_is_masked(redis: Redis) -> None:
    entry = dead_card(redis)
    assert b"417" not in entry.masked
    assert guessed(entry.key, entry.masked) == []
    secret = redis.get("forkq:secret")
    assert isinstance(secret, bytes)
    assert guessed(entry.key, entry.masked, secret) == [417]  # so that is how it is made


@pytest.mark.usefixtures("environment")
def test_a_command_gives_out_no_other_key(redis: Redis, shell: Shell) -> None:
    entry = dead_card(redis)
    for line in ("dead --json", "dead show a --json", "find a --json"):
        assert (shell(line), json.loads(shell.out)["key"]) == (0, entry.key)
        assert guessed(shell.out, entry.masked) == []


@pytest.fixture
def other(redis_server: Server) -> Iterator[forkq.Client]:
    """The client of another process."""
    client = forkq.Client(redis_server.url)
    yield client
    client.close()


def by(client: forkq.Client) -> str:
    """The key of the only dead job that the process of that client gives out."""
    before = default_client.swap(client)
    try:
        [entry] = DeadSet()
        return entry.key
    finally:
        default_client.swap(before)


def test_two_processes_agree(
    redis: Redis, client: forkq.Client, other: forkq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("forkq.api.entry"), "SECRET_FOR", 0.0)
    key = dead_card(redis).key
    assert by(other) == key
    redis.delete("forkq:secret")  # Redis has lost it: it gets the same one again
    assert [by(other), by(client)] == [key, key]
    redis.set("forkq:secret", "0" * 64)
    assert by(other) == by(client) != key


def test_the_secret_is_not_asked_for_with_each_job(redis: Redis) -> None:
    key = dead_card(redis).key
    redis.set("forkq:secret", "0" * 64)
    assert one_dead().key == key  # until some seconds have passed


def test_two_deployments_have_two_secrets(redis: Redis, redis_server: Server) -> None:
    key = dead_card(redis).key
    redis.copy("dead", "other:dead")
    with_prefix = forkq.Client(redis_server.url, prefix="other:")
    assert by(with_prefix) != key
    assert redis.get("other:forkq:secret") != redis.get("forkq:secret")
    with_prefix.close()


@pytest.mark.parametrize("value", ["", "short", "x" * 65, ["a list"]])
def test_a_secret_that_is_none_is_not_used(
    value: str | list[str], redis: Redis, client: forkq.Client
) -> None:
    """The process then has one of its own."""
    if isinstance(value, list):
        redis.rpush("forkq:secret", *value)
    else:
        redis.set("forkq:secret", value)
    entry = dead_card(redis)
    assert (
        guessed(entry.key, entry.masked, value.encode()[:64] if isinstance(value, str) else b"")
        == []
    )
    assert DeadSet().get(entry.key) == entry


@pytest.mark.parametrize("lost", ["-set", "-get"])
def test_a_user_who_may_not_write_it_finds_jobs_again(
    lost: str, redis: Redis, redis_server: Server
) -> None:
    redis_server.cli("ACL", "SETUSER", "looker", "reset", "on", ">x", "~*", "+@all", lost)
    client = forkq.Client(redis_server.url.replace("redis://", "redis://looker:x@"))
    before = default_client.swap(client)
    try:
        entry = dead_card(redis)
        assert DeadSet().get(entry.key) == entry
        assert guessed(entry.key, entry.masked) == []
        assert api.DeadSet().count(Filter(keys=[entry.key])) == 1
    finally:
        default_client.swap(before)
        client.close()
        redis_server.cli("ACL", "DELUSER", "looker")
