"""A job's way through real processors: it is performed, retried or buried, and harms no other."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NoReturn

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.child import job_way
from forkq.child.cron.outcome import CronOutcomes
from forkq.child.failure import ends, settle
from forkq.child.heartbeat.stats import Totals
from forkq.child.processor import Processor
from forkq.errors import Shutdown
from forkq.limits.rules import Rate, Rules
from forkq.runtime.log_console import SENTENCE
from forkq.store.pool import RedisPool
from forkq.store.scripts import ISOLATE, RETRY
from forkq.wire import marks
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork
from forkq.wire.payload import dumps
from tests.redis.in_process_child import InProcessChild, is_waiting
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

LIST, INFLIGHT = "queue:default", "{queue:default}:inflight"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry and a middleware chain of this test's own."""
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(registry, "death_handlers", [])
    monkeypatch.setattr(registry, "error_handlers", [])
    monkeypatch.setattr(middleware, "server", middleware.Chain())


def payload(name: str = "Good", *args: Any, **keys: Any) -> bytes:
    return dumps({"class": name, "args": list(args), "jid": "m1", "queue": "default", **keys})


def settled(redis: Redis, what: str = "everything to be settled") -> None:
    wait_until(lambda: not redis.exists(LIST, INFLIGHT), what=what)


def good() -> list[Any]:
    """Registers a job that notes its arguments."""
    ran: list[Any] = []

    @forkq.job(name="Good")
    def job(*args: Any) -> None:
        ran.append(list(args))

    return ran


def entries(redis: Redis, name: str) -> list[dict[str, Any]]:
    found: Any = redis.zrange(name, 0, -1)
    return [json.loads(member) for member in found]


def malformed() -> list[bytes]:
    """A hundred kinds of bytes that are no job."""
    whole = (
        b'{"class":"Good","args":["a",1,2.5,null,true,{"k":["\xc3\xa9"]}],"jid":"m1","retry":true}'
    )
    kinds = [
        b"", b" ", b"\n", b"\x00", b"null", b"true", b"false", b"42", b"-1.5", b'"abc"', b"[]",
        b"[1,2]", b'[{"class":"Good"}]', b"{}", b"{nope", b"nope", b'{"class":null}',
        b'{"class":7}', b'{"class":[]}', b'{"class":{}}', b'{"class":true}', b'{"args":[1]}',
        b'{"Class":"Good","args":[]}', b"{'class':'Good'}", b'{"class":"Good",}',
        b'{"class":"Good"} x', b'{"class":"Good"}{"class":"Good"}',
        b'{"class":"Good","args":[NaN]}',
        b'{"class":"Good","args":[Infinity]}', b'{"class":"Good","args":[-Infinity]}',
        b'{"class":"Good","args":[1e400]}', b'{"class":"Good","args":["\xff\xfe"]}',
        b'{"class":"Good","\xff":1}', b'{"class":"Good","args":["\\ud800"]}',
        b'{"class":"Good","args":["\\x41"]}', b'{"class":"Good","args":[01]}',
        b'{"class":"Good","args":[.5]}', b'{"class":"Good","args":["\n"]}',
        b"\xef\xbb\xbf" + whole, b"\xff\xfe" + whole, whole + b"\x00",
        whole.decode().encode("utf-16"),
        b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00}\x94.", b"\x82\xa5class\xa4Good",
        b'{"class":"Good","args":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"class":"Good","args":[' + b"1" * 5000 + b"]}", b"\xff" * 1000, b"x" * (1 << 20),
        b"<job>Good</job>", b"class=Good&args=1", b"*1\r\n$4\r\nPING\r\n",
    ]  # fmt: skip
    truncated = [whole[:end] for end in range(2, len(whole))]
    return (kinds + truncated)[:100]


def test_a_hundred_malformed_payloads_are_buried_and_the_processors_unharmed(
    redis: Redis, redis_server: Server
) -> None:
    ran, payloads = good(), malformed()
    assert len(set(payloads)) == 100
    redis.lpush(LIST, *payloads)
    redis.lpush(LIST, payload("Good", "after"))
    with InProcessChild(redis_server.url, concurrency=3) as child:
        settled(redis)
        assert ran == [["after"]]
        assert len(child.processors) == 3
        assert all(processor.alive for processor in child.processors)
        entries: Any = redis.zrange("dead", 0, -1)
        buried = set(entries)
        wrapped: list[Any] = [json.loads(raw) for raw in buried - set(payloads)]
        assert {job["class"] for job in wrapped} == {"forkq.malformed"}
        assert {job["args"][0].encode() for job in wrapped} == set(payloads) - buried
        assert set(payloads) - buried == {
            b"null", b"true", b"false", b"42", b"-1.5", b'"abc"', b"[]", b"[1,2]",
            b'[{"class":"Good"}]',
        }  # fmt: skip
        assert redis.exists("retry") == 0
        wait_until(lambda: child.manager.counts() == (101, 100), what="the tally")
    assert child.log.events().count("malformed payload, buried") == 100


