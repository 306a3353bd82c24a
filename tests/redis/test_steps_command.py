"""What people see of steps, and how they send a signal: `forkq steps` and `forkq signal`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.shell import Shell

KEYS = Keys()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def remembers(redis: Redis, **steps: Any) -> None:
    redis.zadd("dead", {dumps({"class": "Order", "args": [1], "jid": "j1"}): now()})
    redis.hset(KEYS.steps("j1"), "", "99")
    for name, found in steps.items():
        redis.hset(KEYS.steps("j1"), name, json.dumps(found))


def test_the_command_lists_what_a_job_remembers(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    at = now() - 600
    remembers(
        redis,
        ship={"at": at + 9, "value": {"parcel": 7}},
        charge={"at": at, "value": "ch_1\x1b[2J"},
        nap={"until": now() + 3600, "at": at + 2},
        rest={"until": at + 7, "at": at + 6},
        late={"at": at + 3, "timed_out": True},
        approved={"at": at + 4, "signal": {"at": at, "data": {"password": "hunter2"}}},
        large={"at": at + 5, "problem": "its value has 300,002 bytes"},
    )
    assert shell("steps j1") == 0
    lines = shell.out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["charge", "step"], ["nap", "sleep"], ["late", "wait_for"], ["approved", "wait_for"],
        ["large", "step"], ["rest", "sleep"], ["ship", "step"],
    ]  # fmt: skip
    assert "\x1b" not in shell.out
    assert "hunter2" not in shell.out
    for said in (
        "sleeps; is due in",
        "slept; was due ",
        "no signal has come",
        "300,002",
        'returned {"parcel":7}',
    ):
        assert said in shell.out
    assert shell("steps j1 --json") == 0
    [first, *_] = [json.loads(line) for line in shell.out.splitlines()]
    assert (first["name"], first["kind"], first["value"]) == ("charge", "step", "ch_1\x1b[2J")


def test_values_of_secret_jobs_and_of_jobs_that_are_nowhere_are_not_shown(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    remembers(redis, charge={"at": now(), "value": "ch_77"})
    redis.hset(KEYS.parameters, "Order", json.dumps({"names": ["token"], "secret": False}))
    assert shell("steps j1") == 0
    assert "ch_77" not in shell.out
    redis.delete("dead", KEYS.parameters)
    assert shell("steps j1") == 0
    assert "ch_77" not in shell.out
    redis.delete(KEYS.steps("j1"))
    assert shell("steps j1") == 1
    assert shell.out == "j1 remembers no steps: it has done none, or has ended\n"


def test_steps_that_cannot_be_read_are_an_error(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    remembers(redis, charge=7)
    assert shell("steps j1") == 1
    assert "the steps of j1 cannot be read" in shell.err


def test_find_shows_what_a_job_remembers_and_for_what_it_waits(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    at = now() - 600
    remembers(
        redis,
        charge={"at": at, "value": {"receipt": 7, "token": "t0p"}},
        approval={"until": now() + 7200, "at": at + 1, "event": "approved:7"},
    )
    assert shell("find j1") == 0
    lines = [line for line in shell.out.splitlines() if line.startswith("step")]
    assert lines[0].split()[1] == "charge"
    assert lines[0].endswith('returned {"receipt":7,"token":"***"}')
    assert "waits for the signal approved:7; times out in 120 min" in lines[1]
    assert shell("find j1 --json") == 0
    steps = json.loads(shell.out)["steps"]
    assert [(step["name"], step["event"]) for step in steps] == [
        ("charge", ""), ("approval", "approved:7")
    ]  # fmt: skip
    redis.hset(KEYS.steps("j1"), "charge", "7")
    assert shell("find j1") == 0
    assert "the steps of j1 cannot be read" in shell.out


def test_the_command_lists_the_jobs_that_wait_for_signals(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    assert shell("steps") == 0
    assert shell.out == "no job waits for a signal\n"
    wait(redis, "j1", "approved:7", until=now() + 9000)
    wait(redis, "j2", "paid", until=now() + 60)
    redis.delete(KEYS.event("paid"))
    redis.zadd("schedule", {dumps({"class": "Other", "args": [], "jid": "j3"}): now()})
    assert shell("steps") == 0
    _, first, second = shell.out.splitlines()
    assert first.split()[:3] == ["j2", "Order", "paid"]
    assert "no signal wakes it" in first
    assert second.split()[:3] == ["j1", "Order", "approved:7"]
    assert shell("steps --json") == 0
    [_, found] = [json.loads(line) for line in shell.out.splitlines()]
    assert (found["event"], round(now() - found["since"])) == ("approved:7", 30)


def wait(redis: Redis, jid: str, event: str, until: float, since: float = 30.0) -> None:
    """A job that has come to a wait, as the script of its end writes it."""
    needs = {"needs": {"steps": True, "waits": event}}
    raw = dumps({"class": "Order", "args": [1], "jid": jid, "queue": "default", "forkq": needs})
    redis.zadd("schedule", {raw: until})
    redis.hset(KEYS.event(event), jid, f"{now() - since:.6f} {until:.6f} {len(event)} {event}")


def test_the_command_sends_a_signal(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    assert shell("signal approved --key 7 --ttl 2h", "--data", '{"by": "ann"}') == 0
    assert shell.out == "approved:7 is sent\n"
    event: Any = redis.hget(KEYS.event("approved:7"), "")
    assert event.endswith(b'0 {"by":"ann"}')
    assert 7100 < redis.ttl(KEYS.event("approved:7")) <= 7200
    assert shell("signal approved --key 7") == 1
    assert shell.out == "approved:7 was sent before: the first signal counts\n"
    assert shell("signal approved --for-one") == 0
    event = redis.hget(KEYS.event("approved"), "")
    assert event.endswith(b"1 null")
    assert shell("signal approved --data ann") == 1
    assert "is no JSON" in shell.err
    assert shell("signal a:b") == 1
    assert "without a colon" in shell.err
