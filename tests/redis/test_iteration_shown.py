"""What people see of an iterable job: its cursor, the items it has done, and when it may end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.errors import ForkqError
from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.redis.shell import Shell

KEYS = Keys()
WHO = "host:17:0123456789ab"
HALFWAY: dict[Any, Any] = {"ex": "2", "c": "1200", "rt": "60.0", "forkq": "[2,1200,1200,3000]"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, client: forkq.Client, environment: None) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())


def waits(redis: Redis, **fields: Any) -> None:
    redis.zadd("dead", {dumps({"class": "Walk", "args": [1], "jid": "j1"}): now()})
    written: Any = fields
    redis.hset("it-j1", mapping=written)


def runs(redis: Redis, ago: float, progress: dict[str, Any]) -> None:
    """A child whose heartbeat tells of the job."""
    raw = dumps({"class": "Walk", "args": [1], "queue": "mail", "jid": "j1"})
    info = {"hostname": "host", "pid": 17, "started_at": 1.5, "concurrency": 5, "queues": ["mail"]}
    redis.sadd("processes", WHO)
    redis.hset(WHO, mapping={"info": json.dumps(info), "busy": 1, "beat": time.time()})
    redis.hset(KEYS.inflight("mail"), f"{WHO}/4", raw)
    redis.zadd(KEYS.fetched, {"mail": 1})
    work = {"queue": "mail", "payload": raw.decode(), "run_at": int(time.time() - ago), "lease": 4}
    redis.hset(f"{WHO}:work", "t1", json.dumps({**work, "progress": progress}))


def test_a_job_that_waits_says_how_far_it_has_come(redis: Redis, shell: Shell) -> None:
    waits(redis, **HALFWAY)
    found = api.iteration("j1")
    assert found == api.JobIteration(1200, 2, 60.0, 1200, 1200, 3000, cancelled=False)
    assert found.seconds_left == pytest.approx(90)
    assert shell("find j1") == 0
    said = "goes on at 1200, 1,200 items done, 40 % of 3,000, 2 runs of 60 s, about 90 s left"
    assert f"iteration  {said}" in shell.out
    assert shell("find j1 --json") == 0
    known = json.loads(shell.out)["iteration"]
    assert (known["cursor"], known["items"], known["seconds_left"]) == (1200, 1200, 90.0)
    assert api.iteration("j2") is None


def test_after_a_run_of_sidekiq_only_its_cursor_is_known(redis: Redis, shell: Shell) -> None:
    waits(redis, **{**HALFWAY, "ex": "3", "c": "null", "cancelled": "5"})
    found = api.iteration("j1")
    assert found == api.JobIteration(None, 3, 60.0, 1200, None, None, cancelled=True)
    assert found.seconds_left is None
    assert shell("find j1") == 0
    said = "goes on at its beginning, 1,200 items done, 3 runs of 60 s, is cancelled"
    assert f"iteration  {said}" in shell.out


def test_a_job_that_runs_says_when_it_may_end(redis: Redis, shell: Shell) -> None:
    """As of its last heartbeat, by the time of all its runs."""
    at = time.time()
    walked = {"items": 1500, "before": 60.0}
    runs(redis, 10, {"done": 1500, "total": 3000, "note": "", "at": at, **walked})
    redis.hset("it-j1", mapping=HALFWAY)
    [job] = api.running()
    assert job.progress is not None
    assert job.progress.items == 1500
    assert job.seconds_left == pytest.approx(70, abs=2)
    assert shell("running") == 0
    assert "1,500 of 3,000, about 7" in shell.out
    assert shell("running --json") == 0
    assert json.loads(shell.out)["seconds_left"] == pytest.approx(70, abs=2)
    assert shell("find j1") == 0
    assert "progress       1,500 of 3,000, about 7" in shell.out
    assert "iteration      goes on at 1200, 1,200 items done" in shell.out


def test_one_without_an_end_counts_its_items(redis: Redis, shell: Shell) -> None:
    runs(redis, 10, {"done": 7, "total": None, "note": "", "at": time.time(), "items": 7})
    [job] = api.running()
    assert job.seconds_left is None
    assert shell("running") == 0
    assert "7 items done" in shell.out


def test_a_plain_job_with_a_total_has_an_estimate_too(redis: Redis, shell: Shell) -> None:
    runs(redis, 30, {"done": 1, "total": 4, "note": "files", "at": time.time()})
    assert shell("running") == 0
    assert "1 of 4 files, about 9" in shell.out


def test_the_cursor_of_a_job_with_secrets_is_masked(redis: Redis, shell: Shell) -> None:
    waits(redis, **{**HALFWAY, "c": '"ann@example.org"'})
    redis.hset(KEYS.parameters, "Walk", json.dumps({"names": ["token"], "secret": False}))
    assert shell("find j1") == 0
    assert 'goes on at "***"' in shell.out
    assert "ann" not in shell.out
    redis.delete("dead", KEYS.parameters)
    found = api.iteration("j1")
    assert found is not None
    assert found.cursor == "***"


@pytest.mark.parametrize("damage", [{"c": "no JSON"}, {"rt": "x"}, None])
def test_a_cursor_that_cannot_be_read_is_told(
    redis: Redis, shell: Shell, damage: dict[str, str] | None
) -> None:
    waits(redis, **{**HALFWAY, **(damage or {})})
    if damage is None:
        redis.set("it-j1", "?")
    with pytest.raises(ForkqError, match="how far j1 has come cannot be read"):
        api.iteration("j1")
    assert shell("find j1") == 0
    assert "how far j1 has come cannot be read" in shell.out
    assert "Traceback" not in shell.out + shell.err
