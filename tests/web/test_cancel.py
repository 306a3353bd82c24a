"""Cancelling jobs by the web UI: the same question on each page, and a line of the audit log."""

from __future__ import annotations

import json
import logging
import re
import time
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

from forkq import api
from forkq.api import job_holder
from forkq.web import WebSettings
from tests.top import data
from tests.web.browser import Browser
from tests.web.shared import act, client_of, confirm

CANCELLED = "forkq:cancelled"


def noted(redis: Redis) -> list[str]:
    found: Any = redis.hkeys(CANCELLED)
    return sorted(field.decode() for field in found)


def keys(html: str) -> dict[str, str]:
    """The keys of the jobs of a list, by jid."""
    rows = re.findall(r'name="key" value="([^"]+)" aria-label="Select Mail ([^"]+)"', html)
    return {jid: key for key, jid in rows}


def schedule(redis: Redis, *payloads: bytes) -> None:
    redis.zadd("schedule", {payload: time.time() + 600 for payload in payloads})


@pytest.mark.parametrize(
    ("path", "put", "words"),
    [("/retries", data.retrying, "the retries"), ("/scheduled", schedule, "the schedule")],
)
def test_selected_jobs_are_cancelled_after_a_question(
    web: TestClient, redis: Redis, path: str, put: Any, words: str
) -> None:
    put(redis, data.failed("a"), data.failed("b"), data.failed("c"))
    found = keys(web.get(path).text)
    fields: Any = {"key": [found["a"], found["c"]]}
    asked = act(web, f"{path}/cancel", **fields).text
    assert f"Cancel 2 jobs of {words}?" in asked
    assert "No tree runs, so none is removed until one does" in asked
    assert "This cannot be undone." in asked
    assert ">No, go back<" in asked
    assert noted(redis) == []
    answer = confirm(web, f"{path}/cancel", **fields)
    html = web.get(answer.headers["location"]).text
    assert f"Cancelled 2 jobs of {words}." in html
    assert noted(redis) == ["jid:a", "jid:c"]
    links = re.findall(r'href="(/job[?][^"]*)"', html)
    pages = [web.get(link.replace("&amp;", "&")).text for link in links]
    assert sorted("being cancelled" in page for page in pages) == [False, True, True]


