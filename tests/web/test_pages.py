"""What the pages say, and what their actions do in Redis."""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any

import pytest
from redis import Redis
from starlette.testclient import TestClient

import forkq
from forkq import default_client
from forkq.screens.facts import Observer
from forkq.screens.problems import problems
from forkq.store.connection import RedisConnection
from tests.support.waiting import wait_until
from tests.web.shared import act, client_of, confirm


def push(queue: str = "mail", job: str = "Mail", *args: Any) -> str:
    jid = default_client.default().push({"class": job, "args": list(args), "queue": queue})
    assert jid is not None
    return jid


def beat(
    redis: Redis, *queues: str, identity: str = "web-1:77:abc", master: int = 0, **fields: Any
) -> str:
    """The record of a process that serves these queues, as its heartbeat writes it."""
    now, (host, pid, _) = time.time(), identity.split(":")
    info = {
        "hostname": host, "pid": int(pid), "tag": "shop", "queues": list(queues), "concurrency": 5,
        "started_at": now - 60, "labels": [], "identity": identity, "version": "1.0",
        "master": master,
    }  # fmt: skip
    record: Any = {
        "info": json.dumps(info),
        "concurrency": 5,
        "busy": 1,
        "beat": now,
        "rss": 2048,
    }
    redis.sadd("processes", identity)
    record |= {"quiet": "false", "rtt_us": 500, **fields}
    redis.hset(identity, mapping=record)
    redis.expire(identity, 60)
    return identity


def run_job(redis: Redis, identity: str, lease: int | None = None, **progress: Any) -> None:
    """A job that the process runs, as its heartbeat writes it."""
    job = {"class": "Export", "args": ["secret argument"], "jid": "a" * 24, "queue": "mail"}
    work: dict[str, Any] = {
        "queue": "mail", "payload": json.dumps(job), "run_at": int(time.time()) - 3665
    }  # fmt: skip
    if lease is not None:
        work["lease"] = lease
    if progress:
        work["progress"] = {"at": time.time(), "note": "", "total": None, **progress}
    redis.hset(f"{identity}:work", "t1", json.dumps(work))
    redis.expire(f"{identity}:work", 60)


