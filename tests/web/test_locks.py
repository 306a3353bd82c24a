"""The page of locks, in the web UI and in `forkq top`: the same rows, question and outcome."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq import registry
from forkq.api import DeadSet, LockFilter, unique_locks
from forkq.web import WebSettings
from tests.top.screen import Screen, drive
from tests.web.shared import HOSTILE, act, client_of, confirm


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


def index(name: str = "Index", **options: Any) -> Any:
    def perform(doc: int) -> None: ...

    registry._jobs.pop(name, None)
    return forkq.job(name=name, **{"unique_for": 36_000, "expires_in": 18_000, **options})(perform)


def holders() -> set[str]:
    return {lock.jid for lock in unique_locks()}


def test_a_lock_is_freed_after_a_question_with_a_line_of_the_audit_log(
    web: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert "No lock is held." in web.get("/locks").text
    jid, other = index().perform_async(1), index("Mail").perform_async(1)
    html = web.get("/locks").text
    assert html.count('action="/locks/free"') == 2
    assert f'href="/job?jid={jid}"' in html
    assert html.index(">Index<") < html.index(">Mail<")
    assert f'href="/job?jid={other}"' not in web.get(f"/locks?q={jid}").text
    [lock] = unique_locks(LockFilter(jid=jid))
    fields = {"digest": lock.digest, "jid": jid}
    asked = act(web, "/locks/free", **fields).text
    assert f"Free the lock of Index {jid}?" in asked
    assert "Its job stays where it is" in asked
    assert holders() == {jid, other}
    with caplog.at_level(logging.INFO, logger="forkq.web.audit"):
        answer = confirm(web, "/locks/free", **fields)
    assert answer.headers["location"] == "/locks"
    assert "Freed 1 lock." in web.get("/locks").text
    assert holders() == {other}
    [told] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert isinstance(told, dict)
    assert (told["action"], told["jids"], told["count"]) == ("free locks", [jid], 1)
    confirm(web, "/locks/free", **fields)
    assert "none of these locks is held any more" in web.get("/locks").text
    assert holders() == {other}


def test_a_page_that_is_old_frees_no_lock_of_another_job(web: TestClient, redis: Redis) -> None:
    jid = index().perform_async(1)
    [lock] = unique_locks()
    redis.hset(f"forkq:unique:{lock.digest}", "jid", "other")
    confirm(web, "/locks/free", digest=lock.digest, jid=jid)
    assert holders() == {"other"}
    confirm(web, "/locks/free", digest="", jid="")
    assert holders() == {"other"}


def test_who_may_not_free_is_not_offered_it(web: TestClient) -> None:
    index().perform_async(1)
    with client_of(WebSettings(authorize=lambda user, action: action != "free locks")) as other:
        assert "/locks/free" not in other.get("/locks").text
        [lock] = unique_locks()
        answer = act(other, "/locks/free", digest=lock.digest, jid=lock.jid, confirmed="yes")
    assert (answer.status_code, len(unique_locks())) == (403, 1)


def test_names_of_redis_are_only_text(web: TestClient, redis: Redis) -> None:
    redis.hset(f"forkq:unique:{HOSTILE}", mapping={"jid": HOSTILE, "class": HOSTILE, "at": "1"})
    html = web.get("/locks").text
    assert "<script>document" not in html
    assert "<img" not in html


def test_the_page_of_a_job_shows_its_lock_and_its_expiry(web: TestClient, redis: Redis) -> None:
    jid = index().perform_async(1)
    html = web.get(f"/job?jid={jid}").text
    assert f'Its <a href="/locks?q={jid}">lock</a>: this job has it, until in 10 h' in html
    assert "Expires " in html
    plain = index(unique_for=0, expires_in=0).perform_async(1)
    assert ">lock</a>" not in web.get(f"/job?jid={plain}").text


def test_a_debounced_job_says_until_when_it_waits(web: TestClient, redis: Redis) -> None:
    options: dict[str, Any] = {
        "unique_for": 0,
        "expires_in": 0,
        "debounce": 36_000,
        "debounce_max": 72_000,
    }
    jid = index(**options).perform_async(1)
    html = web.get("/locks").text
    assert ">debounced<" in html
    assert "unconfirmed" not in html
    text = web.get(f"/job?jid={jid}").text
    assert re.search(
        r"the next push takes it; first push .*, due in 10 h, at the latest in 20 h", text
    )


def test_a_dead_job_that_has_lost_its_lock_is_told(web: TestClient, redis: Redis) -> None:
    jid = index().perform_async(1)
    raw: Any = redis.lpop("queue:default")
    [lock] = unique_locks()
    assert lock.free()
    index().perform_async(1)
    redis.zadd("dead", {raw: 1.0})
    [entry] = DeadSet()
    assert entry.jid == jid
    act(web, "/dead/retry", key=entry.key)
    html = web.get("/dead").text
    assert "Retried 1 job of the dead set. 1 without its lock, which another job has." in html


def test_top_shows_and_frees_them(web: TestClient, redis: Redis) -> None:
    first, second = index().perform_async(1), index("Mail").perform_async(1)

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "u")
        await screen.shows("Index", "Mail", "HELD", "UNTIL", "in 10 h")
        await screen.press("enter")
        await screen.shows(first, "its lock: this job has it", "expires in 5 h")
        await screen.press("escape")
        await screen.shows("Mail")
        await screen.press("F")
        await screen.asked(f"Free the lock of Index {first}?")
        await screen.answer("y")
        await screen.shows("Freed 1 lock.")
        assert holders() == {second}
        await screen.until(lambda: not screen.app.view.has_jumped)
        await screen.press("a", "F")
        await screen.asked(f"Free the lock of Mail {second}?")
        await screen.answer("y")
        await screen.shows("No lock is held.")

    drive(scenario)
    assert json.loads(redis.lrange("queue:default", 0, 0)[0])["jid"] == second
