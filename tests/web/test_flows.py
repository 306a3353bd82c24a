"""The pages of flows: the picture and the table of one say which step is where, and why it
waits."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq import api
from forkq.web import WebSettings
from forkq.wire.keys import Keys
from tests.support.waiting import wait_until
from tests.top.screen import Screen, drive
from tests.web.browser import Browser
from tests.web.flow_data import add_flow, add_wide_flow, end_steps, job_of
from tests.web.shared import HOSTILE, act, client_of, confirm

KEYS = Keys()
BOX = re.compile(r'<a href="([^"]+)" class="step ([^"]+)"[^>]*><title>([^<]*)</title>')
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)


def boxes(page: str) -> dict[str, str]:
    """The class of style of each box of the picture, by what its tooltip says."""
    return {html.unescape(said): kind for _, kind, said in BOX.findall(page)}


def rows(page: str) -> list[str]:
    """The rows of the table as texts."""
    plain = (re.sub(r"<[^>]+>", " ", row) for row in ROW.findall(page)[1:])
    return [" ".join(html.unescape(row).split()) for row in plain]


def test_the_list_says_how_far_each_has_come(web: TestClient, redis: Redis) -> None:
    assert "There is no flow." in web.get("/flows").text
    add_flow(redis, "shopflow")
    with forkq.Batch("a batch"):
        pass
    page = web.get("/flows").text
    assert 'href="/flow?bid=shopflow"' in page
    assert "6 of 12 steps ended" in page
    assert "a batch" not in page
    assert "shopflow" not in web.get("/flows?q=nothing").text


def test_the_page_of_one_says_where_each_step_is_and_why_it_waits(
    web: TestClient, redis: Redis
) -> None:
    flow = add_flow(redis, "shopflow")
    page = web.get("/flow?bid=shopflow").text
    assert boxes(page)["picture-3: dead"] == "dead"
    assert boxes(page)["picture-4: retried"] == "retried"
    assert boxes(page)["mail: held up"] == "waits"
    assert len(boxes(page)) == page.count('class="edge') - 5 == 12  # 17 lines
    assert page.count('class="edge run"') == 2
    assert "3 steps wait behind picture-3, which is dead" in page
    assert "1 step died: <code>forkq flows retry shopflow</code> tries those again" in page
    [mail] = [row for row in rows(page) if row.startswith("mail ")]
    assert mail.startswith(
        "mail waits waits for pack held up by picture-3, which is dead stock, pack "
    )
    [dead] = end_jids(redis, "dead")
    assert f'href="/job?jid={dead}"' in page
    chosen = web.get("/flow?bid=shopflow&state=dead").text
    assert [row.split()[0] for row in rows(chosen)] == ["picture-3"]
    assert flow.name in page


def test_a_step_that_is_chosen_says_what_it_has_returned(web: TestClient, redis: Redis) -> None:
    add_flow(redis, "shopflow")
    known = {"outcome": "done", "at": 5.5, "value": {"password": "s3"}}
    ends: Any = {f"end:{at}": json.dumps({**known, "class": f"Job{at}"}) for at in (0, 1)}
    redis.hset(KEYS.flow_steps("shopflow"), mapping=ends)
    redis.hset(KEYS.parameters, "Job1", json.dumps({"names": ["token"], "secret": False}))
    page = web.get("/flow?bid=shopflow&step=download").text
    assert "It is done, and has returned {&#34;password&#34;:&#34;***&#34;}." in page
    assert [row.split()[0] for row in rows(page)] == ["download"]
    assert "has returned &#34;***&#34;" in web.get("/flow?bid=shopflow&step=picture-0").text
    assert "It is dead: " in web.get("/flow?bid=shopflow&step=picture-3").text
    assert "It is " not in web.get("/flow?bid=shopflow&step=mail").text


def test_the_page_of_a_job_names_its_step_and_flow(web: TestClient, redis: Redis) -> None:
    add_flow(redis, "shopflow")
    [dead] = end_jids(redis, "dead")
    page = web.get(f"/job?jid={dead}").text
    assert 'Step <a href="/flow?bid=shopflow&amp;step=picture-3">picture-3</a> of the flow' in page


def end_jids(redis: Redis, name: str) -> list[str]:
    found: list[bytes] = redis.zrange(name, 0, -1)  # type: ignore[assignment]
    return [json.loads(raw)["jid"] for raw in found]


def test_steps_that_are_alike_stand_in_one_box(web: TestClient, redis: Redis) -> None:
    add_wide_flow(redis, "wide", "wide")
    page = web.get("/flow?bid=wide").text
    [group] = [said for said, kind in boxes(page).items() if "many" in kind]
    assert group == f"{'s' * 95} …: 5 dead, 95 started"
    assert len(boxes(page)) == 3
    assert "1 to 50 of 102" in page
    [link] = [html.unescape(url) for url, kind, _ in BOX.findall(page) if "many" in kind]
    within = web.get(link.partition("#")[0]).text
    assert "1 to 50 of 100" in within
    assert "chosen" in boxes(within)[group]
    last = web.get(f"{link.partition('#')[0]}&page=1").text
    assert len(rows(last)) == 50


def test_dead_steps_are_retried_and_a_flow_is_cancelled(
    web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add_flow(redis, "shopflow")
    assert "Retry 1 dead step of the flow" in act(web, "/flow/retry", bid="shopflow").text
    answer = confirm(web, "/flow/retry", bid="shopflow")
    assert answer.headers["location"] == "/flow?bid=shopflow"
    assert (redis.zcard("dead"), api.Flow("shopflow").report().dead) == (0, 0)
    assert "and 6 steps that did not end?" not in act(web, "/flow/cancel", bid="shopflow").text
    with caplog.at_level(logging.INFO, logger="forkq.web.audit"):
        confirm(web, "/flow/cancel", bid="shopflow")
    [told] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert isinstance(told, dict)
    assert (told["action"], told["count"]) == ("cancel flow", 7)
    page = web.get("/flow?bid=shopflow").text
    assert boxes(page)["mail: cancelled"] == "cancelled"
    assert "/flow/cancel" not in page


def test_who_may_not_act_is_not_offered_it(web: TestClient, redis: Redis) -> None:
    add_flow(redis, "shopflow")
    with client_of(WebSettings(authorize=lambda user, action: action != "cancel flow")) as other:
        assert "/flow/cancel" not in other.get("/flow?bid=shopflow").text
        answer = act(other, "/flow/cancel", bid="shopflow", confirmed="yes")
    assert (answer.status_code, api.Flow("shopflow").report().state) == (403, "waiting")


def test_a_batch_has_its_own_page_and_what_is_gone_none(web: TestClient, redis: Redis) -> None:
    with forkq.Batch("a batch") as batch:
        pass
    flow = add_flow(redis, "shopflow")
    assert web.get(f"/flow?bid={batch.bid}").headers["location"] == f"/batch?bid={batch.bid}"
    assert web.get(f"/batch?bid={flow.bid}").headers["location"] == f"/flow?bid={flow.bid}"
    gone = web.get("/flow?bid=nothing")
    assert (gone.status_code, "There is no such flow." in gone.text) == (404, True)
    redis.set(KEYS.flow_steps(flow.bid), "of another type")
    assert "Nothing is known of its steps." in web.get(f"/flow?bid={flow.bid}").text
    redis.delete(KEYS.flow_steps(flow.bid))
    assert "Nothing is known of its steps." in web.get(f"/flow?bid={flow.bid}").text


def test_names_of_redis_are_only_text(web: TestClient, redis: Redis) -> None:
    job, name = job_of("Job"), HOSTILE[:90]
    flow = forkq.Flow(HOSTILE)
    flow.add(name, job.s(1))
    flow.add("next", job.s(2), after=[name])  # so the sentence about waits has the name
    flow.push()
    end_steps(redis, flow, "dead", name)
    raw = b'{"outcome":"<script>document","class":"<img src=x>","at":"never"}'
    redis.hset(KEYS.flow_steps(flow.bid), mapping={"end:0": raw, "of:odd": "<img>"})
    redis.hset(KEYS.batch(flow.bid), "dead:0", HOSTILE)
    for path in ("/flows", f"/flow?bid={flow.bid}", f"/flow?bid={flow.bid}&step=next"):
        page = web.get(path).text
        assert "<script>document" not in page
        assert "<img" not in page


@pytest.mark.xdist_group("browser")
def test_the_picture_leads_to_the_steps_and_is_live(browser: Browser, redis: Redis) -> None:
    flow = add_flow(redis, "shopflow")
    browser.open("/flow?bid=shopflow")
    strokes = (
        "return [...document.querySelectorAll('.graph .dead rect, .graph .done rect')]"
        ".map((rect) => getComputedStyle(rect).stroke)"
    )
    assert len(set(browser.run(strokes))) == 2
    end_steps(redis, flow, "done", "picture-5")
    shown = "return document.querySelector('.graph').textContent.includes('picture-5: done')"
    wait_until(lambda: browser.run(shown), what="the new state in the picture")
    browser.find(".graph .dead").click()
    browser.wait_text("Step picture-3", "#steps")
    assert len(browser.all("tbody tr")) == 1


def test_top_shows_the_steps_of_a_flow_and_retries_them(web: TestClient, redis: Redis) -> None:
    add_flow(redis, "shopflow")
    [dead] = end_jids(redis, "dead")

    async def scenario(screen: Screen) -> None:
        await screen.press("g", "w")
        await screen.shows("Report of April", "STEPS")
        await screen.press("enter")
        await screen.shows("12 steps, 6 not ended, 5 done, 1 dead", "3 steps wait behind picture-3")
        await screen.shows("held up by picture-3, which is dead")
        await screen.press("enter")  # on the dead step, which comes first
        await screen.shows(dead, "step picture-3 of shopflow")
        await screen.press("escape")
        await screen.shows("12 steps")
        await screen.press("r")
        await screen.asked("Retry 1 dead step of the flow shopflow now?")
        await screen.answer("y")
        await screen.shows("1 job retried.", "7 not ended")

    drive(scenario, size=(120, 30))
