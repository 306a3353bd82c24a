"""The search of the web UI: everywhere, bounded, and it goes on."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

from forkq.screens import job_lists, search


def job(number: int, queue: str = "mail", **more: Any) -> str:
    at = time.time() - 60
    given = {"class": "Mail", "args": [f"to-{number}"], "jid": f"j{number:023}", "queue": queue}
    return json.dumps({**given, "created_at": at, "enqueued_at": at, **more})


def push(redis: Redis, *jobs: str, queue: str = "mail") -> None:
    redis.sadd("queues", queue)
    redis.lpush(f"queue:{queue}", *jobs)


@pytest.mark.parametrize("wanted", ["j00000000000000000000007", "Report", "NEEDLE", "OutOfPaper"])
def test_it_finds_by_id_class_argument_and_error(
    web: TestClient, redis: Redis, wanted: str
) -> None:
    more: dict[str, Any] = {"class": "Report", "args": ["a needle"], "error_class": "OutOfPaper"}
    here = job(7, **more)
    push(redis, job(1), here, job(2))
    redis.zadd("retry", {here: time.time() + 60, job(3): time.time() + 60})
    redis.zadd("schedule", {here: time.time() + 60})
    redis.zadd("dead", {here: 5.5})
    html = web.get("/search", params={"q": wanted}).text
    for place in search.PLACES:
        assert html.count("j00000000000000000000007: copy") == 4, place
    assert "all 3 searched" in html
    links = [unescape(link) for link in re.findall(r'href="(/job\?[^"]+)"', html)]
    assert len(links) == 4
    for link in links:
        assert "a needle" in web.get(link).text


def test_it_says_how_far_it_looked_and_goes_on(
    web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("a", "b"):
        push(redis, *(job(number, queue) for number in range(150)), queue=queue)
    push(redis, job(999, "b"), queue="b")
    redis.lpush("queue:b", *(job(number, "b") for number in range(200, 300)))
    for place in ("dead", "retry"):
        redis.zadd(place, {job(number): float(number) for number in range(300)})
        redis.zadd(place, {job(999): 150.5})
    monkeypatch.setattr(job_lists, "_BYTES", 10_000)
    for place, title in (("queued", "Queues"), ("dead", "Dead"), ("retrying", "Retries")):
        url = "/search?q=to-999"
        searched = [0]
        for _ in range(60):
            html = web.get(url).text
            part = html.partition(f'id="in-{place}"')[2].partition("</section>")[0]
            if "[&#34;to-999" in part:
                break
            looked = re.search(r"([\d,]+) of (\d+) searched", part)
            assert looked is not None, part
            searched.append(int(looked[1]))
            assert searched[-1] > searched[-2]
            link = re.search(rf'href="(/search[^"]+)">Search on in {title}', part)
            assert link is not None
            url = unescape(link[1])
        else:
            pytest.fail(f"not found in {place}")
        assert len(searched) > 1


def test_it_ends_although_jobs_are_many(web: TestClient, redis: Redis) -> None:
    push(redis, *(job(number) for number in range(60)))
    html = web.get("/search?q=mail").text
    assert "20 of 60 searched" in html
    link = re.search(r'href="(/search[^"]+)">Search on in Queues', html)
    assert link is not None
    html = web.get(unescape(link[1])).text
    assert html.count("<tr>") == 1 + 40
    assert "all 60 searched" in html


def test_a_made_up_place_is_no_error(web: TestClient, redis: Redis) -> None:
    push(redis, job(1))
    redis.zadd("dead", {job(1): 5})
    for place in ("queued", "dead", "scheduled", "retrying", "nowhere"):
        for after in ("", "x", "-1/mail", "9" * 40, "99999/mail", "٣/mail", "0/\x00"):
            query = {"q": "x", "in": place, "after": after, "searched": after}
            assert web.get("/search", params=query).status_code == 200, query