def test_each_malformed_payload_is_buried_when_it_comes_alone(
    redis: Redis, redis_server: Server
) -> None:
    """A fetch of one payload has nothing but that one to measure: it may be empty."""

    def has_buried(count: int) -> bool:
        return redis.zcard("dead") == count

    with InProcessChild(redis_server.url, concurrency=1) as child:
        for number, bad in enumerate(malformed(), 1):
            redis.lpush(LIST, bad)
            wait_until(partial(has_buried, number), what=f"the burial of {bad[:40]!r}")
        assert len(child.processors) == 1


NEWER = "the job needs a newer forkq; it waits in the schedule, and a child that can run it gets it"


@pytest.mark.parametrize(
    "noted",
    [
        {"v": marks.VERSION + 1, "needs": {"unique": ["k", 60]}},
        {"v": 10**30},
        {"v": "1.5"},
        {"v": None},
        {"v": 99, "suspect": True},
        {"v": 99, "failed": {"class": "forkq.errors.TimeLimit", "message": "60 s"}},
    ],
    ids=str,
)
def test_a_job_that_needs_a_newer_forkq_is_put_back_with_a_delay(
    redis: Redis, redis_server: Server, noted: dict[str, Any]
) -> None:
    """During a rolling deploy, children that know the version run beside those that do not."""
    ran = good()
    newer = payload("Good", "newer", retry=3, forkq=noted)
    redis.lpush(LIST, newer, payload("Good", "plain"))
    with InProcessChild(redis_server.url, concurrency=1) as child:
        settled(redis)
        wait_until(lambda: child.manager.counts() == (1, 0), what="the plain job alone to count")
        assert ran == [["plain"]]
        found: Any = redis.zrange("schedule", 0, -1, withscores=True)
        [(member, due)] = found
        job = json.loads(member)
        noted_at = job["forkq"].pop("postponed")
        assert job == json.loads(newer)
        assert abs(noted_at - time.time()) < 60
        assert 1 < due - time.time() < 120
        redis.lpush(LIST, payload("Good", "another", forkq=noted))
        wait_until(lambda: redis.zcard("schedule") == 2, what="the other one")
    assert not redis.exists("retry", "dead")
    [line] = [line for line in child.log.lines if line[1] == NEWER]
    assert (line[0], line[2]["jid"], line[2]["v"]) == ("warning", "m1", noted["v"])


def test_a_job_whose_version_is_known_is_run(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "VERSION", 7)
    ran = good()
    for version in (0, 6, 7):
        redis.lpush(LIST, payload("Good", version, forkq={"v": version}))
    with InProcessChild(redis_server.url, concurrency=1):
        settled(redis)
    assert ran == [[0], [6], [7]]
    assert not redis.exists("schedule", "retry", "dead")


def test_a_job_that_needs_a_newer_forkq_comes_back_to_the_queue_that_had_it(
    redis: Redis, redis_server: Server
) -> None:
    """As one that a person has moved."""
    redis.lpush(LIST, dumps({"class": "Good", "args": [], "jid": "a", "forkq": {"v": 99}}))
    redis.lpush(LIST, payload(jid="b", queue="other", forkq={"v": 99}))
    with InProcessChild(redis_server.url, concurrency=1):
        settled(redis)
    assert [job["queue"] for job in entries(redis, "schedule")] == ["default", "default"]


def postponed_ago(hours: float, **keys: Any) -> bytes:
    noted = {"v": 99, "postponed": time.time() - hours * 3600, "suspect": True}
    return payload("Good", "newer", forkq=noted, **keys)


def test_a_job_that_is_put_back_again_keeps_the_time_of_its_first_return(
    redis: Redis, redis_server: Server
) -> None:
    good()
    job = postponed_ago(23.9)
    odd = payload(jid="b", forkq={"v": 99, "postponed": "another program's"})
    redis.lpush(LIST, job, odd)
    with InProcessChild(redis_server.url, concurrency=1):
        settled(redis)
    assert redis.zscore("schedule", job) is not None
    [other] = [one for one in entries(redis, "schedule") if one["jid"] == "b"]
    assert abs(other["forkq"]["postponed"] - time.time()) < 60


def test_a_job_whose_version_no_process_knew_for_a_day_is_buried(
    redis: Redis, redis_server: Server
) -> None:
    """Not put back for ever. A person who retries it gives it another day."""
    ran, told = good(), []
    registry.on_death(lambda job, error: told.append((job["jid"], type(error).__name__)))
    redis.lpush(LIST, postponed_ago(24.1), postponed_ago(24.1, jid="gone", dead=False))
    with InProcessChild(redis_server.url, concurrency=1) as child:
        settled(redis)
        wait_until(lambda: child.manager.counts() == (2, 2), what="both to count")
    assert (ran, told) == ([], [("m1", "UnknownVersion"), ("gone", "UnknownVersion")])
    [dead] = entries(redis, "dead")
    assert dead["forkq"] == {"v": 99}
    assert dead["error_class"] == "forkq.errors.UnknownVersion"
    assert dead["error_message"] == (
        "it needs version 99 of forkq's payloads; no process that fetched it in 24 hours has known "
        f"that, and this one knows {marks.VERSION}"
    )
    assert not redis.exists("schedule", "retry")


