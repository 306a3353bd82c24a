"""Secrets are masked by the names of parameters, where the job is defined in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import registry
from forkq.api import DeadSet, JobEntry
from tests.redis.shell import Shell


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


@pytest.mark.parametrize(
    ("name", "args", "shown"),
    [
        ("pay", [7, "t"], [7, "***"]),
        ("pay", [7, "t", {"pin": 1, "by": "me"}], [7, "***", {"pin": "***", "by": "me"}]),
        ("pay", [7, "t", {}, "more than it takes"], [7, "***", {}, "more than it takes"]),
        ("login", ["ann", "one", "two"], ["ann", "***", "***"]),
        ("reset", ["ann", "new"], ["ann", "***"]),
        ("hidden", [5], ["***"]),  # pushed by a program that does not know the option
        ("unknown", [7, "t"], [7, "t"]),
    ],
)
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


@pytest.mark.usefixtures("environment")
def test_a_command_masks_as_the_api_does(redis: Redis, shell: Shell) -> None:
    dead(redis, "pay", 7, "topsecret")
    assert (shell("dead show a"), '[7, "***"]' in shell.out) == (0, True)
    assert (shell("dead show a --json"), "topsecret" in shell.out) == (0, False)
