"""Flows: each step starts once, when those before it have ended, and gets what these returned."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, process_state, registry
from forkq.clock.other_shards import OtherShards
from forkq.clock.standing_batches import StandingBatches
from forkq.clock.unfinished_flows import UnfinishedFlows
from forkq.flows import encoding
from forkq.store.connection import DamagedKey, RedisConnection
from forkq.store.scripts import FLOW_CHANGE
from forkq.wire.keys import Keys
from forkq.wire.payload import loads
from tests.redis.in_process_child import InProcessChild
from tests.redis.prefix_shards import config_at
from tests.redis.proxy import Proxy
from tests.redis.test_batches import work
from tests.support.documents import ROOT
from tests.support.recorded_log import RecordedLog
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
ran: list[Any] = []
gate = threading.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())
    monkeypatch.setattr(middleware, "pushes", middleware.Chain())
    ran.clear()
    gate.clear()
    yield
    gate.set()


def made(name: str, **options: Any) -> Any:
    """A job that notes its arguments and returns them; it fails if one of these is "bad"."""

    def perform(*args: Any) -> list[Any]:
        ran.append((name, *args))
        if "bad" in args:
            raise ValueError(name)
        return list(args)

    return forkq.job(name=name, **{"retry": 0, **options})(perform)


def state(bid: str) -> api.BatchReport:
    return api.Batch(bid).report()


def ends(redis: Redis, bid: str, count: int) -> list[int]:
    bits = redis.bitfield(KEYS.batch_ends(bid))
    for index in range(count):
        bits.get("u2", f"#{index}")
    found: Any = bits.execute()
    return [*found]


# A whole flow


def test_steps_get_what_those_before_have_returned(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    fetch = made("fetch")

    @forkq.job(name="resize")
    async def resize(page: list[str], width: int, *, more: Any = None) -> int:
        ran.append(("resize", page, width))
        return len(page[0]) * width

    flow = forkq.Flow("report")
    flow.add("download", fetch.s("abc"))
    flow.add("small", resize.s(flow.result("download"), 2), after=["download"])
    flow.add("large", resize.s(forkq.BEFORE, 5), after="download")
    flow.add(
        "all",
        fetch.s({"sizes": forkq.BEFORE, "of": [flow.result("download")]}),
        after=["large", "small"],
    )
    assert flow.push() == flow.bid
    with pytest.raises(TimeoutError, match="step 'all' has not ended within 0"):
        flow.get("all", timeout=0)
    work(redis, redis_server.url)
    assert flow.get("all") == [{"sizes": [15, 6], "of": [["abc"]]}]
    assert asyncio.run(flow.aget("small", timeout=5)) == 6
    report = state(flow.bid)
    assert (report.state, report.done, report.total, report.name) == ("succeeded", 4, 4, "report")
    assert [one[0] for one in ran] == ["fetch", "resize", "resize", "fetch"]
    assert redis.ttl(KEYS.flow_steps(flow.bid)) > 179 * 86_400


def test_who_waits_for_a_step_is_woken(client: Any, redis: Redis, redis_server: Server) -> None:
    @forkq.job(name="wait")
    def wait() -> str:
        gate.wait(20)
        return "late"

    flow = forkq.Flow("", wait.s() | made("last").s(forkq.BEFORE))
    flow.push()
    got: list[Any] = []

    async def both() -> None:
        got.append(await flow.aget("last", timeout=20))

    threads = [
        threading.Thread(target=lambda: got.append(flow.get("last", timeout=20))),
        threading.Thread(target=lambda: asyncio.run(both())),
    ]
    for thread in threads:
        thread.start()
    gate.set()
    work(redis, redis_server.url)
    for thread in threads:
        thread.join()
    assert got == [["late"], ["late"]]


def test_what_a_step_before_could_not_give(client: Any, redis: Redis, redis_server: Server) -> None:
    """A value that is too large is no failure of its step; who takes it is dead at once, whatever
    its retries. One that has ended badly gives None."""

    @forkq.job(name="large")
    def large() -> str:
        return "x" * 300_000

    take, job = made("take", retry=5), made("job")
    flow = forkq.Flow()
    flow.add("large", large.s())
    flow.add("takes", take.s(flow.result("large")), after=["large"])
    flow.add("bad", job.s("bad"))
    flow.add("runs", job.s(flow.result("bad"), 1), after=["bad"], on_failure="run")
    flow.push()
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 4) == [1, 2, 2, 1]
    assert flow.get("runs") == [None, 1]
    with pytest.raises(forkq.ResultTooLarge):
        flow.get("large")
    with pytest.raises(forkq.JobFailed, match="result of step 'large' was not kept") as failed:
        flow.get("takes")
    assert failed.value.outcome == "dead"
    assert ("take",) not in [one[:1] for one in ran]


def test_what_a_bad_end_means_for_the_next_steps(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = made("job")
    flow = forkq.Flow(
        "three", on_finish=made("told").s("finish"), on_success=made("also").s("success")
    )
    flow.add("bad", job.s("bad"))
    flow.add("waits", job.s(1), after=["bad"])
    flow.add("cancelled", job.s(2), after=["bad"], on_failure="cancel")
    flow.add("behind", job.s(3), after=["cancelled"], on_failure="cancel")
    flow.add("runs", job.s(4), after=["bad"], on_failure="run")
    flow.add("mixed", job.s(5), after=["bad", "runs"], on_failure={"bad": "run"})
    flow.push()
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 6) == [2, 0, 3, 3, 1, 1]
    assert [one[1:] for one in ran] == [("bad",), (4,), (5,)]
    with pytest.raises(forkq.JobCancelled, match=r"'behind' of .* was cancelled before it"):
        flow.get("behind", timeout=5)
    assert state(flow.bid).waiting == 1
    job_again = forkq.job(name="job", retry=0)
    registry._jobs.pop("job")
    job_again(lambda *args: ran.append(("again", *args)))
    assert api.Batch(flow.bid).retry_dead().done == 1
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 6) == [1, 1, 3, 3, 1, 1]
    assert ran[3:] == [("again", "bad"), ("again", 1), ("told", "finish")]


def test_steps_that_never_start_count_as_ignored(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """A flow that ignores what was cancelled succeeds, though a bad end has cancelled steps."""
    job = made("job", retry=0, dead=False)
    flow = forkq.Flow(ignore=("dropped", "cancelled"), on_success=made("also").s("success"))
    flow.add("bad", job.s("bad"))
    flow.add("cancelled", job.s(1), after=["bad"], on_failure="cancel")
    flow.add("behind", job.s(2), after=["cancelled"], on_failure="cancel")
    flow.push()
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 3) == [3, 3, 3]
    assert redis.hget(KEYS.batch(flow.bid), "ignored") == b"3"
    assert ran == [("job", "bad"), ("also", "success")]


def test_a_cancelled_flow_starts_nothing_more(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = made("job")
    flow = forkq.Flow("", on_finish=made("told").s("finish"))
    flow.add("bad", job.s("bad"))
    flow.add("waits", job.s(1), after=["bad"])
    flow.add("first", job.set(queue="paused").s(2))
    flow.add("next", job.s(3), after=["first", "waits"], on_failure="run")
    flow.push()
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 4) == [2, 0, 0, 0]
    api.Batch(flow.bid).cancel()
    assert ends(redis, flow.bid, 4) == [2, 3, 0, 3]
    work(redis, redis_server.url, until=lambda: ends(redis, flow.bid, 4)[2] == 3 and len(ran) == 2)
    assert ran == [("job", "bad"), ("told", "finish")]
    assert not redis.hexists(KEYS.flow_steps(flow.bid), "job:1")
    with pytest.raises(forkq.ForkqError, match="is a flow, whose steps are pushed by one call"):
        api.Batch(flow.bid).seal()


def test_a_large_flow_is_cancelled_by_short_calls(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """Each call leaves the next one no more than where to go on: nothing is told of each step."""
    job = made("job")
    flow = forkq.Flow("", job.s(-1) | forkq.group(*(job.s(n) for n in range(1201))) | job.s("end"))
    flow.push()
    steps, todos = KEYS.flow_steps(flow.bid), list[Any]()
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        while not todos or todos[-1] is not None:
            connection.script(FLOW_CHANGE, KEYS.of_flow(flow.bid, ()), (1, "cancel"))
            todos.append(redis.hget(steps, "todo"))
    assert [each and each.count(b",") for each in todos] == [1, 1, None]
    assert ends(redis, flow.bid, 1203) == [0, *[3] * 1202]
    assert redis.ttl(KEYS.batch_ends(flow.bid)) > 179 * 86_400
    assert not redis.exists(KEYS.flows_unfinished)


def test_a_flow_in_the_block_of_a_batch_is_a_member(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = made("job")
    with forkq.Batch("outer", on_success=made("told").s("success")) as batch:
        job.perform_async(0)
        forkq.Flow("inner", job.s(1) | job.s(2)).push()
    work(redis, redis_server.url)
    assert ran[-1] == ("told", "success")
    assert state(batch.bid).state == "succeeded"
    assert len(state(batch.bid).children) == 1


def test_a_step_that_is_nowhere_has_ended_otherwise(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """Its next steps hear of it. Those that have not started are in no queue, and not missed."""
    job = made("job")
    flow = forkq.Flow()
    flow.add("lost", job.s(1))
    flow.add("runs", job.s(2), after=["lost"], on_failure="run")
    flow.add("waits", job.s(3), after=["runs"])
    flow.push()
    redis.delete("schedule")
    connection = RedisConnection(redis_server.url)
    connection.connect()
    others = OtherShards(config_at(redis_server.url))
    leader = StandingBatches(KEYS, connection, others, RecordedLog())
    for _ in range(3):
        leader.load(watch=False)
        leader.work()
        while leader._steps is not None:
            leader.work()
    connection.close()
    assert ends(redis, flow.bid, 3) == [3, 0, 0]
    with pytest.raises(forkq.JobFailed, match="it was deleted"):
        flow.get("lost", timeout=0)
    work(redis, redis_server.url)
    assert [one[1] for one in ran] == [2, 3]


def test_a_step_expires_from_its_start_on(client: Any, redis: Redis, redis_server: Server) -> None:
    job = made("job")
    flow = forkq.Flow("", job.s(1) | job.set(expires_in=300).s(2))
    flow.push()
    with InProcessChild(redis_server.url):
        waiting: Any = redis.zrange("schedule", 0, -1)
        first = waiting[0]
        redis.delete("schedule")
        redis.lpush("queue:default", first)
        wait_until(lambda: redis.zcard("schedule") == 1, what="the start of the second step")
    waiting = redis.zrange("schedule", 0, -1, withscores=True)
    [(raw, started)] = waiting
    assert loads(raw)["expiry"] == pytest.approx(started + 300, abs=0.001)
    assert "enqueued_at" not in loads(first)


# The push


def test_nothing_starts_before_all_is_there(
    client: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large flow the parts go one by one. Each may be sent again, and comes to nothing once
    the last one was there; a pusher that dies before leaves a flow that starts nothing."""
    monkeypatch.setattr(encoding, "_AT_ONCE", 2)
    job = made("job")
    flow = forkq.Flow("", forkq.group(*(job.s(number) for number in range(5))) | job.s(5))
    sent: list[Any] = []
    flow._prepare(client)
    with monkeypatch.context() as patched:
        patched.setattr(flow, "_run", lambda *part: sent.append(part))
        flow._send_all()
    assert [len(page) for _, _, page in sent] == [2, 2, 2]
    for part in (*sent[:2], sent[0]):
        flow._run(*part)
    assert state(flow.bid).state == "open"
    assert not redis.exists("schedule")
    flow.push()
    assert redis.zcard("schedule") == 5
    redis.delete("schedule")
    for part in sent:
        flow._run(*part)
    flow.push()
    assert not redis.exists("schedule")
    assert ends(redis, flow.bid, 6) == [0] * 6