def test_a_job_that_has_waited_for_its_version_forgets_it_when_it_fails(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "VERSION", 99)
    redis.lpush(LIST, payload("Unregistered", forkq={"v": 99, "postponed": 1.5}))
    with InProcessChild(redis_server.url, concurrency=1):
        settled(redis)
    [failed] = entries(redis, "retry")
    assert failed["forkq"] == {"v": 99}


def test_a_job_that_needs_a_newer_forkq_keeps_its_lease_while_redis_refuses(
    redis: Redis, redis_server: Server
) -> None:
    redis.set("schedule", "something else")
    redis.lpush(LIST, payload(forkq={"v": 99}))
    with InProcessChild(redis_server.url, concurrency=1) as child:
        assert child.parked.wait(10)
        assert redis.hlen(INFLIGHT) == 1
        redis.delete("schedule")
        assert not child.again()
        settled(redis)
    assert redis.zcard("schedule") == 1


NOT_RUN_HERE: list[bytes] = [
    payload(forkq={"v": 99}),
    payload(forkq={"suspect": True}),
    payload("Deadly"),
]


@pytest.mark.parametrize("knows_scripts", [True, False], ids=["known", "unknown scripts"])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("unrun", NOT_RUN_HERE, ids=["newer", "suspect", "held"])
def test_a_job_that_is_put_elsewhere_unrun_costs_no_token_of_its_queues_rate(
    redis: Redis, redis_server: Server, unrun: bytes, concurrency: int, knows_scripts: bool
) -> None:
    """Else a flood of them would keep all others waiting. A server that does not know a script yet
    gives the token back only after the fetch that was sent with it."""
    for script in (RETRY, ISOLATE):
        redis.script_load(script.text)
    if not knows_scripts:
        redis.script_flush()
    ran, burst = good(), 3
    redis.hset(Keys().held_classes, "Deadly", "1700000000 5")
    redis.lpush(LIST, *[unrun] * 20, *[payload("Good", n) for n in range(burst + 1)])
    rules = {"default": Rules(rate=Rate(1, 3600, burst))}
    with InProcessChild(
        redis_server.url, concurrency=concurrency, held={"Deadly"}, rules=rules
    ) as child:
        wait_until(lambda: len(ran) == burst, what="as many jobs as there are tokens")
        wait_until(lambda: is_waiting(child.fetcher), what="the child to wait for a token")
        assert redis.hlen(INFLIGHT) == 0
    assert sorted(ran) == [[0], [1], [2]]
    assert redis.lrange(LIST, 0, -1) == [payload("Good", burst)]


HUGE = 10**400


@pytest.mark.parametrize(
    "keys",
    [
        {"args": {"a": 1}},
        {"args": "ab"},
        {"args": [1, 2, 3]},
        {"class": "Unknown"},
        {"class": ""},
        {"class": "os.system", "args": ["true"]},
        {"retry_count": HUGE, "retry_for": 60},
        {"retry": "3"},
        {"retry_for": HUGE},
        {"failed_at": HUGE, "retry_count": 0, "retry_for": 5},
        {"queue": 7},
        {"queue": None},
        {"retry_queue": {}},
        {"jid": 5},
        {"backtrace": HUGE},
        {"tags": 1, "forkq": [], "wrapped": {}},
        {"error_message": [], "error_class": 0, "error_backtrace": 1, "created_at": "now"},
    ],
    ids=",".join,
)
def test_a_job_that_cannot_run_fails_and_harms_no_processor(
    redis: Redis, redis_server: Server, keys: dict[str, Any]
) -> None:
    @forkq.job(name="Bad")
    def bad(a: int) -> None:
        raise ValueError("bad")

    ran = good()
    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(
            LIST, dumps({"class": "Bad", "args": [1], "jid": "m1", **keys}), payload("Good")
        )
        settled(redis)
        assert ran == [[]]
        assert len(child.processors) == 1
        assert child.processors[0].alive
    assert redis.zcard("retry") + redis.zcard("dead") == 1


def test_an_unknown_class_is_retried_like_retry_true(redis: Redis, redis_server: Server) -> None:
    with InProcessChild(redis_server.url):
        redis.lpush(LIST, b'{"class":"Nope","args":[1],"jid":"m8b"}')
        settled(redis)
    [found] = entries(redis, "retry")
    assert (found["retry"], found["retry_count"], found["queue"]) == (True, 0, "default")
    assert found["error_class"] == "forkq.errors.UnknownJob"


def test_a_payload_without_args_runs_without_arguments(redis: Redis, redis_server: Server) -> None:
    ran = good()
    with InProcessChild(redis_server.url):
        redis.lpush(LIST, b'{"class":"Good","jid":"m3"}')
        settled(redis)
    assert ran == [[]]


def failing(error: BaseException, **options: Any) -> None:
    """Registers "Bad", which raises this."""

    @forkq.job(name="Bad", **options)
    def bad(*args: Any) -> None:
        raise error