def test_all_jobs_of_a_filter_are_cancelled_and_a_line_of_the_audit_log_says_so(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forkq.web.audit")
    redis.set("forkq:leader", "web-1:312:f00")
    data.retrying(redis, data.failed("a"), data.failed("b", "Invoice"), data.failed("c"))
    asked = act(web, "/retries/cancel", scope="all", job="Mail").text
    assert "Cancel 2 jobs of the retries?" in asked
    assert "The leader removes them within seconds; one that runs by then gets" in asked
    confirm(web, "/retries/cancel", scope="all", job="Mail")
    assert noted(redis) == ["jid:a", "jid:c"]
    [line] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert line == {
        "event": "web action", "user": "(no authentication)", "action": "cancel jobs",
        "result": "Cancelled 2 jobs of the retries.", "count": 2, "jids": ["a", "c"],
    }  # fmt: skip


def test_more_than_can_be_noted_are_refused_and_none_is_cancelled(
    web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_holder, "MOST", 2)
    data.retrying(redis, *(data.failed(f"j{number}") for number in range(3)))
    refused = confirm(web, "/retries/cancel", scope="all")
    assert refused.status_code == 400
    assert "cancel their class" in refused.text
    assert noted(redis) == []


def test_queued_jobs_are_cancelled_by_selection_and_all_together(
    web: TestClient, redis: Redis
) -> None:
    data.queued(redis, "mail", *(data.job(f"m{number}", queue="mail") for number in range(3)))
    found = keys(web.get("/queue?name=mail").text)
    fields: Any = {"name": "mail", "at": "3", "key": found["m1"]}
    assert "Cancel 1 job of the queue mail?" in act(web, "/queue/jobs/cancel", **fields).text
    confirm(web, "/queue/jobs/cancel", **fields)
    assert noted(redis) == ["jid:m1"]
    confirm(web, "/queue/jobs/cancel", name="mail", scope="all")
    assert noted(redis) == ["jid:m0", "jid:m1", "jid:m2"]
    assert redis.llen("queue:mail") == 3


def test_a_selected_job_that_runs_by_then_is_cancelled_all_the_same(
    web: TestClient, redis: Redis
) -> None:
    data.queued(redis, "default", data.job("m1"))
    found = keys(web.get("/queue?name=default").text)
    fields: Any = {"name": "default", "at": "1", "key": found["m1"]}
    plans = act(web, "/queue/jobs/cancel", **fields)
    assert plans.status_code == 200
    payload: Any = redis.rpop("queue:default")
    data.process(redis, payload)
    assert "Nothing was done" not in act(web, "/busy/cancel", jid="m1", confirmed="yes").text
    assert noted(redis) == ["jid:m1"]


def test_a_running_job_is_cancelled_where_it_is_seen(web: TestClient, redis: Redis) -> None:
    data.process(redis, data.job("runs"))
    redis.sadd("queues", "default")
    for page in ("/busy", "/queue?name=default", "/job?jid=runs"):
        html = web.get(page).text
        assert 'action="/busy/cancel"' in html, page
        assert 'name="jid" value="runs"' in html, page
    asked = act(web, "/busy/cancel", jid="runs").text
    assert "Cancel Mail, which runs for 3" in asked
    assert "It gets forkq.Cancelled, and ends for good: no retry." in asked
    answer = confirm(web, "/busy/cancel", jid="runs")
    assert "Cancelled Mail: it is told within a second." in web.get(answer.headers["location"]).text
    assert noted(redis) == ["jid:runs"]
    assert "being cancelled" in web.get("/job?jid=runs").text
    gone = act(web, "/busy/cancel", jid="gone")
    assert gone.status_code == 400
    assert "The job has ended meanwhile" in gone.text


def test_a_job_that_sidekiq_runs_is_not_promised_to_end(web: TestClient, redis: Redis) -> None:
    data.process(redis, data.job("runs"))
    info = json.loads(redis.hget(data.WHO, "info") or b"")
    redis.hset(data.WHO, "info", json.dumps({**info, "master": 0}))
    assert "does not hear of it" in act(web, "/busy/cancel", jid="runs").text
    assert noted(redis) == []


def test_a_job_of_a_cancelled_class_says_that_it_is_being_cancelled(
    web: TestClient, redis: Redis
) -> None:
    data.retrying(redis, data.failed("old"), data.failed("other", "Invoice"))
    api.cancel_class("Mail")
    data.retrying(redis, data.failed("new", created_at=int(time.time() * 1000) + 60_000))
    told = {
        jid: "being cancelled" in web.get(f"/job?jid={jid}").text for jid in ("old", "other", "new")
    }
    assert told == {"old": True, "other": False, "new": False}


def test_dead_jobs_are_not_cancelled(web: TestClient, redis: Redis) -> None:
    data.dead(redis, data.failed("d"))
    assert "/cancel" not in web.get("/dead").text
    assert act(web, "/dead/cancel", scope="all").status_code == 404


def test_who_may_not_cancel_is_offered_no_button_and_refused(
    api_client: None, redis: Redis
) -> None:
    data.retrying(redis, data.failed("a"))
    data.process(redis, data.job("runs"))
    web = client_of(WebSettings(authorize=lambda user, action: action != "cancel jobs"))
    for page in ("/retries", "/busy", "/job?jid=runs"):
        assert "/cancel" not in web.get(page).text, page
    assert act(web, "/retries/cancel", scope="all").status_code == 403
    assert act(web, "/busy/cancel", jid="runs").status_code == 403
    assert noted(redis) == []


# In a real browser


@pytest.mark.xdist_group("browser")
def test_the_keyboard_cancels_the_selected_jobs(browser: Browser, redis: Redis) -> None:
    data.retrying(redis, data.failed("a"), data.failed("b"))
    browser.open("/retries")
    browser.press("j", "x", "c")
    browser.wait_text("Cancel 1 job of the retries?", "h1")
    assert noted(redis) == []
    browser.wait_focus(".confirm button")
    browser.press("ENTER")
    browser.wait_text("Cancelled 1 job of the retries.", ".flash")
    assert noted(redis) == ["jid:a"]
    browser.find("tbody a").click()
    browser.wait_text("being cancelled", "h1")


@pytest.mark.xdist_group("browser")
def test_a_running_job_is_cancelled_by_a_click_and_by_its_key(
    browser: Browser, redis: Redis
) -> None:
    data.process(redis, data.job("r1"), data.job("r2"))
    redis.sadd("queues", "default")
    browser.open("/busy")
    browser.find("form[action$='/busy/cancel'] button").click()
    browser.wait_text("Cancel Mail, which runs for", "h1")
    browser.find(".confirm a").click()  # no
    browser.wait_path("/busy")
    assert noted(redis) == []
    browser.open("/job?jid=r2")
    browser.press("c")
    browser.wait_text("It is the job r2.", ".confirm")
    browser.wait_focus(".confirm button")
    browser.press("ENTER")
    browser.wait_text("Cancelled Mail", ".flash")
    assert noted(redis) == ["jid:r2"]
