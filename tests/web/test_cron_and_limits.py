"""Periodic jobs and limits."""

from __future__ import annotations

import re

from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq.api import cron


def act(web: TestClient, path: str, **fields: str) -> None:
    token = re.search(r'name="csrf" value="([^"]+)"', web.get("/cron").text)
    assert token is not None
    answer = web.post(path, data={"csrf": token[1], "confirmed": "yes", **fields})
    assert answer.status_code == 303, answer.text


def test_empty_pages_say_what_would_stand_there(web: TestClient) -> None:
    assert "No periodic jobs." in web.get("/cron").text
    assert "No queue has a rule." in web.get("/limits").text


def test_a_periodic_job_is_paused_resumed_and_run(web: TestClient, redis: Redis) -> None:
    cron.add("nightly", "0 3 * * *", "Report")
    text = web.get("/cron").text
    assert "0 3 * * *" in text
    assert text.count('class="tick"') == 1
    act(web, "/cron/pause", name="nightly")
    assert redis.smembers("forkq:cron:paused") == {b"nightly"}
    act(web, "/cron/resume", name="nightly")
    assert redis.smembers("forkq:cron:paused") == set()
    act(web, "/cron/run", name="nightly")
    assert redis.llen("queue:default") == 1
    assert "run by hand" in web.get("/cron/job?name=nightly").text


def test_a_limit_is_shown(web: TestClient) -> None:
    forkq.Queue("mail").limit = 3
    text = web.get("/limits").text
    assert "limit 3" in text
    assert "set at run time" in text