def test_the_first_failure_goes_to_the_retry_set_with_nothing_left_behind(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError("boom é"))
    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Bad", 1, retry=True, custom="x"))
        settled(redis)
    [found] = entries(redis, "retry")
    assert found.pop("failed_at") > 1.7e9
    assert found == {
        "class": "Bad", "args": [1], "jid": "m1", "queue": "default", "retry": True, "custom": "x",
        "error_message": "boom é", "error_class": "ValueError", "retry_count": 0,
    }  # fmt: skip
    assert redis.exists("dead") == 0


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Shutdown])
def test_a_job_that_tries_to_end_its_process_just_fails(
    redis: Redis, redis_server: Server, error: type[BaseException]
) -> None:
    failing(error())
    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Bad"))
        settled(redis)
        assert child.processors[0].alive
    assert entries(redis, "retry")[0]["error_class"].endswith(error.__name__)


def test_an_exhausted_job_runs_its_hook_is_buried_and_then_the_death_handlers_run(
    redis: Redis, redis_server: Server
) -> None:
    order: list[str] = []
    failing(ValueError("x"), retries_exhausted=lambda job, exc: order.append("exhausted"))

    @forkq.on_death
    def broken(job: dict[str, Any], error: BaseException) -> None:
        raise KeyError("in the handler")

    @forkq.on_death
    def note(job: dict[str, Any], error: BaseException) -> None:
        order.append(f"{job['jid']} {error} {redis.zcard('dead')} dead")

    with InProcessChild(redis_server.url) as child:
        redis.lpush(LIST, payload("Bad", retry=0))
        wait_until(lambda: len(order) == 2, what="the death handlers")
        settled(redis)
    assert order == ["exhausted", "m1 x 1 dead"]
    assert "a death handler failed" in child.log.events()


@pytest.mark.parametrize(
    ("keys", "dead", "calls"),
    [
        ({"retry": False}, 0, 1),
        ({"retry": 0, "dead": False}, 0, 1),
        ({"retry": 0}, 1, 1),
        ({"retry": 2}, 0, 0),
    ],
)
def test_death_handlers_are_called_for_every_job_that_is_given_up(
    redis: Redis, redis_server: Server, keys: dict[str, Any], dead: int, calls: int
) -> None:
    failing(ValueError("x"))
    called: list[str] = []
    forkq.on_death(lambda job, error: called.append(job["jid"]))
    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Bad", **keys))
        settled(redis)
    assert (redis.zcard("dead"), len(called)) == (dead, calls)


def test_the_line_of_an_error_without_a_message_ends_with_its_class(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError())
    with InProcessChild(redis_server.url) as child:
        redis.lpush(LIST, payload("Bad", retry=True))
        settled(redis)
    [said] = [values[SENTENCE] for _, event, values in child.log.lines if event == "failed"]
    assert re.match(r"failed after [\d.]+ m?s: ValueError \(attempt 1 of", said)


def test_error_handlers_are_called_for_a_failure_and_their_own_errors_change_nothing(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError("x"))
    called: list[Any] = []

    @forkq.on_error
    def broken(error: BaseException, context: dict[str, Any]) -> None:
        called.append((str(error), context["job"]["jid"]))
        raise KeyError("in the handler")

    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Bad"))
        settled(redis)
    assert called == [("x", "m1")]
    assert redis.zcard("retry") == 1


