"""Acting on jobs that wait in a queue: on a selection, on all, and on one."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq.web.pages.job as job_page
from tests.web.shared import act, confirm


@pytest.fixture(autouse=True)
def _jobs(redis: Redis) -> None:
    """Sixty jobs; the next one is number 0."""
    redis.sadd("queues", "mail")
    for number in range(60):
        at = time.time() - 60
        job = {"class": "Mail", "args": [number], "jid": f"job-{number}", "queue": "mail"}
        redis.lpush("queue:mail", json.dumps({**job, "created_at": at, "enqueued_at": at}))


def left(redis: Redis, queue: str = "mail") -> list[int]:
    """The arguments of its jobs, the next one first."""
    return [json.loads(raw)["args"][0] for raw in redis.lrange(f"queue:{queue}", 0, -1)][::-1]


def form(html: str, *jids: str) -> dict[str, Any]:
    """The fields of the page's form, with these jobs selected."""
    keys = dict(re.findall(r'name="key" value="([^"]+)" aria-label="Select Mail ([^"]+)"', html))
    at = re.search(r'name="at" value="(\d+)"', html)
    assert at is not None
    chosen = [key for key, jid in keys.items() if jid in jids]
    return {"name": "mail", "at": at[1], "key": chosen}


def test_selected_jobs_are_deleted_and_put_back(web: TestClient, redis: Redis) -> None:
    fields = form(web.get("/queue?name=mail&page=1").text, "job-30", "job-40")
    answer = confirm(web, "/queue/jobs/delete", **fields)
    html = web.get(answer.headers["location"]).text
    assert "Deleted 2 jobs of the queue mail." in html
    assert left(redis) == [n for n in range(60) if n not in (30, 40)]
    token = re.search(r'name="token" value="([^"]+)"', html)
    assert token is not None
    act(web, "/undo", token=token[1], back="/queue?name=mail")
    assert sorted(left(redis)) == list(range(60))


def test_jobs_that_were_fetched_meanwhile_are_left_out(web: TestClient, redis: Redis) -> None:
    fields = form(web.get("/queue?name=mail").text, "job-0", "job-5")
    redis.rpop("queue:mail")
    asked = act(web, "/queue/jobs/kill", **fields)
    assert asked.status_code == 303  # one job is left: it is acted on at once
    assert redis.zcard("dead") == 1
    assert left(redis) == [n for n in range(1, 60) if n != 5]


def test_all_jobs_move_to_a_queue(web: TestClient, redis: Redis) -> None:
    asked = act(web, "/queue/jobs/move", name="mail", scope="all", to="other")
    assert "Move 60 jobs of the queue mail?" in asked.text
    assert "There is no queue of this name yet." in asked.text
    assert "No process serves it" in asked.text
    confirm(web, "/queue/jobs/move", name="mail", scope="all", to="other")
    assert left(redis, "other") == list(range(60))


def test_a_move_to_a_queue_that_is_served_warns_of_nothing(web: TestClient, redis: Redis) -> None:
    info = {
        "hostname": "web-1", "pid": 7, "tag": "shop", "queues": ["other"], "concurrency": 5,
        "started_at": time.time(), "labels": [], "identity": "i", "version": "1.0",
    }  # fmt: skip
    redis.sadd("processes", "i")
    record: Any = {
        "info": json.dumps(info), "concurrency": 5, "busy": 0, "beat": time.time(),
        "quiet": "false", "rss": 1, "rtt_us": 1,
    }  # fmt: skip
    redis.hset("i", mapping=record)
    fields = form(web.get("/queue?name=mail").text, "job-3")
    assert act(web, "/queue/jobs/move", **fields, to="other").status_code == 303
    assert left(redis, "other") == [3]


def test_the_page_of_a_queued_job_has_the_same_actions(web: TestClient, redis: Redis) -> None:
    link = re.search(r'href="(/job[?][^"]*jid=job-55)"', web.get("/queue?name=mail&page=2").text)
    assert link is not None
    html = web.get(unescape(link[1])).text
    key = re.search(r'name="key" value="([^"]+)"', html)
    assert key is not None
    act(web, "/queue/jobs/delete", name="mail", at="54", key=key[1])
    assert left(redis) == [n for n in range(60) if n != 55]


def test_suspects_are_listed_first_and_acted_on_with_the_others(
    web: TestClient, redis: Redis
) -> None:
    for number in range(2):
        job = {"class": "Mail", "args": [100 + number], "jid": f"alone-{number}", "queue": "mail"}
        redis.lpush("{queue:mail}:suspects", json.dumps({**job, "forkq": {"suspect": True}}))
    redis.sadd("forkq:suspects", "mail")
    html = web.get("/queue?name=mail").text
    assert "62 jobs" in html
    assert "2 of its 62 jobs are suspects: each runs alone" in html
    assert html.count('<span class="tag warn">suspect</span>') == 2
    assert html.index("alone-0") < html.index("alone-1") < html.index("job-0")
    link = re.search(r'href="(/job[?][^"]*jid=alone-1)"', html)
    assert link is not None
    assert '<span class="tag warn">suspect</span>' in web.get(unescape(link[1])).text
    fields = form(html, "alone-1", "job-3", "alone-0")
    answer = confirm(web, "/queue/jobs/delete", **fields)
    assert "Deleted 3 jobs of the queue mail." in web.get(answer.headers["location"]).text
    assert not redis.exists("{queue:mail}:suspects", "forkq:suspects")
    assert left(redis) == [n for n in range(60) if n != 3]


def test_a_queue_whose_jobs_are_all_suspects_says_so(web: TestClient, redis: Redis) -> None:
    redis.rename("queue:mail", "{queue:mail}:suspects")
    redis.sadd("forkq:suspects", "mail")
    html = web.get("/queue?name=mail").text
    assert '<li class="warn"><span class="tag">alone</span> 60 suspects wait to run alone' in html
    assert "60 jobs waiting" in web.get("/queues").text


def test_nothing_selected_is_refused(web: TestClient, redis: Redis) -> None:
    assert act(web, "/queue/jobs/delete", name="mail", at="x").status_code == 400
    assert len(left(redis)) == 60


def test_what_has_left_is_not_asked_about(web: TestClient, redis: Redis) -> None:
    done = act(web, "/queue/jobs/delete", name="mail", key="gone")
    assert done.status_code == 303
    assert "Nothing was done: none of these jobs is there" in web.get("/queues").text
    assert len(left(redis)) == 60


def test_a_job_that_has_left_is_not_searched_among_a_million(
    web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"queue": "mail", "key": "gone", "at": "3", "jid": "job-gone"}
    assert "nowhere" in web.get("/job", params=gone).text
    monkeypatch.setattr(job_page, "_FEW", 10)
    answer = web.get("/job", params=gone)
    assert answer.status_code == 404
    assert "has left the queue mail" in answer.text
    assert web.get("/job", params={"queue": "mail", "jid": "job-7"}).status_code == 200
