"""Flows in work: steps add further ones, people look and act; and the known faults of other systems
with graphs of jobs, each as a flow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, registry
from forkq.flows import encoding
from forkq.wire.keys import Keys
from tests.redis import test_flows
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.shell import Shell
from tests.redis.test_batches import work
from tests.redis.test_flows import ends, made, ran, state
from tests.support.server import Server
from tests.support.waiting import wait_until

KEYS = Keys()
clean = test_flows.clean


def said_by(shell: Shell, line: str, *more: str) -> str:
    assert shell(line, *more) == 0, shell.err
    return shell.out


def test_what_another_program_has_written_hides_no_batch_and_no_flow(
    client: Any, redis: Redis
) -> None:
    job = made("job")
    flow = forkq.Flow("", job.s(1) | job.s(2))
    flow.push()
    with forkq.Batch("odd") as batch:
        job.perform_async(3)
    odd: Any = {"total": "nan", "dead": "inf", "at": "soon", "pushed_at": "-inf"}
    redis.hset(KEYS.batch(batch.bid), mapping=odd)
    redis.hset(KEYS.cancelled, f"paused:{batch.bid}", "nan")
    redis.hset(KEYS.flow_steps(flow.bid), "next:0", b"\xff1w")
    found = {one.bid: one for one in api.batches() + api.flows()}
    assert [found[flow.bid].total, found[batch.bid].total, found[batch.bid].dead] == [2, 0, 0]
    assert found[batch.bid].paused_at == 0
    assert [step.name for step in api.Flow(flow.bid).steps()] == ["job", "job-2"]


def test_a_flow_that_is_paused_says_so(client: Any, environment: None, shell: Shell) -> None:
    """Nothing else on its page would say why no step goes on."""
    flow = forkq.Flow("", made("job").s(1) | made("job").s(2))
    flow.push()
    assert "paused" not in said_by(shell, f"flows show {flow.bid}")
    said_by(shell, f"batches pause {flow.bid}")
    said = said_by(shell, f"flows show {flow.bid}")
    assert f"and its steps wait: `forkq batches resume {flow.bid}`" in said


# Grafting


def test_a_step_adds_further_steps_once(client: Any, redis: Redis, redis_server: Server) -> None:
    """Also if it fails behind that and runs again, and though its second run says other things."""
    job, runs = made("job"), []

    @forkq.job(name="discover", retry=3, backoff=0.01)
    def discover(pages: int) -> int:
        runs.append(1)
        flow = forkq.Flow.current()
        for page in range(pages):
            flow.add(f"page-{page}", job.s(len(runs), page))
        flow.add("ready", job.s("ready"), after=["page-0", "before", "discover"])
        flow.add(
            "total",
            job.s(flow.result("page-1"), flow.result("discover")),
            after=[*(f"page-{page}" for page in range(pages)), "discover"],
        )
        flow.push()
        if len(runs) == 1:
            raise ValueError("killed behind the push")
        return pages

    flow = forkq.Flow("crawl")
    flow.add("before", job.s("before"))
    flow.add("discover", discover.s(3), after=["before"])
    flow.add("after", job.s("after"), after=["discover"])
    flow.push()
    work(redis, redis_server.url, until=lambda: state(flow.bid).done == 8)
    assert len(runs) == 2
    assert state(flow.bid).state == "succeeded"
    assert sorted(one[1:] for one in ran if one[1] == 1) == [(1, 0), (1, 1), (1, 2)]
    assert flow.get("total") == [[1, 1], 3]
    names = [step.name for step in api.Flow(flow.bid).steps()]
    pages = [f"page-{number}" for number in range(3)]
    assert sorted(names) == ["after", "before", "discover", *pages, "ready", "total"]
    assert names.index("discover") < names.index("total") > names.index("page-2")


def test_what_a_step_cannot_add(client: Any, redis: Redis, redis_server: Server) -> None:
    job, said = made("job"), []

    @forkq.job(name="grows", retry=0)
    def grows() -> None:
        cases: list[tuple[str, list[str], str]] = [
            ("other", [], "a step 'other' already, and this step has not added it"),
            ("new", ["nowhere"], "comes after 'nowhere', and the flow has no such step"),
        ]
        for name, after, text in cases:
            flow = forkq.Flow.current()
            flow.add("fine", job.s("x"))
            flow.add(name, job.s(1), after=after)
            with pytest.raises(forkq.InvalidJob, match=text):
                flow.push()
            said.append(name)

    flow = forkq.Flow()
    flow.add("grows", grows.s())
    flow.add("other", job.s(0), after=["grows"])
    flow.push()
    work(redis, redis_server.url)
    assert said == ["other", "new"]
    assert ran == [("job", 0)]
    assert state(flow.bid).total == 2
    with pytest.raises(forkq.ForkqError, match=r"Flow\.current\(\) was called outside"):
        forkq.Flow.current()


def test_a_step_behind_ended_ones_starts_or_ends_at_once(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    job = made("job")

    @forkq.job(name="late", retry=0)
    def late() -> None:
        flow = forkq.Flow.current()
        flow.add("met", job.s(1), after=["good"])
        flow.add("gone", job.s(2), after=["bad", "good"], on_failure="cancel")
        flow.add("waits", job.s(3), after=["bad"])
        flow.add("runs", job.s(4), after=["bad", "late"], on_failure="run")
        flow.add("behind", job.s(5), after=["gone"], on_failure="run")
        flow.push()
        flow.add("again", job.s(6), after=["behind"])
        flow.push()

    flow = forkq.Flow()
    flow.add("good", job.s(0))
    flow.add("bad", job.s("bad"))
    flow.add("late", late.s(), after=["good", "bad"], on_failure="run")
    flow.push()
    work(redis, redis_server.url)
    assert ends(redis, flow.bid, 9) == [1, 2, 1, 1, 3, 0, 1, 1, 1]
    assert sorted(one[1] for one in ran[2:]) == [1, 4, 5, 6]


def test_a_flow_that_is_cancelled_takes_no_step(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    said: list[Any] = []

    @forkq.job(name="grows", retry=0)
    def grows() -> None:
        flow = forkq.Flow.current()
        api.Flow(flow.bid)._flow()  # it is there
        redis.hset(KEYS.batch(flow.bid), "state", "cancelled")
        flow.add("more", grows.s())
        with pytest.raises(forkq.BatchFinished):
            flow.push()
        said.append(flow.bid)

    forkq.Flow("", grows.s()).push()
    work(redis, redis_server.url)
    assert said


# People


def shop(redis: Redis, url: str) -> forkq.Flow:
    """A flow of which a step is dead."""
    job = made("job")
    flow = forkq.Flow("shop")
    flow.add("fetch", job.s("bad"))
    flow.add("other", job.s(1))
    for number in range(15):
        flow.add(f"cut-{number}", job.s(number), after=["fetch"])
    flow.add("mail", job.s(2), after=["cut-0", "other"], on_failure={"cut-0": "cancel"})
    flow.push()
    work(redis, url)
    return flow


def test_the_command_shows_a_flow_as_a_tree(
    client: Any, redis: Redis, redis_server: Server, environment: None, shell: Shell
) -> None:
    flow = shop(redis, redis_server.url)
    with forkq.Batch("plain"):
        pass
    listed = said_by(shell, "flows")
    assert "shop" in listed
    assert "plain" not in listed
    assert "shop" not in said_by(shell, "batches")
    shown = said_by(shell, "flows show", flow.bid).splitlines()
    assert (
        f"1 step died: `forkq flows retry {flow.bid}` tries those again that are still kept"
        in shown
    )
    tree = [line for line in shown if "  " in line][-17:]
    assert shown[-1] == "other  done"
    assert "fetch  dead" in shown
    assert "  cut-0  waits for fetch" in shown
    assert "    mail  waits for cut-0; held up by fetch, which is dead" in shown
    assert "16 steps wait behind fetch, which is dead" in "\n".join(shown)
    assert "  ... 2 more steps: 2 waits" in shown
    assert max(map(len, tree)) <= 100
    one = json.loads(said_by(shell, "flows show --json", flow.bid))
    assert one["steps"][0]["name"] in ("fetch", "other")
    assert len(one["steps"]) == 18
    steps = {step["name"]: step for step in one["steps"]}
    assert (steps["mail"]["held_by"], steps["other"]["held_by"]) == (["fetch"], [])
    assert api.entry(steps["fetch"]["jid"]) is not None


def test_alike_steps_of_a_large_flow_share_a_line(
    client: Any, redis: Redis, environment: None, shell: Shell
) -> None:
    job = made("job")
    flow = forkq.Flow("", job.s(1) | forkq.group(*(job.s(n) for n in range(200))) | job.s(2))
    flow.push()
    shown = said_by(shell, "flows show", flow.bid).splitlines()[-3:]
    assert shown == ["job  started", "  job …  200 steps: 200 waits", "    job-202  waits"]
    assert "--json has each of them" in shell.err


def test_the_command_retries_and_cancels(
    client: Any, redis: Redis, redis_server: Server, environment: None, shell: Shell
) -> None:
    flow = shop(redis, redis_server.url)
    registry._jobs.pop("job")
    made("other_name")
    forkq.job(name="job", retry=0)(lambda *args: ran.append(("again", *args)))
    assert said_by(shell, "flows retry", flow.bid) == "1 step sent to its queue\n"
    work(redis, redis_server.url)
    assert state(flow.bid).state == "succeeded"
    second = forkq.Flow("", made("third").set(queue="paused").s(1) | made("fourth").s(2))
    second.push()
    assert "is cancelled: no further step starts" in said_by(shell, "flows cancel", second.bid)
    steps = api.Flow(second.bid).steps()
    assert [(step.name, step.state) for step in steps] == [
        ("third", "started"), ("fourth", "cancelled")
    ]  # fmt: skip
    second.cancel()
    with forkq.Batch() as batch:
        pass
    with pytest.raises(forkq.ForkqError, match="is a batch, and no flow"):
        api.Flow(batch.bid).steps()


# What other systems have had: celery/celery, taskforcesh/bullmq, Oban Pro


def test_a_failure_in_a_chain_within_a_group_retries_nothing_for_ever(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """celery#9674. What comes behind waits, and what is to run at a bad end runs once (#3709,
    #3317)."""
    job = made("job")
    body = forkq.chain(forkq.group(job.s(1) | job.s("bad") | job.s(2), job.s(3)), job.s("end"))
    flow = forkq.Flow(
        "", body, on_death=made("told").s("death"), on_success=made("no").s("success")
    )
    flow.add("error", job.s("error"), after=["job-2"], on_failure="run")
    flow.push()
    work(redis, redis_server.url)
    assert sorted(map(str, (one[1] for one in ran))) == ["1", "3", "bad", "death", "error"]
    assert state(flow.bid).waiting == 2