def test_a_flow_that_a_member_has_not_pushed_to_its_end_is_closed_by_a_person(
    client: Any, redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was killed between two parts, and its next run pushes another flow: the batch
    waits for the first one until it is cancelled. Then that takes no further part."""
    monkeypatch.setattr(encoding, "_AT_ONCE", 2)
    job, flows = made("job"), list[forkq.Flow]()

    @forkq.job(name="member", retry=3)
    def member() -> None:
        with forkq.Batch.current():
            flow = forkq.Flow("", forkq.group(*(job.s(n) for n in range(3))))
            flows.append(flow)
            run, parts = flow._run, list[Any]()

            def die_behind_the_first(*part: Any) -> None:
                if len(flows) == 1 and parts:
                    raise forkq.Snooze(0.001)
                parts.append(part)
                run(*part)

            monkeypatch.setattr(flow, "_run", die_behind_the_first)
            flow.push()

    with forkq.Batch(on_finish=made("told").s("finish")) as batch:
        member.perform_async()
    work(redis, redis_server.url, until=lambda: len([one for one in ran if one[0] == "job"]) == 3)
    assert (state(flows[0].bid).state, state(batch.bid).state) == ("open", "waiting")
    api.Flow(flows[0].bid).cancel()
    work(redis, redis_server.url, until=lambda: ("told", "finish") in ran)
    assert len([one for one in ran if one[0] == "job"]) == 3
    with pytest.raises(forkq.BatchFinished, match="was cancelled: no step of it starts"):
        flows[0]._send_all()


def test_a_lost_reply_pushes_nothing_twice(redis: Redis, redis_server: Server) -> None:
    """Once: the push sends it again. Twice: it raises, and the caller may push again."""
    proxy = Proxy(redis_server.port or 0)
    through = forkq.configure(proxy.url, environ={})
    job = made("job")
    once, twice = forkq.Flow("", job.s(1) | job.s(2)), forkq.Flow("", job.s(3) | job.s(4))
    proxy.cut(once.bid.encode())
    once.push()
    assert proxy.cuts == 1
    proxy.cut(twice.bid.encode(), times=2)
    with pytest.raises(forkq.ServerUnavailable):
        twice.push()
    assert proxy.cuts == 2
    assert twice.push() == twice.bid
    assert redis.zcard("schedule") == 2
    assert [state(flow.bid).total for flow in (once, twice)] == [2, 2]
    through.close()
    proxy.close()


def test_queues_that_get_steps_and_callbacks_are_looked_for(client: Any, redis: Redis) -> None:
    job, told = made("job"), list[set[str]]()
    client.pushed_to = lambda queues: told.append(set(queues))
    later = job.set(queue="later").s(2)
    forkq.Flow("", job.s(1) | later, on_finish=job.set(queue="end").s(3)).push()
    with forkq.Batch(on_death=job.set(queue="end").s(4)):
        pass
    assert told == [{"default", "later", "end"}, {"end"}]


def test_a_flow_that_holds_up_an_event_loop_says_so(client: Any, redis: Redis) -> None:
    job = made("job")

    async def main() -> None:
        flow = forkq.Flow("", job.s(1))
        with pytest.warns(forkq.BlockingPushWarning, match=r"await flow\.apush\(\)"):
            flow.push()
        with (
            pytest.warns(forkq.BlockingPushWarning, match=r"await flow\.aget"),
            pytest.raises(TimeoutError),
        ):
            flow.get("job", timeout=0)

    asyncio.run(main())


def test_what_is_refused_before_anything_is_pushed(client: Any, redis: Redis) -> None:
    job, only = made("job"), made("only", unique_for=60)
    not_a_step: Any = 7
    cases: list[tuple[Any, str]] = [
        (lambda f: f.push(), "has no step"),
        (lambda f: f.add("a", job.s(2)), "has a step 'a' already"),
        (lambda f: f.add("", job.s(2)), "'' is no name of a step"),
        (lambda f: f.add("x\n", job.s(2)), "is no name of a step"),
        (lambda f: f.add("x", job), "step 'x' takes a job with its arguments"),
        (lambda f: f.add("x", only.s(2)), r"has `unique_for`.*`.set\(unique_for=0\)`"),
        (lambda f: f.add("x", job.set(throttle="1/minute").s(2)), "has `throttle`"),
        (lambda f: f.add("x", job.set(once=True).s(2)), r"has `once`.*`.set\(once=False\)`"),
        (lambda f: f.add("x", job.set({"at": 5.0}).s(2)), "has `at`, and a step of a flow has no"),
        (lambda f: f.add("x", job.s(2), after=["a", "a"]), "after= has 'a' twice"),
        (lambda f: f.add("x", job.s(2), after=7), "after= is 7; pass a list"),
        (lambda f: f.add("x", job.s(2), after=["a"], on_failure="stop"), "on_failure is 'stop'"),
        (lambda f: f.add("x", job.s(2), on_failure={"a": "run"}), "on_failure= names 'a', after="),
        (lambda f: f.add("x", job.s(forkq.BEFORE)), "'x': BEFORE is the result of"),
        (lambda f: (f.add("x", job.s(2), after=["aa"]), f.push()), "after 'aa'.*did you mean 'a'"),
        (
            lambda f: (f.add("x", job.s(f.result("a"))), f.push()),
            r"takes the result of 'a', and does not come after it: write after=\['a'\]",
        ),
        (
            lambda f: (
                f.add("x", job.s(2), after=["z", "a"]),
                f.add("y", job.s(2), after=["x"]),
                f.add("z", job.s(2), after=["y"]),
                f.push(),
            ),
            "in a circle: 'x' after 'z' after 'y' after 'x'",
        ),
        (lambda f: (f.add("x", job.s(object())), f.push()), "step 'x': .*which JSON does not know"),
        (lambda f: forkq.Flow("", not_a_step), "7 is no step"),
        (lambda f: job.s(1) | job, r"is no step: write the job with its arguments, j\.s\(7\)"),
        (lambda f: forkq.Flow(job.s(1)), "the name is .*; pass a text"),
    ]
    for act, said in cases:
        flow = forkq.Flow()
        if "no step:" not in said and said != "has no step":
            flow.add("a", job.s(1))
        with pytest.raises(forkq.InvalidJob, match=said):
            act(flow)
    assert not [*redis.scan_iter()]


def test_a_veto_of_one_step_refuses_the_flow(client: Any, redis: Redis) -> None:
    @middleware.client.append
    def veto(job: dict[str, Any], call: Any) -> Any:
        return None if job["args"] == [2] else call()

    job = made("job")
    flow = forkq.Flow("", job.s(1) | job.s(2))
    with pytest.raises(forkq.InvalidJob, match="step 'job-2': a middleware has vetoed its push"):
        flow.push()
    assert not [*redis.scan_iter()]


def test_a_flow_that_was_pushed_takes_no_step(client: Any) -> None:
    job = made("job")
    flow = forkq.Flow("", job.s(1))
    flow.push()
    with pytest.raises(forkq.ForkqError, match="was pushed: make a new flow"):
        flow.add("late", job.s(2))


def test_who_asks_for_what_is_not_there(client: Any, redis: Redis) -> None:
    flow = forkq.Flow("", made("job").s(1))
    with pytest.raises(forkq.ForkqError, match="''> was not pushed"):
        flow.get("job")
    flow.push()
    said = f"no step 'jib' of a flow {flow.bid}: its name is another"
    with pytest.raises(forkq.ResultUnknown, match=said):
        flow.get("jib")


def test_a_step_cannot_wait_for_one_of_its_capsule(
    client: Any, redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_state, "_served", ("def*",))
    job = made("job")
    said: list[Any] = []

    @forkq.job(name="waits")
    def waits() -> None:
        flow = forkq.Flow("", job.s(1))
        flow.push()
        with pytest.raises(forkq.ForkqError, match="which its own capsule is to run") as error:
            flow.get("job", timeout=5)
        said.append(error)

    waits.perform_async()
    work(redis, redis_server.url)
    assert said


def test_a_step_is_no_member_that_takes_more(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    said: list[str] = []

    @forkq.job(name="grows", retry=0)
    def grows() -> None:
        try:
            forkq.Batch.current()
        except forkq.ForkqError as error:
            said.append(str(error))

    forkq.Flow("", grows.s()).push()
    work(redis, redis_server.url)
    assert said == ["this job is a step of a flow, which takes steps alone: no batch"]


def test_one_step_with_more_dependents_than_one_call_tells(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """What the script that ends it leaves, the clock goes on with."""
    job = made("job")
    flow = forkq.Flow("", job.s(-1) | forkq.group(*(job.s(n) for n in range(1201))) | job.s("end"))
    flow.push()
    work(redis, redis_server.url)
    assert len(ran) == 1203
    assert ran[-1] == ("job", "end")
    assert not redis.exists(KEYS.flows_unfinished)
    assert state(flow.bid).state == "succeeded"


def test_what_is_damaged_beside_a_flow_that_goes_on(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """A flow of another type keeps no other one from its steps. A schedule of another type is told
    of, and not asked again and again."""
    flow = forkq.Flow("", made("job").s(1))
    redis.set("schedule", "x")
    flow.push()
    damaged, whole = KEYS.batch("damaged"), KEYS.batch(flow.bid)
    redis.set(damaged, "x")
    redis.sadd(KEYS.flows_unfinished, damaged)
    with closing(RedisConnection(redis_server.url)) as connection:
        connection.connect()
        clock = UnfinishedFlows(KEYS, connection)
        clock.load(watch=False)
        with pytest.raises(DamagedKey, match='"schedule" holds something else'):
            clock.work()
        assert redis.smembers(KEYS.flows_unfinished) == {damaged.encode(), whole.encode()}
        redis.delete("schedule")
        while clock.next_due() is not None:
            clock.work()
    assert not redis.exists(KEYS.flows_unfinished)
    work(redis, redis_server.url)
    assert ran == [("job", 1)]


def test_the_first_part_of_a_flow_is_refused_where_its_batch_has_finished(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = made("job")
    with forkq.Batch("outer") as outer:
        flow = forkq.Flow("", job.s(1))
        api.Batch(outer.bid).cancel()
        with pytest.raises(forkq.BatchFinished):
            flow.push()
    assert not redis.exists(KEYS.batch(flow.bid), KEYS.flow_steps(flow.bid))


def test_the_page_says_what_is_true(client: Any, redis: Redis, redis_server: Server) -> None:
    """Its examples run, and their flows come to their ends."""
    page = (ROOT / "docs" / "flows.md").read_text()
    names: dict[str, Any] = {"__name__": "shop"}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "flows.md", "exec"), names)  # noqa: S102 - a page of ours
    work(redis, redis_server.url)
    assert names["wait"](names["flow"]) == 2
    assert asyncio.run(names["wait_in_a_loop"](names["short"])) == 2
    assert names["short"].get("resize-2") == {"path": "/pages/20.html", "width": 900}
    for flow in ("flow", "short", "whole"):
        assert state(names[flow].bid).state == "succeeded"
