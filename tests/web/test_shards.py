"""More than one Redis: one web UI shows each shard, says which one, and outlives each of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import forkq
from forkq import api, middleware, registry
from forkq.web import WebSettings, create_app
from forkq.web.worker import THREADS
from tests.support.shards import NAMES, TwoShards, two_shards
from tests.support.waiting import wait_until
from tests.web.shared import act, client_of


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[TwoShards]:
    with two_shards(tmp_path) as found:
        yield found


def shown(answer: Any) -> dict[str, str]:
    """The choice of the shard: the link of each name, and "here" for the one that is shown."""
    chooser = re.search(r'aria-label="Shards">(.*?)</nav>', answer.text, re.DOTALL)
    links = re.findall(r'<a href="([^"]*)"([^>]*)>(\w+)</a>', chooser[1] if chooser else "")
    here = [name for _, more, name in links if "aria-current" in more]
    return {name: href for href, _, name in links} | ({"here": here[0]} if here else {})


def problems(answer: Any) -> str:
    text: str = answer.text
    return text.partition('id="problems"')[2].partition('id="lost"')[0]


def test_each_page_says_which_shard_it_shows_and_leads_to_the_others(
    shards: TwoShards,
) -> None:
    shards.push("mail")
    with client_of() as web:
        first, mail = web.get("/queues"), web.get("/shards/mail/queues")
    links = {"default": "/queues", "mail": "/shards/mail/queues"}
    assert shown(first) == {**links, "here": "default"}
    assert shown(mail) == {**links, "here": "mail"}
    assert "· mail · forkq</title>" in mail.text
    assert ["/queue?name=mail" in page.text for page in (first, mail)] == [False, True]
    assert '<a href="/shards/mail/queue?name=mail"' in mail.text
    assert "/shards/mail/static/forkq.css" in mail.text
    with client_of() as web:
        assert web.get("/shards/mail/static/forkq.css").status_code == 200
        assert web.get("/shards/nowhere/queues").status_code == 404
        jid = shards.push("mail")
        assert web.get(f"/shards/mail/job?queue=mail&jid={jid}").status_code == 200
        assert web.get(f"/job?queue=mail&jid={jid}").status_code == 404
        assert f'href="/shards/mail/search?q={jid}"' in web.get(f"/search?q={jid}").text


def test_an_action_acts_on_the_shard_of_its_page(
    shards: TwoShards, caplog: pytest.LogCaptureFixture
) -> None:
    """Both shards have a queue of that name."""
    for shard in NAMES:
        api.Queue("mail", api.server(shard)).resume()
    caplog.set_level("INFO", "forkq.web.audit")
    with client_of() as web:
        answer = act(web, "/shards/mail/queue/pause", name="mail")
        assert answer.headers["location"] == "/shards/mail/queue?name=mail"
        assert "paused" in web.get("/shards/mail/queue?name=mail").text  # with the message
    for shard in NAMES:
        assert api.Queue("mail", api.server(shard)).paused is (shard == "mail")
    [line] = [record.msg for record in caplog.records if record.name == "forkq.web.audit"]
    assert isinstance(line, dict)
    assert (line["action"], line["shard"]) == ("pause queue", "mail")


def test_a_shard_that_is_down_is_told_on_each_page_and_hides_no_other(shards: TwoShards) -> None:
    shards.push("default")
    with client_of() as web:
        shards.mail.kill()
        wait_until(lambda: "shard mail is down" in problems(web.get("/")), what="the problem")
        page = web.get("/queues")
        assert page.status_code == 200
        assert 'href="/shards/mail/"' in problems(page)
        gone = web.get("/shards/mail/queues")
        assert gone.status_code == 503
        assert "Redis does not answer" in gone.text
        assert shown(gone)["here"] == "mail"
        no_worker = "shard default: no process runs jobs"
        wait_until(lambda: no_worker in problems(web.get("/shards/mail/queues")), what="no worker")
        shards.mail.start()
        wait_until(lambda: "shard mail" not in problems(web.get("/queues")), what="its return")


def test_a_shard_that_refuses_this_user_hides_no_other(shards: TwoShards) -> None:
    shards.push("default")
    with client_of() as web, shards.mail.client() as redis:
        redis.config_set("requirepass", "another")
        redis.client_kill_filter(_type="normal", skipme=True)
        refused = web.get("/shards/mail/queues")
        assert refused.status_code == 503
        assert "Redis refuses" in refused.text
        no_worker = "shard default: no process runs jobs"
        wait_until(lambda: no_worker in problems(web.get("/shards/mail/queues")), what="no worker")


def test_a_shard_that_hangs_holds_up_no_other_page(shards: TwoShards) -> None:
    """Neither by the problems that each page tells of it, nor by its own pages, which wait for it
    in more threads than one shard has."""

    async def scenario() -> set[int]:
        transport = httpx2.ASGITransport(create_app(), client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as web:
            shards.mail.pause()
            try:
                page = "/shards/mail/queues"
                tasks = [asyncio.create_task(web.get(page)) for _ in range(2 * THREADS)]
                told = ""
                while "shard mail is down: it does not answer" not in told:
                    other = await web.get("/queues")
                    assert other.status_code == 200
                    assert not all(task.done() for task in tasks)
                    told = problems(other)
            finally:
                shards.mail.resume()
            return {(await task).status_code for task in tasks}

    assert asyncio.run(scenario()) <= {200, 503}  # a time-out, if this machine stood still


def test_what_is_urgent_on_another_shard_is_told(shards: TwoShards) -> None:
    shards.push("mail")
    with client_of() as web:
        wait_until(
            lambda: "shard mail: no process runs jobs" in problems(web.get("/queues")),
            what="the problem of the other shard",
        )
        assert 'href="/shards/mail/busy"' in problems(web.get("/queues"))


def test_it_can_show_one_shard_alone(shards: TwoShards) -> None:
    shards.push("mail")
    with client_of(WebSettings(shard="mail")) as web:
        page = web.get("/queues")
        assert shown(page) == {"mail": "/queues", "here": "mail"}
        assert '<a href="/queue?name=mail"' in page.text
        assert web.get("/shards/default/queues").status_code == 404


def test_it_can_be_mounted(shards: TwoShards) -> None:
    app = Starlette(routes=[Mount("/ops", create_app())])
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1)) as web:
        page = web.get("/ops/shards/mail/queues")
    links = re.findall(r'(?:href|src|action)="([^"#]*)"', page.text)
    assert [link for link in links if not link.startswith("/ops/shards/mail/")] == ["/ops/queues"]
    assert shown(page)["here"] == "mail"


def test_without_shards_there_is_no_choice(web: TestClient) -> None:
    assert shown(web.get("/")) == {}
    assert web.get("/shards/default/queues").status_code == 404


def test_a_member_leads_to_its_batch_on_another_shard(
    shards: TwoShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    load = forkq.job(name="Load", queue="mail")(lambda: None)
    with forkq.Batch("imports") as batch:
        jid = load.perform_async()
    with client_of() as web:
        page = web.get(f"/shards/mail/job?jid={jid}").text
        link = f'Member 0 of the batch <a href="/batch?bid={batch.bid}">{batch.bid}</a>'
        assert f"{link} on the shard default." in page
        assert web.get(f"/batch?bid={batch.bid}").status_code == 200