def test_groups_behind_groups_have_no_levels(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """celery#5000, #3538: chained and nested chords. Each end runs once, and a payload has nothing
    of the steps behind it."""
    job = made("job")
    groups = [forkq.group(*(job.s(level, n) for n in range(3))) for level in range(4)]
    inner = forkq.group(job.s("a") | forkq.group(job.s("b"), job.s("c")) | job.s("d"), groups[3])
    flow = forkq.Flow("", groups[0] | groups[1] | groups[2] | inner | job.s("end", forkq.BEFORE))
    longest = len(flow._graph.steps["job"].job.payload["args"])
    flow.push()
    work(redis, redis_server.url)
    assert longest == 2
    assert len(ran) == 17
    assert ran[-1][:2] == ("job", "end")
    assert ran[-1][2] == [["d"], [3, 0], [3, 1], [3, 2]]


def test_a_group_of_one_and_of_none(client: Any, redis: Redis, redis_server: Server) -> None:
    """celery#3885. The step behind gets a list in each case."""
    job = made("job")
    for group in (forkq.group(job.s(1)), forkq.group()):
        flow = forkq.Flow("", job.s(0) | group | job.s("end", forkq.BEFORE))
        flow.push()
        work(redis, redis_server.url)
    found = [one[2] for one in ran if one[1] == "end"]
    assert found == [[[1]], []]


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_what_is_behind_a_lost_step_does_not_wait_for_ever(
    client: Any, redis: Redis, redis_server: Server, environment: None, how: str
) -> None:
    """bullmq#3362, #3122, #1752, #2644, #3235: a parent that waits for ever; #3587: no way to clean
    it. Here it ends with the step that no person can retry."""
    job = made("job").set(queue="slow", **({"expires_in": 0.001} if how == "expired" else {}))
    flow = forkq.Flow("", on_finish=made("told").s("finish"))
    flow.add("lost", job.s(1))
    flow.add("waits", made("next").s(2), after=["lost"])
    flow.push()
    with InProcessClock(redis_server.url):
        wait_until(
            lambda: redis.llen("queue:slow") == 1 or ends(redis, flow.bid, 1) != [0], what="it"
        )
        if how == "deleted":
            next(iter(api.Queue("slow"))).delete()
    if how == "expired" and ends(redis, flow.bid, 1) == [0]:
        with InProcessChild(redis_server.url, queue="slow"):
            wait_until(lambda: ends(redis, flow.bid, 1) != [0], what="its end")
    assert ends(redis, flow.bid, 2) == [3, 3]
    work(redis, redis_server.url)
    assert ran == [("told", "finish")]


def test_steps_that_are_added_by_added_steps_keep_what_they_come_after(
    client: Any, redis: Redis, redis_server: Server
) -> None:
    """Oban Pro: a graft within a graft lost a dependency."""
    job = made("job")

    @forkq.job(name="grow")
    def grow(depth: int) -> int:
        flow = forkq.Flow.current()
        flow.add(f"leaf-{depth}", job.s(depth))
        if depth:
            flow.add(f"grow-{depth - 1}", grow.s(depth - 1), after=[f"leaf-{depth}"])
        else:
            leaves = [f"leaf-{one}" for one in range(4)]
            flow.add("end", job.s([flow.result(one) for one in leaves]), after=leaves)
        flow.push()
        return depth

    flow = forkq.Flow("", grow.s(3))
    flow.push()
    work(redis, redis_server.url, until=lambda: state(flow.bid).done == 9)
    assert ran[-1] == ("job", [[0], [1], [2], [3]])
    assert state(flow.bid).state == "succeeded"


def test_many_steps_are_added_all_or_none(
    client: Any, redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the flow refuses is refused before the first of several parts is sent."""
    monkeypatch.setattr(encoding, "_AT_ONCE", 2)
    job, refusals = made("job"), list[str]()

    def add(flow: forkq.Flow, last: str, after: str) -> None:
        names = [flow.add(f"new-{n}", job.s(n), after=["grow"]) for n in range(4)]
        flow.add(last, job.s(5), after=[after, *names])
        flow.push()

    @forkq.job(name="grow")
    def grow() -> None:
        for last, after, most in (("first", "grow", 9), ("x", "no", 9), ("x", "grow", 6)):
            monkeypatch.setattr("forkq.flows.flow.MOST", most)
            with pytest.raises(forkq.InvalidJob) as refused:
                add(forkq.Flow.current(), last, after)
            refusals.append(str(refused.value))
        monkeypatch.setattr("forkq.flows.flow.MOST", 7)
        add(forkq.Flow.current(), "last", "first")

    flow = forkq.Flow()
    flow.add("first", job.s("first"))
    flow.add("grow", grow.s(), after=["first"])
    flow.push()
    work(redis, redis_server.url)
    assert [text.partition(":")[0].partition(",")[0] for text in refusals] == [
        "the flow has a step 'first' already",
        "a step comes after 'no'",
        "a flow has 6 steps at most",
    ]
    assert [one[1] for one in ran] == ["first", 0, 1, 2, 3, 5]
    assert state(flow.bid).state == "succeeded"