def test_only_perform_itself_is_judged_by_the_jobs_own_hooks(
    redis: Redis, redis_server: Server
) -> None:
    """The two rings: middleware that fails is retried by default, without the hook."""
    asked: list[int] = []

    def retry_in(count: int, error: BaseException, job: dict[str, Any]) -> object:
        asked.append(count)
        return forkq.KILL

    @forkq.job(name="Bad", retry_in=retry_in)
    def bad() -> None:
        raise ValueError("perform")

    @middleware.server.append
    def picky(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        if job["jid"] == "outside":
            raise RuntimeError("middleware")
        return call()

    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Bad", jid="outside"), payload("Bad", jid="inside"))
        settled(redis)
    assert [found["jid"] for found in entries(redis, "retry")] == ["outside"]
    assert [found["jid"] for found in entries(redis, "dead")] == ["inside"]
    assert asked == [0]


def test_middleware_wraps_the_job_and_may_skip_it(redis: Redis, redis_server: Server) -> None:
    ran, trace = good(), []

    @middleware.server.append
    def watch(job: dict[str, Any], call: Callable[[], Any]) -> Any:
        trace.append(job["args"])
        return None if job["args"] == ["skip"] else call()

    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Good", "run"), payload("Good", "skip"))
        settled(redis)
    assert ran == [["run"]]
    assert sorted(trace) == [["run"], ["skip"]]


def test_inside_a_job_the_current_job_is_known(redis: Redis, redis_server: Server) -> None:
    seen: list[Any] = []

    @forkq.job(name="Curious")
    def curious() -> None:
        job = forkq.current_job()
        seen.append((job.jid, job.queue, job.retry_count, job.payload["custom"]))

    with InProcessChild(redis_server.url):
        redis.lpush(LIST, b'{"class":"Curious","args":[],"jid":"m1","retry_count":2,"custom":[1]}')
        settled(redis)
    assert seen == [("m1", "default", 2, [1])]


def test_after_rubys_retry_now_the_job_sees_no_negative_retry_count(
    redis: Redis, redis_server: Server
) -> None:
    """Sidekiq's web UI counts down before it enqueues the job; the run costs no retry."""
    seen: list[Any] = []

    @middleware.server.append
    def note(job: dict[str, Any], perform: Callable[[], None]) -> None:
        seen.append(job["retry_count"])
        perform()

    @forkq.job(name="Curious")
    def curious() -> None:
        job = forkq.current_job()
        seen.append((job.retry_count, job.payload["retry_count"]))
        raise ValueError("again")

    with InProcessChild(redis_server.url):
        redis.lpush(LIST, payload("Curious", retry_count=-1))
        wait_until(lambda: redis.zcard("retry") == 1, what="the failure")
    assert seen == [0, (0, 0)]
    assert entries(redis, "retry")[0]["retry_count"] == 0


def test_a_wrapped_job_counts_under_the_wrapped_class(redis: Redis, redis_server: Server) -> None:
    """As in Sidekiq's metrics: ActiveJob's wrapper would hide what ran."""
    good()

    @forkq.job(name="Wrapper")
    def wrapper(*args: object) -> None:
        if args:
            raise ValueError("boom")

    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Wrapper", wrapped="Mails::Welcome"))
        redis.lpush(LIST, payload("Wrapper", "fail", wrapped="Mails::Welcome"))
        for odd in (5, "", "x" * 300, None):
            redis.lpush(LIST, payload("Wrapper", wrapped=odd))
        redis.lpush(LIST, payload("Unknown", wrapped="Mails::Welcome"))
        wait_until(lambda: child.manager.counts() == (7, 2), what="the counts")
    figures = {n: (row[0], sum(row[4:])) for n, row in child.manager.tally().classes.items()}
    known = {"Mails::Welcome": (1, 1), "Wrapper": (0, 4)}
    assert figures == {**known, "(unregistered)": (1, 0)}


def test_wrapped_names_without_end_do_not_fill_the_memory(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.child.job_way._MOST_NAMES", 3)
    good()
    with InProcessChild(redis_server.url, concurrency=1) as child:
        for number in range(6):
            redis.lpush(LIST, payload("Good", wrapped=f"W{number}"))
        wait_until(lambda: child.manager.counts() == (6, 0), what="the counts")
    assert child.manager.tally().classes.keys() == {"W0", "W1", "W2", "Good"}


def test_an_interrupted_job_goes_back_to_the_head_and_counts_as_nothing(
    redis: Redis, redis_server: Server
) -> None:
    inside, cleaned = threading.Event(), threading.Event()

    @forkq.job(name="Long")
    def long() -> None:
        inside.set()
        try:
            while True:
                sum(range(100))
        finally:
            cleaned.set()

    redis.lpush(LIST, payload("Long"), payload("Good", "next"))
    child = InProcessChild(redis_server.url, concurrency=1)
    with child:
        assert inside.wait(10)
        child.manager.quiet()
        assert child.manager.interrupt() == 1
        assert cleaned.wait(10)
        wait_until(lambda: child.manager.idle, what="the processor's end")
    assert child.manager.tally() == Totals()
    assert redis.lrange(LIST, 0, -1) == [payload("Good", "next"), payload("Long")]
    assert redis.exists("retry", "dead", INFLIGHT) == 0


def test_each_registered_class_has_figures_of_its_own(redis: Redis, redis_server: Server) -> None:
    """Payloads may hold any name: what is not registered counts together. A service that runs
    nothing else must not look as if nothing failed."""
    failing(ValueError("x"))
    good()

    @forkq.job(name="Slow")
    def slow() -> None:
        time.sleep(0.025)

    with InProcessChild(redis_server.url) as child:
        redis.lpush(LIST, *[payload("Good")] * 3, payload("Bad"), payload("Unknown"), b"nonsense")
        redis.lpush(LIST, payload("Slow"), payload("Slow", "too", "many", "arguments"))
        settled(redis)
        wait_until(lambda: child.manager.counts() == (8, 4), what="the counts")
    totals = child.manager.tally()
    assert (totals.processed, totals.failed) == (8, 4)
    figures = {name: (row[0], sum(row[4:])) for name, row in totals.classes.items()}
    known = {"Good": (0, 3), "Bad": (1, 0), "Slow": (1, 1)}
    assert figures == {**known, "(unregistered)": (2, 0)}
    assert totals.classes["Slow"][3] >= 25
    assert totals.classes["Slow"][4] == 0  # not in the bucket of what is shorter than 20 ms


def test_run_times_are_right_though_the_wall_clock_is_set_meanwhile(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time

    @forkq.job(name="Good")
    def job() -> None:
        monkeypatch.setattr(time, "time", lambda: wall() - 3600)

    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, payload("Good"))
        wait_until(lambda: child.manager.counts() == (1, 0), what="the count")
    monkeypatch.undo()
    milliseconds = child.manager.tally().classes["Good"][3]
    assert 0 <= milliseconds < 60_000


def test_the_history_of_periodic_jobs_gets_each_outcome(redis: Redis, redis_server: Server) -> None:
    """A job that no entry has enqueued is not noted."""
    failing(ValueError("x"))
    good()
    ended: list[tuple[str, str]] = []

    class FakeCronOutcomes(CronOutcomes):
        """Remembers what it would have noted in Redis."""

        def _write(self, name: str, jid: str, line: bytes) -> None:
            ended.append((jid, json.loads(line)["event"]))

    with (
        closing(RedisPool(redis_server.url, size=1, timeout=5, connect_timeout=2)) as pool,
        InProcessChild(
            redis_server.url, observers=[FakeCronOutcomes(Keys(), pool, RecordedLog())]
        ) as child,
    ):
        notes: dict[str, Any] = {"forkq": {"cron": "n"}}
        redis.lpush(
            LIST,
            payload("Good", jid="done", **notes),
            payload("Good", jid="no notes"),
            payload("Bad", jid="retry", **notes),
            payload("Bad", jid="dead", retry=0, **notes),
            payload("Bad", jid="dropped", retry=False, **notes),
        )
        wait_until(lambda: child.manager.counts() == (5, 3), what="the counts")
        settled(redis)
        wait_until(lambda: len(ended) == 4, what="four ends")
    assert sorted(ended) == [(name, name) for name in ("dead", "done", "dropped", "retry")]


@pytest.mark.parametrize("link", ["raise from", "while handling"])
def test_an_error_that_the_interruption_caused_is_no_failure(
    redis: Redis, redis_server: Server, link: str
) -> None:
    inside = threading.Event()

    @forkq.job(name="Long")
    def long() -> None:
        inside.set()
        try:
            while True:
                sum(range(100))
        except Shutdown as stop:
            if link == "raise from":
                raise ValueError("connection closed") from stop
            raise ValueError("connection closed")  # noqa: B904 - that is the point

    redis.lpush(LIST, payload("Long"))
    with InProcessChild(redis_server.url, concurrency=1) as child:
        assert inside.wait(10)
        child.manager.quiet()
        child.manager.interrupt()
        wait_until(lambda: child.manager.idle, what="the processor's end")
    assert redis.lrange(LIST, 0, -1) == [payload("Long")]
    assert redis.exists("retry", "dead") == 0


def test_a_dead_processor_is_replaced_and_its_job_runs_again(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = good()
    with InProcessChild(redis_server.url, concurrency=2) as child:
        wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
        victims: list[str] = []
        process = Processor.process

        def die(self: Processor, unit: UnitOfWork) -> None:
            if not victims:
                victims.append(threading.current_thread().name)
                raise SystemExit
            process(self, unit)

        monkeypatch.setattr(Processor, "process", die)
        redis.lpush(LIST, payload("Good", "twice"))
        wait_until(lambda: not all(p.alive for p in child.processors), what="a processor's death")
        child.manager.replace_the_dead()
        settled(redis)
        assert len(child.processors) == 3
        assert ran == [["twice"]]


def test_what_a_dead_processor_had_counted_stays_counted(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    good()
    with InProcessChild(redis_server.url, concurrency=1) as child:
        redis.lpush(LIST, *[payload("Good")] * 5)
        wait_until(lambda: child.manager.counts() == (5, 0), what="the counts")
        monkeypatch.setattr(child.processors[0], "process", _die)
        redis.lpush(LIST, payload("Good"))
        wait_until(lambda: not child.processors[0].alive, what="the processor's death")
        assert child.manager.counts() == (5, 0)
        child.manager.replace_the_dead()
        wait_until(lambda: child.manager.counts() == (6, 0), what="the count of its replacement")
    row = child.manager.tally().classes["Good"]
    assert sum(row[4:]) == 6


def _die(unit: UnitOfWork) -> NoReturn:
    """Ends the thread of a processor."""
    raise SystemExit


@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_what_redis_does_not_take_is_kept_and_settled_later(
    own_server: Server, retry: Any, target: str
) -> None:
    """Redis refuses in the middle of the script (here: by an ACL); the lease stays."""
    failing(ValueError("boom"))
    redis = own_server.client()
    with InProcessChild(own_server.url, concurrency=2) as child:
        own_server.cli("ACL", "SETUSER", "default", "-zadd")
        redis.lpush(LIST, payload("Bad", retry=retry))
        assert child.parked.wait(10)
        assert child.again() is True
        assert redis.hlen(INFLIGHT) == 1
        own_server.cli("ACL", "SETUSER", "default", "+zadd")
        assert child.again() is False
        assert redis.zcard(target) == 1
        assert redis.exists(INFLIGHT) == 0


@pytest.mark.parametrize("reason", ["another type", "no right"])
@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_jobs_that_redis_does_not_take_keep_no_processor_from_working(
    own_server: Server, reason: str, retry: Any, target: str
) -> None:
    ran, redis = good(), own_server.client()
    failing(ValueError("boom"))
    with InProcessChild(own_server.url, concurrency=2) as child:
        refuse(own_server, target, reason)
        redis.lpush(LIST, *(payload("Bad", retry=retry, jid=f"{n}") for n in range(5)))
        redis.lpush(LIST, *(payload("Good", n) for n in range(20)))
        wait_until(lambda: len(ran) == 20 and redis.llen(LIST) == 0, what="the good jobs")
        wait_until(lambda: redis.hlen(INFLIGHT) == 5, what="the acknowledgements")
        wait_until(lambda: child.manager.busy == 0, what="the last failure")
        assert sent_in(redis, 0.5) < 20
        assert child.again() is True
        accept(own_server, target, reason)
        assert child.again() is False
        assert redis.zcard(target) == 5
        assert redis.exists(INFLIGHT) == 0
    events = child.log.events()
    assert "redis lost" not in events
    assert events.count("redis does not take failed jobs; they are kept and tried again") == 1
    assert events.count("redis takes failed jobs again") == 1


TOO_MANY_PARKED = "fetching no more jobs: too many keep their leases without a processor"
FEW_PARKED_AGAIN = "fetching jobs again"


def test_when_too_many_failed_jobs_are_kept_nothing_is_fetched_or_asked(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "_MOST_MOVING", 3)
    ran = good()
    failing(ValueError("boom"))
    redis.set("retry", "no set")
    with InProcessChild(redis_server.url, concurrency=2) as child:
        redis.lpush(LIST, *(payload("Bad", jid=f"{n}") for n in range(9)), payload("Good", 1))
        wait_until(lambda: redis.hlen(INFLIGHT) == 5, what="as many leases as fit")
        # Not until no processor is busy: none is between a fetch and its first job.
        wait_until(lambda: TOO_MANY_PARKED in child.log.events(), what="the last failure")
        wait_until(lambda: child.manager.busy == 0, what="idle processors")
        assert sent_in(redis, 0.5) < 20
        assert (redis.hlen(INFLIGHT), ran) == (5, [])
        assert child.log.events().count(TOO_MANY_PARKED) == 1
        assert FEW_PARKED_AGAIN not in child.log.events()
        redis.delete("retry")
        assert child.again() is False
        wait_until(lambda: ran == [[1]] and redis.zcard("retry") == 9, what="the rest")
    events = child.log.events()
    assert (events.count(TOO_MANY_PARKED), events.count(FEW_PARKED_AGAIN)) == (1, 1)
    [line] = [values for _, event, values in child.log.lines if event == TOO_MANY_PARKED]
    assert line["kept"] == 5
    assert "retry and dead sets" in line["remedy"]


def test_what_is_refused_is_tried_again_with_growing_pauses(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError("boom"))
    redis.set("retry", "no set")
    with InProcessChild(redis_server.url, concurrency=2) as child:
        redis.lpush(LIST, *(payload("Bad", jid=f"{n}") for n in range(9)))
        wait_until(
            lambda: child.leases.count().parked == 9 and child.manager.busy == 0,
            what="the failures",
        )
        assert child.settler.again_in_time() is True
        before = commands(redis)
        for _ in range(100):
            assert child.settler.again_in_time() is True
        assert commands(redis) - before < 20
        redis.delete("retry")
        wait_until(lambda: not child.settler.again_in_time(), what="its time", every=0.05)
    assert redis.zcard("retry") == 9


def commands(redis: Redis) -> int:
    found: Any = redis.info("stats")
    return int(found["total_commands_processed"])


def sent_in(redis: Redis, seconds: float) -> int:
    """How many commands the server gets in that time."""
    before = commands(redis)
    time.sleep(seconds)
    return commands(redis) - before


def refuse(server: Server, target: str, reason: str) -> None:
    if reason == "no right":
        server.cli("ACL", "SETUSER", "default", "-zadd")
    else:
        server.cli("SET", target, "no set")


def accept(server: Server, target: str, reason: str) -> None:
    if reason == "no right":
        server.cli("ACL", "SETUSER", "default", "+zadd")
    else:
        server.cli("DEL", target)


@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_a_failed_job_whose_lease_was_overwritten_is_kept(
    redis: Redis, redis_server: Server, retry: Any, target: str
) -> None:
    def overwrite() -> None:
        redis.delete(INFLIGHT)
        redis.set(INFLIGHT, "no hash")
        raise ValueError("boom")

    forkq.job(name="Bad", retry=retry)(overwrite)
    redis.lpush(LIST, payload("Bad", retry=retry))
    with InProcessChild(redis_server.url, concurrency=1):
        wait_until(lambda: redis.zcard(target) == 1, what="the job")
        redis.delete(INFLIGHT)


def test_on_a_full_server_jobs_still_run_fail_and_die(own_server: Server) -> None:
    ran = good()
    failing(ValueError("boom"))
    redis = own_server.client()
    redis.lpush(LIST, payload("Bad", jid="retried"), payload("Bad", jid="dead", retry=0), b"{nope",
                payload("Good", "last"))  # fmt: skip
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    with InProcessChild(own_server.url, concurrency=1):
        settled(redis)
    assert ran == [["last"]]
    assert [found["jid"] for found in entries(redis, "retry")] == ["retried"]
    assert b"{nope" in redis.zrange("dead", 0, -1)
    assert redis.zcard("dead") == 2


# Suspects, and payloads that a fetch leaves in Redis

SUSPECTS, INDEX = "{queue:default}:suspects", "forkq:suspects"
FLAG: dict[str, Any] = {"forkq": {"suspect": True}}
LARGE = "x" * 300_000


def waiting_alone(redis: Redis) -> list[bytes]:
    found: Any = redis.lrange(SUSPECTS, 0, -1)
    return list(found)


def test_an_ordinary_child_moves_a_suspect_to_its_list_unrun(
    redis: Redis, redis_server: Server
) -> None:
    ran = good()
    for raw in (payload("Good", 1, **FLAG), payload("Good", 2), payload("Good", LARGE, **FLAG)):
        redis.lpush(LIST, raw)
    with InProcessChild(redis_server.url):
        settled(redis)
    assert ran == [[2]]
    assert sorted(map(len, waiting_alone(redis))) == sorted(
        len(payload("Good", arg, **FLAG)) for arg in (1, LARGE)
    )
    assert redis.smembers(INDEX) == {b"default"}


def test_a_solo_child_runs_suspects_and_no_other_job(redis: Redis, redis_server: Server) -> None:
    ran = good()
    redis.lpush(LIST, payload("Good", "ordinary"))
    redis.lpush(SUSPECTS, payload("Good", "first", **FLAG), payload("Good", LARGE, **FLAG))
    redis.sadd(INDEX, "default")
    with InProcessChild(redis_server.url, concurrency=1, solo=True):
        wait_until(lambda: not redis.exists(SUSPECTS, INFLIGHT, INDEX), what="both suspects")
    assert ran == [["first"], [LARGE]]
    assert redis.llen(LIST) == 1


def test_a_solo_child_that_has_emptied_a_queue_of_its_pattern_finds_the_next_one(
    redis: Redis, redis_server: Server
) -> None:
    """It removes the name of the queue itself, of which Redis does not tell it."""
    ran = good()
    with InProcessChild(redis_server.url, queue="tenant-*", concurrency=1, solo=True) as child:
        for number in range(3):
            wait_until(lambda: is_waiting(child.fetcher), what="the child to wait")
            with redis.pipeline() as pipe:
                pipe.lpush(f"{{queue:tenant-{number}}}:suspects", payload("Good", number, **FLAG))
                pipe.sadd(INDEX, f"tenant-{number}")
                pipe.execute()
            wait_until(lambda n=number: ran[n:] == [[n]], deadline=30, what="the suspect")  # type: ignore[misc]
    assert not redis.exists(INDEX)


def test_what_a_solo_child_leaves_goes_back_to_the_suspects(
    redis: Redis, redis_server: Server
) -> None:
    begun = threading.Event()

    @forkq.job(name="Good")
    def job() -> None:
        begun.set()
        while True:
            time.sleep(0.01)

    redis.lpush(SUSPECTS, payload("Good", **FLAG))
    with InProcessChild(redis_server.url, concurrency=1, solo=True) as child:
        wait_until(begun.is_set, what="the job")
        child.fetcher.quiet()
        child.manager.interrupt()
    assert waiting_alone(redis) == [payload("Good", **FLAG)]
    assert (redis.smembers(INDEX), redis.exists(LIST)) == ({b"default"}, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_large_payload_is_read_by_the_processor(
    redis: Redis, redis_server: Server, fails: bool
) -> None:
    """A failure keeps its arguments."""
    ran: list[int] = []

    @forkq.job(name="Good")
    def job(text: str) -> None:
        ran.append(len(text))
        if fails:
            raise OSError("no")

    redis.lpush(LIST, payload("Good", LARGE))
    with InProcessChild(redis_server.url):
        settled(redis)
    assert ran == [300_000]
    assert [len(found["args"][0]) for found in entries(redis, "retry")] == [300_000] * fails


def test_a_payload_that_no_process_decodes_is_buried_unread(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "LARGEST", 299_999)
    ran = good()
    redis.lpush(LIST, payload("Good", LARGE))
    with InProcessChild(redis_server.url):
        settled(redis)
    assert redis.zrange("dead", 0, -1) == [payload("Good", LARGE)]
    assert ran == []


@pytest.mark.parametrize("error", [MemoryError, settle.Unread])
def test_a_job_that_cannot_be_read_is_left_to_a_solo_child(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def read(*_: object) -> NoReturn:
        raise error("no")

    monkeypatch.setattr(settle.Settler, "read", read)
    ran = good()
    redis.lpush(LIST, payload("Good", LARGE), payload("Good", 1))
    with InProcessChild(redis_server.url) as child:
        settled(redis)
    child.log.lines.clear()  # which keep the error, and with it this child's connections
    assert waiting_alone(redis) == [payload("Good", LARGE)]
    assert ran == [[1]]
    assert redis.zcard("dead") == redis.zcard("retry") == 0


def test_a_solo_child_without_memory_for_its_job_ends(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which counts: three such deaths bury the job. The lease stays for the rescue."""
    codes: list[int] = []

    def end(code: int) -> NoReturn:
        codes.append(code)
        raise KeyboardInterrupt

    def load(raw: bytes) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(job_way, "exit_process", end)
    monkeypatch.setattr(job_way, "loads", load)
    redis.lpush(SUSPECTS, payload("Good", **FLAG))
    with InProcessChild(redis_server.url, concurrency=1, solo=True) as child:
        wait_until(lambda: codes and child.manager.idle, what="its end")
        assert redis.hlen(INFLIGHT) == 1
        assert child.log.events()[0] == "no memory for a job that runs alone; this child ends"
    child.log.lines.clear()  # as above
    assert codes == [71]
