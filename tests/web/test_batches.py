"""The pages of batches, in the web UI and in `forkq top`: the same rows, questions and outcomes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq import api, middleware, registry
from forkq.features.effects import packed
from forkq.features.marked import effects_in
from forkq.store.scripts import EFFECTS_ALONE
from forkq.web import WebSettings
from forkq.wire.keys import Keys
from tests.top.screen import Screen, drive
from tests.web.shared import HOSTILE, act, client_of, confirm

KEYS = Keys()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())


def load() -> Any:
    registry._jobs.pop("Load", None)
    return forkq.job(name="Load")(lambda number: None)


def end(redis: Redis, way: str, count: int = 1) -> list[str]:
    """The next jobs take this way. Returns their jids."""
    server, jids = api.server(), []
    for _ in range(count):
        raw: Any = redis.rpop("queue:default")
        if way == "dead":
            redis.zadd("dead", {raw: 1.0})
        names: list[Any] = []
        text = packed(effects_in(KEYS, raw, way), names, KEYS.totals("ends"))
        server.run(EFFECTS_ALONE, names, [text])
        jids.append(json.loads(raw)["jid"])
    return jids


def made(name: str, members: int = 3, **more: Any) -> api.Batch:
    with forkq.Batch(name, **more) as batch:
        load().perform_bulk([[number] for number in range(members)])
    return api.Batch(batch.bid)


def test_the_list_says_how_far_each_has_come(web: TestClient, redis: Redis) -> None:
    assert "There is no batch." in web.get("/batches").text
    batch, other = made("imports"), made("exports")
    end(redis, "done", 2)
    html = web.get("/batches").text
    assert f'href="/batch?bid={batch.bid}"' in html
    assert "2 of 3 members ended" in html
    assert html.index(">exports<") < html.index(">imports<")  # the latest change comes first
    assert "exports" not in web.get("/batches?q=imports").text
    assert f"bid={other.bid}" in web.get(f"/batches?q={other.bid}").text


def test_dead_members_are_retried_after_a_question_with_a_line_of_the_audit_log(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    batch = made("imports")
    jids = end(redis, "dead", 2)
    html = web.get(f"/batch?bid={batch.bid}").text
    assert all(f'href="/job?jid={jid}"' in html for jid in jids)
    assert "/batch/seal" not in html
    assert "Retry 2 dead members" in act(web, "/batch/retry", bid=batch.bid).text
    with caplog.at_level(logging.INFO, logger="forkq.web.audit"):
        answer = confirm(web, "/batch/retry", bid=batch.bid)
    assert answer.headers["location"] == f"/batch?bid={batch.bid}"
    assert "2 jobs retried." in web.get(f"/batch?bid={batch.bid}").text
    assert (redis.zcard("dead"), batch.report().dead) == (0, 0)
    [told] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert isinstance(told, dict)
    assert (told["action"], told["count"]) == ("retry jobs", 2)


def test_an_open_batch_is_sealed_and_cancelled(web: TestClient, redis: Redis) -> None:
    batch = made("imports")
    redis.hset(KEYS.batch(batch.bid), "state", "broken")
    html = web.get(f"/batch?bid={batch.bid}").text
    assert "its block has raised an error" in html
    confirm(web, "/batch/seal", bid=batch.bid)
    assert batch.report().state == "waiting"
    assert "3 members that did not end" in act(web, "/batch/cancel", bid=batch.bid).text
    confirm(web, "/batch/cancel", bid=batch.bid)
    assert batch.report().state == "cancelled"
    assert redis.hkeys(KEYS.cancelled) == [f"batch:{batch.bid}".encode()]


def test_a_batch_is_paused_and_goes_on(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    batch = made("imports")
    path = f"/batch?bid={batch.bid}"
    assert "/batch/resume" not in web.get(path).text
    with caplog.at_level(logging.INFO, logger="forkq.web.audit"):
        act(web, "/batch/pause", bid=batch.bid)
    html = web.get(path).text
    assert "its members wait" in html
    assert "/batch/pause" not in html
    assert "waiting, paused" in web.get("/batches").text
    assert batch.report().paused_at > 0
    raw: Any = redis.rpop("queue:default")
    job = json.loads(raw)
    job["forkq"]["paused"] = batch.bid
    redis.zadd("schedule", {json.dumps(job): 9e9})
    page = web.get(f"/job?jid={job['jid']}").text
    assert f'Put off, since <a href="/batch?bid={batch.bid}"' in page
    act(web, "/batch/resume", bid=batch.bid)
    assert "goes on" in web.get(path).text
    assert batch.report().paused_at == 0
    told = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert [one["action"] for one in told if isinstance(one, dict)] == ["pause batch"]


def test_batches_within_a_job_and_what_is_gone(web: TestClient, redis: Redis) -> None:
    told = forkq.job(name="Told")(lambda: None)
    with forkq.Batch("outer", on_finish=told.s()) as outer:
        inner = made("inner", 1)
    html = web.get(f"/batch?bid={outer.bid}").text
    assert f'href="/batch?bid={inner.bid}"' in html
    assert (
        f'a member of <a href="/batch?bid={outer.bid}"' in web.get(f"/batch?bid={inner.bid}").text
    )
    raw: Any = redis.lindex("queue:default", 0)
    page = web.get(f"/job?jid={json.loads(raw)['jid']}").text
    assert f'Member 0 of the batch <a href="/batch?bid={inner.bid}"' in page
    [jid] = end(redis, "done")
    due: Any = redis.zrange("schedule", 0, -1)
    page = web.get(f"/job?jid={json.loads(due[0])['jid']}").text
    assert f'on_finish of the batch <a href="/batch?bid={outer.bid}"' in page
    gone = web.get("/batch?bid=nothing")
    assert (gone.status_code, "There is no such batch." in gone.text) == (404, True)
    assert jid not in gone.text


def test_who_may_not_act_is_not_offered_it(web: TestClient, redis: Redis) -> None:
    batch = made("imports")
    with client_of(WebSettings(authorize=lambda user, action: action != "cancel batch")) as other:
        assert "/batch/cancel" not in other.get(f"/batch?bid={batch.bid}").text
        answer = act(other, "/batch/cancel", bid=batch.bid, confirmed="yes")
    assert (answer.status_code, batch.report().state) == (403, "waiting")


def test_names_of_redis_are_only_text(web: TestClient, redis: Redis) -> None:
    batch = made(HOSTILE)
    fields: dict[Any, Any] = {"dead:0": HOSTILE, "failing:1": HOSTILE, "dead": 1, "parent": HOSTILE}
    redis.hset(KEYS.batch(batch.bid), mapping=fields)
    for html in (web.get("/batches").text, web.get(f"/batch?bid={batch.bid}").text):
        assert "<script>document" not in html
        assert "<img" not in html


def test_top_shows_pauses_and_cancels_them(web: TestClient, redis: Redis) -> None:
    batch = made("imports")

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "t")
        await screen.shows("imports", "MEMBERS", "WAITING")
        await screen.press("p")
        await screen.shows("is paused: its members wait", "waiting, paused")
        await screen.press("p")
        await screen.shows("goes on")
        await screen.press("c")
        await screen.asked(f"Cancel the batch {batch.bid}, and 3 members that did not end?")
        await screen.answer("y")
        await screen.shows("is cancelled: its members end")

    drive(scenario)
    assert batch.report().state == "cancelled"


def test_top_opens_a_batch_and_what_is_in_it(web: TestClient, redis: Redis) -> None:
    with forkq.Batch("outer") as outer:
        load().perform_async(1)
        made("inner", 1)
    [jid] = end(redis, "dead")

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "t", "slash", *"outer", "enter")
        await screen.shows("outer", "MEMBERS")
        await screen.press("enter")
        await screen.shows("What keeps this batch?", "2 members, 1 not ended", jid, "within it")
        await screen.press("enter")
        await screen.shows("What has become of this job?", "Load", f"member 0 of {outer.bid}")
        await screen.press("escape", "j", "enter")
        await screen.shows("inner  waiting", "1 member, 1 not ended")
        await screen.press("p")
        await screen.shows("is paused: its members wait", "it was paused")
        await screen.press("escape", "escape")
        await screen.shows("What belongs together")

    drive(scenario)
