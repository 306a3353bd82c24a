"""Retries, scheduled and dead jobs: lists, filters, actions; and the page of one job."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

from forkq import api, default_client
from forkq.store.deploys import mark
from forkq.web import routing
from forkq.web.pages import failures as failures_page
from tests.support.waiting import wait_until
from tests.web.browser import Browser
from tests.web.shared import act, confirm

HOSTILE = "<script>alert(1)</script>"


def dead(redis: Redis, **more: Any) -> bytes:
    """A dead job."""
    return failed(redis, "dead", **more)


def failed(redis: Redis, where: str, **more: Any) -> bytes:
    at = time.time()
    job = {
        "class": "Mail", "args": [1], "queue": "default", "jid": "a" * 24, "created_at": at - 90.5,
        "error_class": "Timeout", "error_message": "too slow", "failed_at": at - 60.5,
        "retry_count": 3, **more,
    }  # fmt: skip
    raw = json.dumps(job).encode()
    redis.zadd(where, {raw: at + (60.5 if where != "dead" else -30.5)})
    return raw


def post(web: TestClient, path: str, data: dict[str, Any], page: str = "/dead") -> str:
    """Posts a form as the page would, confirms it, and returns the page after it."""
    token = re.search(r'name="csrf" value="([^"]+)"', web.get(page).text)
    assert token is not None
    form = {"csrf": token[1], **data}
    answer = web.post(path, data=form)
    if answer.status_code == 200:
        answer = web.post(path, data={**form, "confirmed": "yes"})
    assert answer.status_code == 303, answer.text
    return web.get(answer.headers["location"]).text


def key_in(page: str) -> str:
    found = re.search(r'name="key" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_the_failures_stand_beside_the_deploys(web: TestClient, redis: Redis) -> None:
    dead(redis)
    client = default_client.default()
    with client.connection() as connection:
        mark(connection, client.keys, "v2 <b>", time.time() - 12 * 3600)
        mark(connection, client.keys, "long ago", time.time() - 30 * 3600)
    html = web.get("/failures").text
    assert re.search(r'<line class="mark" x1="(59|60)', html)
    assert "deployed v2 &lt;b&gt;" in html
    assert "long ago" not in html


@pytest.mark.parametrize("path", ["/dead", "/retries", "/scheduled", "/failures"])
def test_an_empty_list_says_what_would_stand_there(web: TestClient, path: str) -> None:
    answer = web.get(path)
    assert answer.status_code == 200
    assert 'class="nothing"' in answer.text


def test_a_filter_finds_by_class_error_and_text(web: TestClient, redis: Redis) -> None:
    dead(redis, **{"class": "Mail", "jid": "b1"})
    dead(redis, **{"class": "Report", "jid": "b2", "error_class": "Oops", "args": ["needle"]})
    assert "Select Report b2" in web.get("/dead").text
    for query in ("job=Report", "error=Oops", "match=NEEDLE", "jid=b2"):
        text = web.get(f"/dead?{query}").text
        assert "Select Report b2" in text
        assert "Select Mail b1" not in text
    assert "No job found" in web.get("/dead?older=1h30m").text
    assert "No job found" in web.get("/dead?older=2026-11-20").text
    assert web.get("/dead?older=soon").status_code == 400


def test_pages_follow_each_other_without_a_gap(web: TestClient, redis: Redis) -> None:
    for number in range(120):
        redis.zadd("dead", {json.dumps({"class": "A", "args": [], "jid": f"n{number}"}): 5.5})
    seen, path = list[str](), "/dead"
    while path:
        text = web.get(path).text
        seen += re.findall(r"Select A (n\d+)", text)
        after = re.search(r'rel="next" href="([^"]+)"', text)
        path = after[1] if after else ""
    assert sorted(seen) == sorted(f"n{number}" for number in range(120))


def test_one_selected_job_is_retried(web: TestClient, redis: Redis) -> None:
    dead(redis, jid="one")
    dead(redis, jid="two")
    key = key_in(web.get("/dead?jid=one").text)
    assert "Retried 1 job" in post(web, "/dead/retry", {"key": key})
    [raw] = redis.lrange("queue:default", 0, -1)
    assert json.loads(raw)["jid"] == "one"
    assert redis.zcard("dead") == 1


def test_the_jobs_of_a_filter_are_deleted_and_put_back(web: TestClient, redis: Redis) -> None:
    for number in range(3):
        dead(redis, jid=f"t{number}")
    other = dead(redis, jid="o", error_class="Oops")
    answer = post(web, "/dead/delete", {"scope": "all", "error": "=Timeout"})
    assert "Deleted 3 jobs" in answer
    assert redis.zrange("dead", 0, -1) == [other]
    token = re.search(r'name="token" value="([^"]+)"', answer)
    assert token is not None
    assert "Put 3 jobs back" in post(web, "/undo", {"token": token[1], "back": "/dead"})
    assert redis.zcard("dead") == 4


def test_the_question_says_what_to_how_many(web: TestClient, redis: Redis) -> None:
    for number in range(3):
        dead(redis, jid=f"t{number}")
    token = re.search(r'name="csrf" value="([^"]+)"', web.get("/dead").text)
    assert token is not None
    asked = web.post("/dead/retry", data={"csrf": token[1], "scope": "all"})
    assert "Retry 3 jobs of the dead set?" in asked.text
    assert redis.zcard("dead") == 3
    assert web.post("/dead/retry", data={"csrf": token[1]}).status_code == 400


def test_retrying_jobs_are_killed_and_scheduled_ones_moved(web: TestClient, redis: Redis) -> None:
    failed(redis, "retry")
    key = key_in(web.get("/retries").text)
    assert "Killed 1 job" in post(web, "/retries/kill", {"key": key}, "/retries")
    assert redis.zcard("dead") == 1
    failed(redis, "schedule", error_class="")
    key = key_in(web.get("/scheduled").text)
    post(web, "/scheduled/move", {"key": key, "to": "mail"}, "/scheduled")
    raw: Any = redis.zrange("schedule", 0, -1)[0]
    assert json.loads(raw)["queue"] == "mail"


def test_a_kill_asks_before_dead_jobs_go_for_good(web: TestClient, redis: Redis) -> None:
    """Also for one job."""
    failed(redis, "retry")
    dead(redis, jid="other")
    redis.zadd("forkq:dead:bounds", {"1 180": time.time()})
    fields = {"key": key_in(web.get("/retries").text)}
    asked = act(web, "/retries/kill", **fields)
    assert "The dead set keeps 1 job: of 2, forkq deletes the oldest 1 for good" in asked.text
    assert redis.zcard("dead") == 1
    confirm(web, "/retries/kill", **fields)
    assert redis.zcard("dead") == 2


def test_an_action_that_takes_long_goes_on_and_says_so(
    web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, really = threading.Event(), api.DeadSet.retry_all
    monkeypatch.setattr(routing, "ACTION_PATIENCE", 1.0)
    monkeypatch.setattr(api.DeadSet, "retry_all", lambda *given: go_on.wait(60) and really(*given))
    caplog.set_level(logging.INFO, "forkq.web.audit")
    dead(redis)
    token = re.search(r'name="csrf" value="([^"]+)"', web.get("/dead").text)
    assert token is not None
    form = {"csrf": token[1], "scope": "all", "confirmed": "yes"}

    def goes_on() -> bool:
        """On a machine that stands still, the time may end before the action begins."""
        answer = web.post("/dead/retry", data=form)
        assert answer.status_code in {202, 503}
        return answer.status_code == 202 and "it goes on" in answer.text

    try:
        wait_until(goes_on, what="a page that says that the action goes on")
    finally:
        go_on.set()
    wait_until(lambda: "Retried 1 job" in caplog.text, what="the audit line")
    assert redis.llen("queue:default") == 1


def test_a_payload_that_is_no_job_is_found_and_has_its_page(web: TestClient, redis: Redis) -> None:
    redis.zadd("dead", {b"needle, no JSON": 1.5})
    link = re.search(r'href="(/job\?[^"]+)"', web.get("/search?q=needle").text)
    assert link is not None
    assert "no job that can run" in web.get(link[1].replace("&amp;", "&")).text


def test_a_count_of_a_part_of_the_failures_says_so(
    web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        redis.zadd("dead", {json.dumps({"class": "Mail", "args": [], "jid": f"{number}"}): number})
    assert "at least" not in web.get("/failures").text
    monkeypatch.setattr(failures_page, "_MOST_READ", 2)
    text = web.get("/failures").text
    assert ">at least 2</a>" in text
    assert "Of the latest 2; 3 in all." in text


def test_failures_are_grouped(web: TestClient, redis: Redis) -> None:
    failed(redis, "retry", jid="r")
    dead(redis, jid="d")
    dead(redis, jid="o", **{"class": "Report", "error_class": "Oops"})
    text = web.get("/failures").text
    assert text.count('<th scope="row">') == 2
    assert "job=%3DMail" in text


def test_a_group_is_named_exactly(web: TestClient, redis: Redis) -> None:
    """A blank at the end of a name makes it another name."""
    dead(redis, jid="other")
    dead(redis, jid="meant", error_class="Timeout ")
    form = {"scope": "all", "job": "=Mail", "error": "=Timeout "}
    assert "Deleted 1 job" in post(web, "/dead/delete", form)
    assert "Select Mail other" in web.get("/dead").text


def test_hostile_payloads_are_shown_escaped_and_cut(web: TestClient, redis: Redis) -> None:
    dead(redis, **{"class": HOSTILE, "error_message": HOSTILE, "args": [HOSTILE], "jid": HOSTILE})
    dead(redis, **{"class": "L" * 100_000, "error_class": "E" * 100_000, "jid": "long"})
    redis.zadd(
        "dead", {b"\xff not JSON <script>": 1.5, b"[1,2]": 2.5, b'{"class":"User","args":{}}': 3.5}
    )
    for path in ("/dead", "/failures"):
        text = web.get(path).text
        assert "<script>alert" not in text
        assert "not JSON <script>" not in text
        assert len(text) < 60_000
    for key in re.findall(r'name="key" value="([^"]+)"', web.get("/dead").text):
        answer = web.get(f"/job?set=dead&key={key}")
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert len(answer.text) < 300_000


def test_a_jobs_page_has_its_life_and_masks_its_secrets(web: TestClient, redis: Redis) -> None:
    dead(redis, args=[{"password": "hunter2", "to": "x"}], jid="c1")
    text = web.get("/job?jid=c1").text
    assert "hunter2" not in text
    assert "too slow" in text
    for event in ("pushed", "failed", "died"):
        assert f"<strong>{event}</strong>" in text
    assert web.get("/job?jid=nowhere").status_code == 404


@pytest.mark.parametrize(
    "payload",
    [
        b'{"jid": "c1", "args": [{"password": "hunter2"}]}',
        b'{"jid": "c1", "secret": true, "args": ["hunter2"]}',
        b'[{"password": "hunter2"}]',
        b'{"class": "Mail", "args": [{"password": "hunter2", "to": "\xff',
        b'{"class": "Mail", "args": [{"password": "hunter2',
        json.dumps({"class": "forkq.malformed", "args": ['{"token": "hunter2"}']}).encode(),
    ],
)
def test_a_payload_that_is_no_job_shows_no_secret(
    web: TestClient, redis: Redis, payload: bytes
) -> None:
    redis.zadd("dead", {payload: 1.5})
    text = web.get("/dead").text
    assert "hunter2" not in text
    assert "***" in text
    assert "hunter2" not in web.get(f"/job?set=dead&key={key_in(text)}").text


def test_a_search_tells_no_secret(web: TestClient, redis: Redis) -> None:
    """Else it could be guessed, a letter after the other."""
    jid = "c1" * 12
    dead(redis, args=[{"password": "hunter2", "to": "ann"}], jid=jid)
    for path in ("/search?q=", "/dead?match="):
        assert jid not in web.get(f"{path}hunt").text
        assert jid not in web.get(f"{path}%22password%22: %22h").text
        for shown in ("%22to%22: %22ann", "password"):
            assert jid in web.get(path + shown).text


def test_a_job_is_edited_and_retried_and_keeps_its_secret(web: TestClient, redis: Redis) -> None:
    dead(redis, args=[{"password": "hunter2", "to": "x"}], jid="c1")
    page = "/job?jid=c1"
    key = key_in(web.get(page).text)
    edited = '[{"password": "***", "to": "y"}]'
    post(web, "/job/edit", {"set": "dead", "key": key, "args": edited}, page)
    [raw] = redis.lrange("queue:default", 0, -1)
    assert json.loads(raw)["args"] == [{"password": "hunter2", "to": "y"}]


def test_a_masked_part_of_a_text_keeps_its_secret(web: TestClient, redis: Redis) -> None:
    real = ["postgres://u:hunter2@h", '{"pin": 1234}', "plain"]
    dead(redis, args=real, jid="c1")
    page = "/job?jid=c1"
    text = web.get(page).text
    assert "hunter2" not in text
    key = key_in(text)
    for moved in ('["plain", "postgres://u:***@h"]', '["postgres://u:***@other"]'):
        fields = {"set": "dead", "key": key, "args": moved}
        assert act(web, "/job/edit", **fields).status_code == 400
    edited = json.dumps(["postgres://u:***@h", '{"pin":"***"}', "other"])
    post(web, "/job/edit", {"set": "dead", "key": key, "args": edited}, page)
    [raw] = redis.lrange("queue:default", 0, -1)
    assert json.loads(raw)["args"] == [*real[:2], "other"]


@pytest.mark.xdist_group("browser")
def test_a_job_is_retried_by_keyboard_alone(browser: Browser, redis: Redis) -> None:
    dead(redis, jid="one")
    dead(redis, jid="two")
    browser.open("/")
    browser.press("g", "d")
    browser.wait_path("/dead")
    browser.press("j", "x", "j", "x", "r")
    browser.wait_text("Retry 2 jobs of the dead set?")
    browser.wait_focus(".confirm button")
    browser.press("ENTER")
    browser.wait_text("Retried 2 jobs")
    wait_until(lambda: redis.llen("queue:default") == 2, what="both jobs in their queue")


@pytest.mark.xdist_group("browser")
def test_enter_in_the_queues_field_moves(browser: Browser, redis: Redis) -> None:
    dead(redis, jid="one")
    browser.open("/dead")
    browser.find("tbody input[type=checkbox]").click()
    browser.find("input[name=to]").send_keys("mail\n")
    browser.wait_text("There is no queue of this name yet.")
    browser.find(".confirm button").click()
    browser.wait_text("Moved 1 job", ".flash")
    assert redis.llen("queue:mail") == 1