class TestProblems:
    def test_all_is_well_says_what_it_knows(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail", master=76)
        redis.set("forkq:leader", "web-1:76:abc 12345")
        redis.sadd("queues", "mail", "low")
        assert "All well: 1 process, 2 queues, clock on web-1." in web.get("/queues").text

    def test_nothing_is_well_without_a_process(self, web: TestClient) -> None:
        html = web.get("/queues").text
        assert "All well" not in html
        assert "no process runs jobs: start forkq" in html

    def test_a_dead_fleet_with_retries_that_are_due(self, web: TestClient, redis: Redis) -> None:
        """As three alerts say, with the limits and words of these."""
        an_hour_ago = time.time() - 3600
        redis.zadd("retry", {f'{{"jid": "{n}"}}': an_hour_ago + n for n in range(50)})
        html = web.get("/queues").text
        assert "All well" not in html
        assert "no process runs jobs: 50 jobs waiting, start forkq" in html
        assert "no clock leads: nothing scheduled or retried becomes due" in html
        assert "50 retries, due for up to 60 min, have not been moved to their queues" in html

    def test_a_due_job_is_late_after_a_minute_only(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        redis.zadd("schedule", {"{}": time.time() - 30})
        assert "All well: 1 process, 0 queues." in web.get("/queues").text
        redis.zadd("schedule", {"{}": time.time() - 90})
        late = r"1 scheduled job, due for up to 9\d s, has not been moved to its queue"
        wait_until(lambda: re.search(late, web.get("/queues").text), what="the late job")

    def test_jobs_without_any_process(self, web: TestClient) -> None:
        push()
        assert "no process runs jobs: 1 job waiting" in web.get("/queues").text

    def test_a_queue_that_no_process_serves(self, web: TestClient, redis: Redis) -> None:
        push("lost")
        beat(redis, "mail")
        assert "no process serves queue lost: 1 job waiting" in web.get("/queues").text

    def test_suspects_that_no_process_serves(self, web: TestClient, redis: Redis) -> None:
        """Also those of a queue that was deleted."""
        redis.lpush("{queue:gone}:suspects", "{}")
        redis.sadd("forkq:suspects", "gone")
        beat(redis, "mail")
        assert "no process serves queue gone: 1 job waiting" in web.get("/queues").text

    def test_a_pattern_serves_too(self, web: TestClient, redis: Redis) -> None:
        push("tenant-1")
        beat(redis, "tenant-*")
        assert "no process serves queue" not in web.get("/queues").text

    def test_a_paused_queue_with_jobs(self, web: TestClient, redis: Redis) -> None:
        push()
        beat(redis, "mail")
        forkq.api.Queue("mail").pause()
        assert "queue mail is paused: 1 job" in web.get("/queues").text

    def test_a_damaged_key(self, web: TestClient, redis: Redis) -> None:
        redis.set("dead", "x")
        assert "RENAME dead damaged:dead" in web.get("/queues").text

    def test_a_silent_process(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail", beat=time.time() - 45)
        assert "process 77 on web-1 is silent for " in web.get("/queues").text

    def test_what_redis_refuses(
        self, web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        beat(redis, "mail", refused="redis gives no jobs: no permission")
        assert "redis gives no jobs: no permission (1 process)" in web.get("/queues").text
        monkeypatch.setattr("forkq.screens.facts._replica_of", lambda info: "10.0.0.7:6379")
        wait_until(
            lambda: "a replica of 10.0.0.7:6379, which takes no" in web.get("/queues").text,
            what="the role of the server",
        )

    def test_a_class_that_kills_its_processes(self, web: TestClient, redis: Redis) -> None:
        redis.hset("forkq:classes:held", "shop.Boom", "1700000000 12")
        says = "class shop.Boom has killed 5 processes within a minute; its jobs run alone"
        assert says in web.get("/queues").text

    def test_a_class_that_fails_more_than_it_did(self, web: TestClient, redis: Redis) -> None:
        now = datetime.now(timezone.utc)
        for back, failed in ((2, 30), (25, 4), (40, 5)):
            minute = now - timedelta(minutes=back)
            key = f"j|{minute:%y%m%d}|{minute.hour}:{minute:%M}"
            redis.hset(key, mapping={"Bad|p": 50, "Bad|f": failed, "Fine|p": 50, "Fine|f": 15})
        html = web.get("/queues").text
        assert "30 runs of Bad failed in 10 min, 9 in the 50 min before" in html
        assert "runs of Fine" not in html

    def test_queues_of_one_problem_are_one_sentence(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        for number in range(6):
            push(f"lost-{number}")
        html = web.get("/").text
        says = "no process serves 6 queues (lost-0, lost-1, lost-2 and 3 more): 6 jobs waiting"
        assert html.count("no process serves") == 1
        assert says.replace("lost-0, lost-1, lost-2", "") in re.sub(
            r"lost-\d, lost-\d, lost-\d", "", html
        )

    def test_silent_processes_of_some_hosts_are_one_sentence(
        self, web: TestClient, redis: Redis
    ) -> None:
        beat(redis, "mail", identity="web-9:77:abc")
        for number in range(12):
            silent_since = time.time() - 40 - number / 12
            beat(redis, "mail", identity=f"web-{number % 3}:{number}:abc", beat=silent_since)
        html = web.get("/queues").text
        assert "12 processes of 3 hosts are silent, the longest for 4" in html
        assert html.count(" silent") == 1

    def test_only_the_worst_three_are_named(
        self, web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The urgent ones first, then by jobs and lateness."""
        monkeypatch.setattr("forkq.screens.facts._SLOW_FOR", 0.0)
        beat(redis, "late", "paused", rtt_us=8000)
        push("lost")
        late = {"class": "A", "args": [], "jid": "b" * 24, "queue": "late"}
        for number in range(2):
            stamp = int((time.time() - 900) * 1000)
            redis.lpush("queue:late", json.dumps({**late, "jid": number, "enqueued_at": stamp}))
        redis.sadd("queues", "late")
        push("paused")
        forkq.api.Queue("paused").pause()
        told = problem_lines(web.get("/queues").text)
        assert told[0].startswith("no process serves queue lost")
        assert told[1].startswith("queue late is 15 min behind: 2 jobs waiting")
        assert told[2].startswith("queue paused is paused")
        assert told[3:] == ["and 1 problem more"]
        every = problem_lines(web.get("/").text)
        assert every[3] == "a round trip takes 8 ms from process 77 on web-1"

    def test_children_that_take_nothing(
        self, web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs have waited for minutes, threads are free, and no job leaves its queue."""
        monkeypatch.setattr("forkq.screens.flow._LOOK", 2.0)
        monkeypatch.setattr("forkq.screens.problems.found_by.__defaults__", (2.0,))
        beat(redis, "mail", busy=0)
        stamp = int((time.time() - 200) * 1000)
        for number in range(3):
            job = {"class": "A", "args": [], "jid": number, "queue": "mail", "enqueued_at": stamp}
            redis.lpush("queue:mail", json.dumps(job))
        redis.sadd("queues", "mail")
        assert "Nothing is known to hold it" in web.get("/queue?name=mail").text
        says = "5 threads free for queue mail, but take none of its 3 jobs for "
        wait_until(lambda: says in web.get("/queues").text, what="the problem")

        def page() -> str:
            return web.get("/queue?name=mail").text

        wait_until(lambda: "It does not drain" in page(), what="the sentence")
        assert "5 threads are free for it, but none has taken a job for" in page()
        redis.rpop("queue:mail")
        wait_until(lambda: '<h2 id="why">It drains</h2>' in page(), what="the first job to leave")
        assert says not in web.get("/queues").text

    def test_suspects_that_only_sidekiq_serves(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        redis.lpush("{queue:mail}:suspects", "{}", "{}")
        redis.sadd("forkq:suspects", "mail")
        says = "no process of forkq runs the suspects of queue mail: 2 jobs waiting"
        assert says in web.get("/queues").text

    def test_jobs_that_died_lately(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        redis.zadd("dead", {"a": time.time() - 60, "b": time.time() - 7200})
        assert "1 job died in the last hour" in web.get("/queues").text

    def test_children_that_crash(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        web.get("/queues")
        redis.hset("forkq:totals:children", "crash|SIGSEGV|n", 4)
        says = "children die (SIGSEGV: 4 in 15 min)"
        wait_until(lambda: says in web.get("/queues").text, what="the crashes")

    def test_periodic_jobs_that_do_not_tick(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        forkq.api.cron.add("cleanup", "* * * * *", "Cleanup")
        redis.hset("forkq:cron:last", "cleanup", int(time.time()) - 600)
        entry = json.loads(redis.hget("forkq:cron", "cleanup") or b"")
        asleep = {**entry, "name": "report", "origin": "code:shop"}
        redis.hset("forkq:cron", "report", json.dumps(asleep))
        html = web.get("/queues").text
        assert "periodic job cleanup has not been enqueued, due for " in html
        assert "periodic job report is asleep: no process runs the app" in html

    def test_a_class_of_which_most_runs_fail(self, web: TestClient, redis: Redis) -> None:
        beat(redis, "mail")
        now = datetime.now(timezone.utc)
        for back in (2, 20):
            minute = now - timedelta(minutes=back)
            key = f"j|{minute:%y%m%d}|{minute.hour}:{minute:%M}"
            redis.hset(key, mapping={"Bad|p": 10, "Bad|f": 7})
        assert "70% of the runs of Bad fail" in web.get("/queues").text

    def test_it_costs_as_many_round_trips_for_a_thousand(
        self, web: TestClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trips = counted_trips(monkeypatch)
        beat(redis, "mail")
        push("mail")
        Observer(forkq.api.server).facts()
        few = len(trips)
        for number in range(1000):
            beat(redis, f"mail-{number}", identity=f"h{number % 50}:{number}:abc")
        job = json.dumps({"class": "A", "enqueued_at": int(time.time() * 1000)})
        for number in range(1000):
            redis.lpush(f"queue:mail-{number}", job)
            redis.sadd("queues", f"mail-{number}")
        trips.clear()
        began = time.process_time()
        found = problems(Observer(forkq.api.server).facts())
        took = time.process_time() - began
        assert len(trips) <= few <= 25
        assert len(found) <= 4
        assert took < 3, "it must not look at each pair of queue and process"


def problem_lines(html: str) -> list[str]:
    """The sentences on top of a page."""
    part = html.partition('id="problems"')[2].partition('id="news"')[0]
    return [unescape(one) for one in re.findall(r"<li .*?><a .*?>(.*?)</a>", part)]


def counted_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each round trip has, from now on."""
    trips: list[int] = []
    pipeline = RedisConnection.pipeline

    def counting(self: RedisConnection, commands: Any, *args: Any, **options: Any) -> Any:
        trips.append(len(commands))
        return pipeline(self, commands, *args, **options)

    monkeypatch.setattr(RedisConnection, "pipeline", counting)
    return trips


class TestDashboard:
    def test_it_counts_the_jobs_of_the_last_60_seconds(self, web: TestClient, redis: Redis) -> None:
        """Also those of the minute that has just begun."""
        now = datetime.now(timezone.utc)
        redis.hset(f"j|{now:%y%m%d}|{now.hour}:{now:%M}", mapping={"A|p": 7, "A|f": 0, "A|ms": 9})
        assert "<strong>7</strong> <span>jobs a minute</span>" in web.get("/").text

    def test_it_has_the_counts_of_each_set(self, web: TestClient, redis: Redis) -> None:
        push()
        redis.zadd("dead", {"{}": 1})
        html = web.get("/").text
        assert "queued" in html
        assert 'href="/dead"' in html

    def test_the_days_are_chosen(self, web: TestClient) -> None:
        assert "The last 7 days" in web.get("/?days=7").text
        assert "The last 365 days" in web.get("/?days=99999").text


class TestQueues:
    def test_each_has_its_size_and_rules(self, web: TestClient) -> None:
        push()
        forkq.api.Queue("mail").limit = 3
        html = web.get("/queues").text
        assert '<a href="/queue?name=mail">mail</a>' in html
        assert "limit 3" in html

    def test_many_come_in_pages(self, web: TestClient, redis: Redis) -> None:
        redis.sadd("queues", *(f"q{number:03}" for number in range(120)))
        html = web.get("/queues").text
        assert html.count('href="/queue?name=') == 50
        assert 'href="/queues?page=1"' in html
        last = web.get("/queues?page=999").text
        assert last.count('href="/queue?name=') == 20


class TestQueue:
    def test_it_has_its_jobs_with_masked_secrets(self, web: TestClient) -> None:
        jid = push("mail", "Mail", {"to": "ann", "password": "hunter2"})
        html = web.get("/queue?name=mail").text
        assert jid in html
        assert "ann" in html
        assert "hunter2" not in html

    def test_it_says_what_holds_it(self, web: TestClient, redis: Redis) -> None:
        push()
        beat(redis, "mail")
        forkq.api.Queue("mail").pause()
        html = web.get("/queue?name=mail").text
        assert "Why it does not drain" in html
        assert "web-1" in html

    @pytest.mark.parametrize("name", ["", "a*", "a,1"])
    def test_a_name_that_is_none_is_refused(self, web: TestClient, name: str) -> None:
        assert web.get("/queue", params={"name": name}).status_code == 400

    def test_pause_and_resume(self, web: TestClient) -> None:
        push()
        assert act(web, "/queue/pause", name="mail").headers["location"] == "/queue?name=mail"
        assert forkq.api.Queue("mail").paused
        act(web, "/queue/resume", name="mail")
        assert not forkq.api.Queue("mail").paused

    def test_a_clear_says_how_many_and_is_put_back(self, web: TestClient) -> None:
        jids = [push() for _ in range(3)]
        question = act(web, "/queue/clear", name="mail")
        assert "Delete 3 jobs from mail?" in question.text
        assert forkq.api.Queue("mail").size == 3
        confirm(web, "/queue/clear", name="mail")
        assert forkq.api.Queue("mail").size == 0
        html = web.get("/queue?name=mail").text
        assert "Deleted 3 jobs from mail" in html
        token = html.partition('name="token" value="')[2].partition('"')[0]
        act(web, "/undo", token=token, back="/queue?name=mail")
        assert {entry.jid for entry in forkq.api.Queue("mail")} == set(jids)

    def test_the_rules_are_changed_lifted_and_reset(self, web: TestClient) -> None:
        queue = forkq.api.Queue("mail")
        act(web, "/queue/limits", name="mail", limit="3", rate="10/second", burst="")
        assert (queue.limit, queue.process_limit, queue.rate) == (3, None, "10/second")
        act(web, "/queue/limits", name="mail", limit="", rate="")
        assert (queue.limit, queue.rate) == (None, None)
        act(web, "/queue/reset", name="mail")
        assert forkq.api.queues("mail")[0].changed == ()

    @pytest.mark.parametrize(
        "fields", [{"limit": "-1"}, {"limit": "x"}, {"rate": "fast"}, {"burst": "3"}]
    )
    def test_a_wrong_rule_is_refused(self, web: TestClient, fields: dict[str, str]) -> None:
        answer = act(web, "/queue/limits", name="mail", **fields)
        assert answer.status_code == 400
        assert "Traceback" not in answer.text
        assert forkq.api.queues("mail")[0].changed == ()


class TestBusy:
    def test_running_jobs_with_progress_and_no_arguments(
        self, web: TestClient, redis: Redis
    ) -> None:
        run_job(redis, beat(redis, "mail"), done=40, total=120)
        html = web.get("/busy").text
        assert "Export" in html
        assert "40 of 120" in html
        assert "61 min" in html
        assert "secret argument" not in html
        assert "web-1" in html

    def test_a_job_that_has_ended_since_the_heartbeat_is_not_shown(
        self, web: TestClient, redis: Redis
    ) -> None:
        identity = beat(redis, "mail")
        run_job(redis, identity, lease=4)
        redis.sadd("queues", "mail")
        assert "No job runs" in web.get("/busy").text
        redis.hset("{queue:mail}:inflight", f"{identity}/4", "{}")
        assert "Export" in web.get("/busy").text

    def test_a_list_that_is_cut_says_so(self, web: TestClient, redis: Redis) -> None:
        redis.sadd("queues", "mail")
        for number in range(201):
            redis.hset("{queue:mail}:inflight", f"gone-1:7:aa/{number}", "{}")
        said = "200 of 201 shown; `forkq running` lists all."
        assert said in web.get("/busy").text
        redis.hdel("{queue:mail}:inflight", "gone-1:7:aa/0")
        assert "shown; " not in web.get("/busy").text

    def test_a_process_is_told_to_be_quiet_and_to_stop(
        self, web: TestClient, redis: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        identity = beat(redis, "mail")
        with caplog.at_level(logging.INFO, "forkq.web.audit"):
            confirm(web, "/busy/quiet", identity=identity)
            assert redis.lrange(f"{identity}-signals", 0, -1) == [b"TSTP"]
            confirm(web, "/busy/stop", identity=identity)
        assert redis.lrange(f"{identity}-signals", 0, -1) == [b"TERM", b"TSTP"]
        assert "'action': 'stop process', 'result': 'Told process 77" in caplog.text

    def test_one_that_has_ended_is_said_to_have(self, web: TestClient) -> None:
        answer = act(web, "/busy/stop", identity="gone:1:2")
        assert answer.status_code == 404
        assert "has ended" in answer.text


class TestSearch:
    def test_by_id_and_by_text(self, web: TestClient) -> None:
        jid = push("mail", "Mail")
        html = web.get("/search", params={"q": jid}).text
        assert f'href="/job?queue=mail&amp;jid={jid}"' in html
        job = {"class": "Report", "args": ["for ann"], "at": time.time() + 1000}
        later = default_client.default().push(job)
        assert str(later) in web.get("/search?q=for+ann").text

    def test_an_empty_one_says_what_can_be_searched(self, web: TestClient) -> None:
        assert "By its id" in web.get("/search").text


class TestUndo:
    @pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example"])
    def test_it_never_leads_to_another_site(self, web: TestClient, back: str) -> None:
        push()
        token = forkq.api.Queue("mail").delete_all(undo=True).undo
        assert act(web, "/undo", token=token, back=back).headers["location"] == "/"

    def test_one_that_is_too_late_is_refused(self, web: TestClient) -> None:
        assert act(web, "/undo", token="nothing").status_code == 400


def test_an_unknown_page_has_the_navigation(api_client: None) -> None:
    with client_of() as web:
        answer = web.get("/nowhere")
    assert answer.status_code == 404
    assert 'href="/queues"' in answer.text


def test_a_refusal_shows_the_control_characters_of_an_address(web: TestClient) -> None:
    """They are no characters of HTML, and a terminal would obey them."""
    answer = web.get("/queue?name=a%00%1b[31m*")
    assert answer.status_code == 400
    assert "a\\x00\\x1b[31m*" in answer.text
    assert not {"\0", "\x1b"} & set(answer.text)
