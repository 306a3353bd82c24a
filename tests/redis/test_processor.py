"""A job's way through real processors: performed, retried, buried, and never harmful."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from redis import Redis

import forkq
from forkq import middleware, registry
from forkq.child.processor import Processor
from forkq.child.stats import Totals
from forkq.errors import Shutdown
from forkq.lease import Unit
from forkq.payload import dumps
from tests.redis.crew import Shop
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


def test_a_hundred_malformed_payloads_are_buried_verbatim_and_the_processors_unharmed(
    redis: Redis, redis_server: Server
) -> None:
    ran, payloads = good(), malformed()
    assert len(set(payloads)) == 100
    redis.lpush(LIST, *payloads)
    redis.lpush(LIST, payload("Good", "after"))
    with Shop(redis_server.url, concurrency=3) as shop:
        settled(redis)
        assert ran == [["after"]]
        assert len(shop.processors) == 3
        assert all(processor.alive for processor in shop.processors)
        assert set(redis.zrange("dead", 0, -1)) == set(payloads)
        assert redis.exists("retry") == 0
        wait_until(lambda: shop.manager.tally().processed == 101, what="the tally")
        assert shop.manager.tally().failed == 100
    assert shop.log.events().count("malformed payload, buried as it came") == 100


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
    with Shop(redis_server.url, concurrency=1) as shop:
        redis.lpush(
            LIST, dumps({"class": "Bad", "args": [1], "jid": "m1", **keys}), payload("Good")
        )
        settled(redis)
        assert ran == [[]]
        assert len(shop.processors) == 1
        assert shop.processors[0].alive
    assert redis.zcard("retry") + redis.zcard("dead") == 1


def test_an_unknown_class_is_retried_like_retry_true(redis: Redis, redis_server: Server) -> None:
    with Shop(redis_server.url):
        redis.lpush(LIST, b'{"class":"Nope","args":[1],"jid":"m8b"}')
        settled(redis)
    [found] = entries(redis, "retry")
    assert (found["retry"], found["retry_count"], found["queue"]) == (True, 0, "default")
    assert found["error_class"] == "forkq.errors.UnknownJob"


def test_a_payload_without_args_runs_without_arguments(redis: Redis, redis_server: Server) -> None:
    ran = good()
    with Shop(redis_server.url):
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
    with Shop(redis_server.url):
        redis.lpush(LIST, payload("Bad", 1, retry=True, custom="x"))
        settled(redis)
    [found] = entries(redis, "retry")
    assert found.pop("failed_at") > 1.7e9
    assert found == {
        "class": "Bad", "args": [1], "jid": "m1", "queue": "default", "retry": True, "custom": "x",
        "error_message": "boom é", "error_class": "ValueError", "retry_count": 0,
    }  # fmt: skip
    assert redis.exists("dead") == 0


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), Shutdown()])
def test_a_job_that_tries_to_end_its_process_just_fails(
    redis: Redis, redis_server: Server, error: BaseException
) -> None:
    failing(error)
    with Shop(redis_server.url, concurrency=1) as shop:
        redis.lpush(LIST, payload("Bad"))
        settled(redis)
        assert shop.processors[0].alive
    assert entries(redis, "retry")[0]["error_class"].endswith(type(error).__name__)


def test_an_exhausted_job_runs_its_hook_is_buried_and_then_mourned(
    redis: Redis, redis_server: Server
) -> None:
    order: list[str] = []
    failing(ValueError("x"), retries_exhausted=lambda job, exc: order.append("exhausted"))

    @forkq.on_death
    def broken(job: dict[str, Any], error: BaseException) -> None:
        raise KeyError("in the handler")

    @forkq.on_death
    def mourn(job: dict[str, Any], error: BaseException) -> None:
        order.append(f"{job['jid']} {error} {redis.zcard('dead')} dead")

    with Shop(redis_server.url) as shop:
        redis.lpush(LIST, payload("Bad", retry=0))
        wait_until(lambda: len(order) == 2, what="the death handlers")
        settled(redis)
    assert order == ["exhausted", "m1 x 1 dead"]
    assert "a death handler failed" in shop.log.events()


@pytest.mark.parametrize(
    ("keys", "dead", "mourned"),
    [
        ({"retry": False}, 0, 1),
        ({"retry": 0, "dead": False}, 0, 1),
        ({"retry": 0}, 1, 1),
        ({"retry": 2}, 0, 0),
    ],
)
def test_death_handlers_hear_of_every_job_that_is_given_up(
    redis: Redis, redis_server: Server, keys: dict[str, Any], dead: int, mourned: int
) -> None:
    failing(ValueError("x"))
    heard: list[str] = []
    forkq.on_death(lambda job, error: heard.append(job["jid"]))
    with Shop(redis_server.url):
        redis.lpush(LIST, payload("Bad", **keys))
        settled(redis)
    assert (redis.zcard("dead"), len(heard)) == (dead, mourned)


def test_error_handlers_hear_of_a_failure_and_their_own_errors_change_nothing(
    redis: Redis, redis_server: Server
) -> None:
    failing(ValueError("x"))
    heard: list[Any] = []

    @forkq.on_error
    def broken(error: BaseException, context: dict[str, Any]) -> None:
        heard.append((str(error), context["job"]["jid"]))
        raise KeyError("in the handler")

    with Shop(redis_server.url):
        redis.lpush(LIST, payload("Bad"))
        settled(redis)
    assert heard == [("x", "m1")]
    assert redis.zcard("retry") == 1


def test_only_perform_itself_is_judged_by_the_jobs_own_hooks(
    redis: Redis, redis_server: Server
) -> None:
    """The two rings: middleware that fails is retried by the default, unasked."""
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

    with Shop(redis_server.url):
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

    with Shop(redis_server.url):
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

    with Shop(redis_server.url):
        redis.lpush(LIST, b'{"class":"Curious","args":[],"jid":"m1","retry_count":2,"custom":[1]}')
        settled(redis)
    assert seen == [("m1", "default", 2, [1])]


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
    shop = Shop(redis_server.url, concurrency=1)
    with shop:
        assert inside.wait(10)
        shop.manager.quiet()
        assert shop.manager.interrupt() == 1
        assert cleaned.wait(10)
        wait_until(lambda: shop.manager.idle, what="the processor's end")
    assert shop.manager.tally() == Totals()
    assert redis.lrange(LIST, 0, -1) == [payload("Good", "next"), payload("Long")]
    assert redis.exists("retry", "dead", INFLIGHT) == 0


def test_each_registered_class_has_figures_of_its_own(redis: Redis, redis_server: Server) -> None:
    """Names that nobody registered come from anywhere: they count, and get no figures."""
    failing(ValueError("x"))
    good()

    @forkq.job(name="Slow")
    def slow() -> None:
        time.sleep(0.025)

    with Shop(redis_server.url) as shop:
        redis.lpush(LIST, *[payload("Good")] * 3, payload("Bad"), payload("Unknown"), b"nonsense")
        redis.lpush(LIST, payload("Slow"), payload("Slow", "too", "many", "arguments"))
        settled(redis)
        wait_until(lambda: shop.manager.counts() == (8, 4), what="the counts")
    totals = shop.manager.tally()
    assert (totals.processed, totals.failed) == (8, 4)
    assert totals.classes.keys() == {"Good", "Bad", "Slow"}
    figures = {name: (row[0], sum(row[2:])) for name, row in totals.classes.items()}
    assert figures == {"Good": (0, 3), "Bad": (1, 0), "Slow": (1, 1)}
    assert totals.classes["Slow"][1] >= 25
    assert totals.classes["Slow"][2] == 0  # not in the bucket of what is shorter than 20 ms


def test_run_times_are_right_though_the_wall_clock_is_set_meanwhile(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = time.time

    @forkq.job(name="Good")
    def job() -> None:
        monkeypatch.setattr(time, "time", lambda: wall() - 3600)

    with Shop(redis_server.url, concurrency=1) as shop:
        redis.lpush(LIST, payload("Good"))
        wait_until(lambda: shop.manager.counts() == (1, 0), what="the count")
    monkeypatch.undo()
    milliseconds = shop.manager.tally().classes["Good"][1]
    assert 0 <= milliseconds < 60_000


def test_the_end_of_a_job_with_our_notes_is_told_with_its_outcome(
    redis: Redis, redis_server: Server
) -> None:
    """Periodic jobs are among them; all others cost nothing."""
    failing(ValueError("x"))
    good()
    told: list[tuple[str, str]] = []
    shop = Shop(redis_server.url)
    for processor in shop.processors:
        processor._on_end = lambda job, outcome, elapsed: told.append((job["jid"], outcome))
    with shop:
        notes: dict[str, Any] = {"forkq": {"cron": "n"}}
        redis.lpush(
            LIST,
            payload("Good", jid="done", **notes),
            payload("Good", jid="no notes"),
            payload("Bad", jid="retry", **notes),
            payload("Bad", jid="dead", retry=0, **notes),
            payload("Bad", jid="dropped", retry=False, **notes),
        )
        wait_until(lambda: shop.manager.counts() == (5, 3), what="the counts")
        settled(redis)
        wait_until(lambda: len(told) == 4, what="four ends")
    assert sorted(told) == [(name, name) for name in ("dead", "done", "dropped", "retry")]


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
    with Shop(redis_server.url, concurrency=1) as shop:
        assert inside.wait(10)
        shop.manager.quiet()
        shop.manager.interrupt()
        wait_until(lambda: shop.manager.idle, what="the processor's end")
    assert redis.lrange(LIST, 0, -1) == [payload("Long")]
    assert redis.exists("retry", "dead") == 0


def test_a_dead_processor_is_replaced_and_its_job_runs_again(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = good()
    with Shop(redis_server.url, concurrency=2) as shop:
        wait_until(lambda: shop.fetcher._waiting, what="the shop to wait")
        victims: list[str] = []
        process = Processor.process

        def die(self: Processor, unit: Unit) -> None:
            if not victims:
                victims.append(threading.current_thread().name)
                raise SystemExit
            process(self, unit)

        monkeypatch.setattr(Processor, "process", die)
        redis.lpush(LIST, payload("Good", "twice"))
        wait_until(lambda: not all(p.alive for p in shop.processors), what="a processor's death")
        shop.manager.replace_the_dead()
        settled(redis)
        assert len(shop.processors) == 3
        assert ran == [["twice"]]


def test_what_a_dead_processor_had_counted_stays_counted(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    good()
    with Shop(redis_server.url, concurrency=1) as shop:
        redis.lpush(LIST, *[payload("Good")] * 5)
        wait_until(lambda: shop.manager.counts() == (5, 0), what="the counts")
        monkeypatch.setattr(shop.processors[0], "process", _die)
        redis.lpush(LIST, payload("Good"))
        wait_until(lambda: not shop.processors[0].alive, what="the processor's death")
        assert shop.manager.counts() == (5, 0)
        shop.manager.replace_the_dead()
        wait_until(lambda: shop.manager.counts() == (6, 0), what="the count of its heir")
    row = shop.manager.tally().classes["Good"]
    assert sum(row[2:]) == 6


def _die(unit: Unit) -> NoReturn:
    """What ends the thread of a processor."""
    raise SystemExit


@pytest.mark.parametrize(("retry", "target"), [(True, "retry"), (0, "dead")])
def test_what_redis_does_not_take_is_kept_and_settled_later(
    own_server: Server, retry: Any, target: str
) -> None:
    """Redis refuses in the middle of the script (here: by an ACL); the lease stays."""
    failing(ValueError("boom"))
    redis = own_server.client()
    with Shop(own_server.url, concurrency=2) as shop:
        own_server.cli("ACL", "SETUSER", "default", "-zadd")
        redis.lpush(LIST, payload("Bad", retry=retry))
        assert shop.parked.wait(10)
        assert shop.settler.again() is True
        assert redis.hlen(INFLIGHT) == 1
        own_server.cli("ACL", "SETUSER", "default", "+zadd")
        assert shop.settler.again() is False
        assert redis.zcard(target) == 1
        assert redis.exists(INFLIGHT) == 0


def test_on_a_full_server_jobs_still_run_fail_and_die(own_server: Server) -> None:
    ran = good()
    failing(ValueError("boom"))
    redis = own_server.client()
    redis.lpush(LIST, payload("Bad", jid="retried"), payload("Bad", jid="dead", retry=0), b"{nope",
                payload("Good", "last"))  # fmt: skip
    own_server.cli("CONFIG", "SET", "maxmemory", 1)
    with Shop(own_server.url, concurrency=1):
        settled(redis)
    assert ran == [["last"]]
    assert [found["jid"] for found in entries(redis, "retry")] == ["retried"]
    assert b"{nope" in redis.zrange("dead", 0, -1)
    assert redis.zcard("dead") == 2
