"""The figures of job classes: runs, failures, run times, deploys."""

from __future__ import annotations

import pytest
from redis import Redis
from starlette.testclient import TestClient

from tests.web.scenario import shop
from tests.web.shared import HOSTILE


def test_an_empty_page_says_what_would_stand_there(web: TestClient) -> None:
    assert "No job has ended in the last hour." in web.get("/job-metrics").text


def test_each_class_has_its_figures(web: TestClient, redis: Redis) -> None:
    shop(redis)
    text = web.get("/job-metrics").text
    for job in ("Thumbnail", "SendMail", "Invoice", "SyncStock"):
        assert f'href="/job-metrics?job={job}&amp;minutes=60"' in text
    assert "deployed 4f21aae Thumbnails" in text
    assert 'class="failed"' in text


@pytest.mark.parametrize("minutes", [60, 480, 4320])
def test_a_class_has_its_run_times(web: TestClient, redis: Redis, minutes: int) -> None:
    shop(redis)
    text = web.get(f"/job-metrics?job=Thumbnail&minutes={minutes}").text
    assert 'class="line p95"' in text
    assert "chart-histogram" in text
    assert 'class="cell"' in text
    assert text.count('class="deploy"') == 3  # in each plot over time


def test_a_class_that_did_not_run_has_a_page(web: TestClient) -> None:
    assert "No run ended without error." in web.get("/job-metrics?job=Gone").text


def test_names_are_text(web: TestClient, redis: Redis) -> None:
    shop(redis)
    for key in redis.scan_iter("j|*"):
        redis.hset(key, f"{HOSTILE}|p", 7)
    for path in ("/job-metrics", "/job-metrics?minutes=4320"):
        assert "<script>document" not in web.get(path).text
    assert "<img src=x" not in web.get("/job-metrics", params={"job": HOSTILE}).text
