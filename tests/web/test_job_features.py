"""What the page of a job, and `forkq top`, say of its steps, its cursor and its result."""

from __future__ import annotations

import json

from redis import Redis
from starlette.testclient import TestClient

from forkq.wire.keys import Keys
from forkq.wire.payload import dumps
from forkq.wire.times import now
from tests.top.screen import Screen, drive
from tests.web.shared import HOSTILE

KEYS = Keys()


def waits(redis: Redis) -> None:
    """A job that waits for a signal."""
    marks = {"needs": {"steps": True, "waits": "approved:7", "result_ttl": 3600}}
    job = {"class": "Order", "args": [7], "jid": "j1", "queue": "default", "forkq": marks}
    redis.zadd("schedule", {dumps(job): now() + 7200})
    steps = {
        "charge": {"at": now() - 60, "value": {"receipt": 7, "password": "s3cr3t"}},
        "approval": {"at": now() - 50, "until": now() + 7205, "event": "approved:7"},
    }
    redis.hset(KEYS.steps("j1"), mapping={name: json.dumps(step) for name, step in steps.items()})


def test_a_job_says_what_it_remembers_and_for_what_it_waits(web: TestClient, redis: Redis) -> None:
    waits(redis)
    redis.hset("it-j1", mapping={"ex": "2", "c": "1200", "rt": "60.0"})
    page = web.get("/job?jid=j1").text
    assert "Its steps" in page
    assert "waits for the signal approved:7; times out in 2 h" in page
    assert "receipt" in page
    assert "s3cr3t" not in page
    assert "Its result is kept for 60 min after its end." in page
    assert "Its cursor: goes on at 1200" in page
    assert "<small>waits for approved:7</small>" in web.get("/scheduled").text


def test_steps_of_secret_jobs_and_names_of_redis_are_safe(web: TestClient, redis: Redis) -> None:
    waits(redis)
    redis.hset(KEYS.steps("j1"), HOSTILE, json.dumps({"at": 1.0, "value": HOSTILE}))
    page = web.get("/job?jid=j1").text
    assert "<img" not in page
    redis.hset(KEYS.steps("j1"), "charge", "<img>7")
    page = web.get("/job?jid=j1").text
    assert "the steps of j1 cannot be read" in page
    assert "<img" not in page


def test_steps_of_a_job_with_secret_arguments_are_masked(web: TestClient, redis: Redis) -> None:
    redis.hset(KEYS.parameters, "Order", json.dumps({"names": ["token"], "secret": False}))
    waits(redis)
    page = web.get("/job?jid=j1").text
    assert "receipt" not in page
    assert "charge" in page


def test_top_says_it_on_the_page_of_a_job(api_client: None, redis: Redis) -> None:
    waits(redis)

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "s")
        await screen.shows("Order", "waits for approved:7")
        await screen.press("enter")
        await screen.shows("its step: approval", "waits for the signal approved:7")

    drive(scenario)
