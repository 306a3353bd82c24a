"""Batches: each callback is pushed once, when its time has come, however the members end."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import api, middleware, registry
from forkq.api.features import batches as batches_api
from forkq.client import transactions
from forkq.features.batch.parts import new_bid
from forkq.features.cancel.parts import Mark, field_in, field_of_batch
from forkq.features.effects import Effect, packed
from forkq.store.connection import RedisConnection
from forkq.store.scripts import EFFECTS_ALONE
from forkq.wire.keys import Keys
from forkq.wire.payload import loads
from tests.redis.in_process_child import InProcessChild
from tests.redis.in_process_clock import InProcessClock
from tests.redis.proxy import Proxy
from tests.redis.shell import Shell
from tests.support.documents import ROOT
from tests.support.server import Server
from tests.support.waiting import wait_until

QUEUE = "queue:default"
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


def load(**options: Any) -> Any:
    def perform(number: int) -> None:
        ran.append(number)
        if number < 0:
            raise ValueError(number)

    registry._jobs.pop("Load", None)
    return forkq.job(name="Load", **{"retry": 0, **options})(perform)


def report(**options: Any) -> Any:
    def perform(event: str) -> None:
        ran.append(event)

    registry._jobs.pop("Report", None)
    return forkq.job(name="Report", **options)(perform)


def all_three() -> dict[str, Any]:
    job = report()
    return {f"on_{each}": job.s(each) for each in ("death", "finish", "success")}


def fields(redis: Redis, bid: str) -> dict[str, str]:
    found: Any = redis.hgetall(KEYS.batch(bid))
    return {name.decode(): value.decode() for name, value in found.items()}


def numbers(redis: Redis, bid: str) -> tuple[int, ...]:
    found = fields(redis, bid)
    return tuple(int(found.get(name, 0)) for name in ("total", "done", "dead", "other"))


def members(redis: Redis) -> list[dict[str, Any]]:
    """What waits in the queue, the oldest first."""
    found: Any = redis.lrange(QUEUE, 0, -1)
    return [loads(raw) for raw in reversed(found)]


def work(redis: Redis, url: str, *, until: Any = None) -> None:
    """Runs what waits, and what comes of that, until nothing is left."""
    with InProcessClock(url), InProcessChild(url):
        wait_until(
            until or (lambda: not redis.exists(QUEUE, "{queue:default}:inflight", "schedule")),
            what="the end of all jobs",
        )


# The push


def test_what_is_pushed_in_the_block_is_a_member(client: forkq.Client, redis: Redis) -> None:
    job = load()
    job.perform_async(0)
    with forkq.Batch("import") as batch:
        job.perform_async(1)
        job.perform_bulk([[2], [3]])
        job.perform_in(900, 4)
        client.push({"class": "Load", "args": [5]})
        assert batch.perform_bulk(job, ([n] for n in range(6, 9))) == 3
    job.perform_async(9)
    waiting = members(redis)
    assert [one["args"] for one in waiting] == [[n] for n in (0, 1, 2, 3, 5, 6, 7, 8, 9)]
    needs = [one.get("forkq", {}).get("needs", {}).get("batch") for one in waiting]
    at = [None, 0, 1, 2, 4, 5, 6, 7, None]
    assert needs == [None if i is None else {"bid": batch.bid, "i": i} for i in at]
    later: Any = redis.zrange("schedule", 0, -1)
    assert json.loads(later[0])["forkq"] == {
        "v": 4, "needs": {"batch": {"bid": batch.bid, "i": 3}}
    }  # fmt: skip
    assert numbers(redis, batch.bid) == (8, 0, 0, 0)
    assert fields(redis, batch.bid)["state"] == "sealed"
    assert middleware.pushes.members == []


def test_a_push_in_the_block_changes_nothing_that_is_the_callers(
    client: forkq.Client, redis: Redis
) -> None:
    mine = {"class": "Load", "args": [5]}
    theirs = {"class": "Load", "args": [6], "forkq": {"needs": {"expires_in": 60}}}
    load()
    with forkq.Batch():
        client.push(mine)
        client.push(theirs)
    assert mine == {"class": "Load", "args": [5]}
    assert theirs == {"class": "Load", "args": [6], "forkq": {"needs": {"expires_in": 60}}}
    [_, second] = members(redis)
    assert second["forkq"]["needs"].keys() == {"expires_at", "batch"}


def test_vetoed_jobs_and_duplicates_are_no_members(client: forkq.Client, redis: Redis) -> None:
    @middleware.client.append
    def veto(job: dict[str, Any], call: Any) -> Any:
        return None if job["args"] == [7] else call()

    job = load(unique_for=60)
    with forkq.Batch() as batch:
        assert job.perform_bulk([[1], [1], [7], [2]]).count("") == 1
        assert job.perform_async(2) == ""
        assert job.perform_async(7) == ""
    assert numbers(redis, batch.bid)[0] == 2
    indices = [one["forkq"]["needs"]["batch"]["i"] for one in members(redis)]
    assert indices == [0, 1]


def test_a_member_that_meets_a_doubted_lock_is_not_pushed_later_without_its_batch(
    client: forkq.Client, redis: Redis
) -> None:
    job = load(unique_for=60)
    job.perform_async(1)
    locks: Any = redis.keys("forkq:unique:*")
    redis.hset(locks[0], "sure", 1)
    with forkq.Batch() as batch:
        assert job.perform_async(1) == ""
    assert redis.hvals(KEYS.doubted) == [b""]
    assert numbers(redis, batch.bid) == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["latest", "replace"])
def test_a_job_that_a_later_push_replaces_is_no_member(client: Any, redis: Redis, how: Any) -> None:
    job = load(unique_for=60, on_duplicate=how)
    with (
        pytest.raises(forkq.InvalidJob, match=r"on_duplicate.*no member of a batch"),
        forkq.Batch() as batch,
    ):
        job.perform_async(1)
    assert fields(redis, batch.bid)["state"] == "broken"
    assert not redis.exists(QUEUE)


def test_a_push_behind_the_block_is_refused(client: forkq.Client, redis: Redis) -> None:
    """The jobs that a push is left with have the batch no more, and nothing is pushed."""
    job = load()
    one = forkq.Batch()

    def push() -> None:
        with one:
            job.perform_async(1)
            redis.hset(KEYS.batch(one.bid), "state", "sealed")
            job.perform_bulk([[2], [3]])

    with pytest.raises(forkq.BatchFinished, match=f"batch {one.bid} takes no members any more"):
        push()
    assert [each["args"] for each in members(redis)] == [[1]]
    assert numbers(redis, one.bid)[0] == 1
    with pytest.raises(forkq.ForkqError, match="entered before"), one:
        pass
    with pytest.raises(forkq.ForkqError, match="in its block alone"):
        one.perform_bulk(job, [[1]])


def broken(job: Any, *rows: int) -> forkq.Batch:
    """A batch whose block has raised an error behind these members."""
    batch = forkq.Batch("import", **all_three())

    def push() -> None:
        with batch:
            job.perform_bulk([[row] for row in rows])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        push()
    return batch


# The callbacks


def test_a_success(client: forkq.Client, redis: Redis, redis_server: Server) -> None:
    job = load()
    with forkq.Batch("import", **all_three()) as batch:
        job.perform_bulk([[n] for n in range(5)])
    work(redis, redis_server.url)
    assert sorted(ran[:5]) == list(range(5))
    assert sorted(ran[5:]) == ["finish", "success"]
    assert numbers(redis, batch.bid) == (5, 5, 0, 0)
    assert {"called_f", "called_s"} <= fields(redis, batch.bid).keys()


def test_dead_members_and_a_success_after_their_retry(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()
    with forkq.Batch(**all_three()) as batch:
        job.perform_bulk([[1], [-2], [-3]])
    work(redis, redis_server.url)
    assert sorted(map(str, ran[3:])) == ["death", "finish"]
    assert numbers(redis, batch.bid) == (3, 1, 2, 0)
    dead = {value for name, value in fields(redis, batch.bid).items() if name[:5] == "dead:"}
    assert dead == {entry.jid for entry in api.DeadSet()}

    def better(number: int) -> None:
        ran.append(number)

    registry._jobs.pop("Load")
    forkq.job(name="Load")(better)
    ran.clear()
    assert api.DeadSet().retry_all().done == 2
    assert numbers(redis, batch.bid) == (3, 1, 0, 0)
    work(redis, redis_server.url)
    assert sorted(map(str, ran)) == ["-2", "-3", "success"]
    assert numbers(redis, batch.bid) == (3, 3, 0, 0)


def test_nothing_fires_while_the_block_is_open(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """But a death: that one has come."""
    job = load()
    with forkq.Batch(**all_three()) as batch:
        job.perform_bulk([[1], [-2]])
        work(redis, redis_server.url)
        assert sorted(map(str, ran)) == ["-2", "1", "death"]
        assert numbers(redis, batch.bid) == (2, 1, 1, 0)
    work(redis, redis_server.url)
    assert ran[3:] == ["finish"]


def test_an_empty_batch_finishes(client: forkq.Client, redis: Redis, redis_server: Server) -> None:
    with forkq.Batch(**all_three()):
        pass
    work(redis, redis_server.url)
    assert sorted(ran) == ["finish", "success"]


def test_a_batch_whose_block_has_raised_fires_nothing(
    client: forkq.Client, redis: Redis, redis_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    batch = broken(load(), 1)
    work(redis, redis_server.url)
    assert ran == [1]
    assert fields(redis, batch.bid)["state"] == "broken"
    assert f"forkq batches seal {batch.bid}" in caplog.text


def test_ways_that_are_ignored_keep_no_success_away(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()
    with forkq.Batch(ignore=["deleted"], **all_three()) as batch:
        job.perform_bulk([[1], [2]])
    next(iter(api.Queue("default"))).delete()
    assert redis.zcard("schedule") == 0
    work(redis, redis_server.url)
    assert sorted(map(str, ran[1:])) == ["finish", "success"]
    assert (numbers(redis, batch.bid), fields(redis, batch.bid)["ignored"]) == ((2, 1, 0, 1), "1")
    with pytest.raises(forkq.ForkqError, match="none of expired"):
        forkq.Batch(ignore=("done",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 5}, r'a batch has a name, and not 5: forkq\.Batch\("import"\)'),
        ({"ignore": "expired"}, r"ignore takes a list of ways, as in ignore=\['expired'\]"),
        ({"ignore": 5}, "ignore takes a list of ways"),
        ({"ignore": [5]}, "ignore: 5 is none of expired"),
    ],
)
def test_odd_arguments_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(forkq.ForkqError, match=message):
        forkq.Batch(**arguments)


def test_ignore_without_a_success_is_refused_but_for_batches_within(client: Any) -> None:
    """What is ignored there counts for the success of the batch above."""
    with pytest.raises(forkq.ForkqError, match="give on_success"), forkq.Batch(ignore=["expired"]):
        pass
    with forkq.Batch(on_success=report().s("x")), forkq.Batch(ignore=["expired"]):
        pass


def test_a_retry_of_dead_members_takes_no_job_that_only_names_the_batch(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    def perform(text: str) -> None:
        raise ValueError(text)

    job = forkq.job(name="Load", retry=0)(perform)
    with forkq.Batch() as outer, forkq.Batch() as inner:
        job.perform_async("member")
    job.perform_async(inner.bid)
    job.perform_async(outer.bid)
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: redis.zcard("dead") == 3, what="three deaths")
    assert api.Batch(outer.bid).retry_dead().done == 1
    assert sorted(entry.args[0] for entry in api.DeadSet()) == sorted([inner.bid, outer.bid])


def test_a_deleted_member_that_comes_back_is_not_ignored_and_done_as_well(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()
    with forkq.Batch(ignore=["deleted"], **all_three()) as batch:
        job.perform_in(900, 710_017)
        cancelled = job.perform_in(900, 720_027)
        job.perform_async(3)
    forkq.cancel(cancelled)
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: numbers(redis, batch.bid) == (3, 1, 0, 1), what="the cancel")
        deleted = api.ScheduledSet().delete_all(api.Filter(match="710017"), undo=True)
        wait_until(lambda: "finish" in ran, what="the end")
        api.undo(deleted.undo)
        api.ScheduledSet().add_all_to_queue()
        wait_until(lambda: numbers(redis, batch.bid) == (3, 2, 0, 1), what="the run")
    assert fields(redis, batch.bid)["ignored"] == "0"
    assert "fired_s" not in fields(redis, batch.bid)


def test_an_ignored_member_that_is_done_after_all_counts_once(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """A second run has ended well. Else it would count for the one that was discarded."""
    with forkq.Batch(ignore=["expired"], **all_three()) as batch:
        load().perform_bulk([[1], [2], [3]])
    connection = RedisConnection(redis_server.url)
    connection.connect()
    key, *more = KEYS.of_batch(batch.bid, ())
    ends = [(0, 3, "expired"), (1, 3, "discarded"), (0, 1, "done"), (2, 1, "done")]
    for member, state, way in ends:
        names: list[Any] = []
        effect = Effect("batch", key, (1, member, state, way, ""), tuple(more))
        text = packed([effect], names, KEYS.totals("ends"))
        connection.script(EFFECTS_ALONE, names, [text])
    connection.close()
    assert (numbers(redis, batch.bid), fields(redis, batch.bid)["ignored"]) == ((3, 2, 0, 1), "0")
    assert "fired_f" in fields(redis, batch.bid)
    assert "fired_s" not in fields(redis, batch.bid)


def test_a_member_that_is_deleted_and_brought_back_again_and_again_is_ignored_once(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job, ignored, first = load(), [], api.Filter(match="710017")
    with forkq.Batch(ignore=["deleted"], **all_three()) as batch:
        job.perform_in(900, 710_017)
        job.perform_in(900, 720_027)
        job.perform_async(-3)
    api.ScheduledSet().delete_all(api.Filter(match="720027"))
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        deleted = api.ScheduledSet().delete_all(first, undo=True)
        wait_until(lambda: "finish" in ran, what="the end")
    for _ in range(3):
        api.undo(deleted.undo)
        ignored.append(fields(redis, batch.bid)["ignored"])
        deleted = api.ScheduledSet().delete_all(first, undo=True)
        ignored.append(fields(redis, batch.bid)["ignored"])
    assert ignored == ["1", "2"] * 3
    assert not any(name.startswith("undone") for name in fields(redis, batch.bid))


def test_a_payload_with_an_index_beyond_its_batch_changes_nothing(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()
    with forkq.Batch() as batch:
        job.perform_bulk([[1], [2], [3]])
    redis.delete(QUEUE)
    need = {"bid": batch.bid, "i": 400_000_000}
    client.push({"class": "Load", "args": [7], "forkq": {"needs": {"batch": need}}})
    work(redis, redis_server.url)
    job.set(retry=0).perform_async(8)
    client.push({"class": "Load", "args": [-7], "forkq": {"needs": {"batch": need}}, "retry": 0})
    work(redis, redis_server.url)
    assert ran.count(7) == ran.count(8) == ran.count(-7) == 1
    assert numbers(redis, batch.bid) == (3, 0, 0, 0)
    assert redis.strlen(KEYS.batch_ends(batch.bid)) == 0


def test_a_callback_is_an_ordinary_job_with_its_own_options(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = report(queue="other", retry=3)
    with forkq.Batch(on_finish=job.set(tags=["t"]).s("finish")) as batch:
        pass
    scheduled: Any = redis.zrange("schedule", 0, -1, withscores=True)
    [(raw, at)] = scheduled
    payload = loads(raw)
    assert (payload["queue"], payload["retry"], payload["tags"]) == ("other", 3, ["t"])
    assert payload["forkq"]["needs"]["batch"] == {"of": batch.bid, "on": "f"}
    assert "enqueued_at" not in payload
    assert abs(at - float(redis.time()[0])) < 60


@pytest.mark.parametrize("options", [{"unique_for": 60}, {"expires_in": 60}])
def test_a_callback_is_neither_unique_nor_expires(client: Any, options: Any) -> None:
    job = report(**options)
    with pytest.raises(forkq.InvalidJob, match=f"on_finish.*{next(iter(options))}"):
        forkq.Batch(on_finish=job.s("x"))
    forkq.Batch(on_finish=job.set(**{next(iter(options)): 0}).s("x"))


@pytest.mark.parametrize(
    "options",
    [
        {"unique_for": 60, "on_duplicate": "latest"},
        {"debounce": 5, "debounce_max": 60},
        {"throttle": "1/minute"},
    ],
    ids=lambda options: str(next(iter(options))),
)
def test_the_remedy_for_a_refused_option_is_taken(
    client: Any, redis: Redis, options: dict[str, Any]
) -> None:
    """As it is printed, for a callback and for a step, of a job that has ``unique_by``, too."""

    @forkq.job(name="keyed", unique_by=["key"], **options)
    def keyed(key: int) -> None: ...

    with pytest.raises(forkq.InvalidJob, match=r"on_success: .*`\.set\(") as refused:
        forkq.Batch(on_success=keyed.s(1))
    [remedy] = re.findall(r"`(\.set\(.*?\))`", str(refused.value))
    with pytest.raises(forkq.InvalidJob, match=re.escape(remedy)):
        forkq.Flow("", keyed.s(1))
    plain = eval(f"keyed{remedy}.s(1)", {"keyed": keyed})  # noqa: S307 - the text is ours
    forkq.Flow("", plain).push()
    with forkq.Batch(on_success=plain):
        pass
    assert redis.zcard("schedule") == 2


def test_no_id_looks_like_an_option() -> None:
    assert not any(new_bid().startswith("-") for _ in range(1000))


def test_a_callback_has_no_time_of_its_own(client: Any) -> None:
    job = report()
    with pytest.raises(forkq.InvalidJob, match="on_death: job 'Report' has `at`"):
        forkq.Batch(on_death=job.set({"at": 5.0}).s("x"))


def test_what_is_no_prepared_job_is_no_callback(client: Any) -> None:
    job = report()
    with pytest.raises(forkq.InvalidJob, match=r"on_death=report\.s"):
        forkq.Batch(on_death=job)
    for made in (forkq.Batch, forkq.Flow):  # a job that was called, and has returned nothing
        with pytest.raises(forkq.InvalidJob, match=r"on_success is None.* on_success=report\.s"):
            made(on_success=job("x"))
    with pytest.raises(forkq.InvalidJob, match="takes"):
        job.s()


# From within


def test_a_member_adds_members_while_it_runs(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    def perform(depth: int) -> None:
        ran.append(depth)
        if depth:
            with forkq.Batch.current() as batch:
                job.perform_bulk([[depth - 1]] * 2)
            assert batch.bid

    job = forkq.job(name="Tree")(perform)
    with forkq.Batch(on_success=report().s("success")) as batch:
        job.perform_async(3)
    work(redis, redis_server.url)
    assert ran[-1] == "success"
    assert sorted(ran[:-1]) == [0] * 8 + [1] * 4 + [2] * 2 + [3]
    assert numbers(redis, batch.bid) == (15, 15, 0, 0)


def test_a_member_that_has_ended_adds_none(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Its lease was taken away, and another run of it has ended."""
    errors: list[BaseException] = []

    def perform() -> None:
        redis.bitfield(KEYS.batch_ends(batch.bid)).set("u2", "#0", 1).execute()
        try:
            with forkq.Batch.current():
                job.perform_async(1)
        except forkq.BatchFinished as error:
            errors.append(error)

    job = load()
    late = forkq.job(name="Late")(perform)
    with forkq.Batch() as batch:
        late.perform_async()
    work(redis, redis_server.url)
    assert len(errors) == 1
    assert (ran, numbers(redis, batch.bid)[0]) == ([], 1)


def test_there_is_no_current_batch_outside_of_a_member(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    errors: list[str] = []

    def perform() -> None:
        try:
            forkq.Batch.current()
        except forkq.ForkqError as error:
            errors.append(str(error))

    forkq.job(name="Plain")(perform).perform_async()
    work(redis, redis_server.url)
    assert errors == ["there is no current batch: this job is no member of one"]
    with pytest.raises(forkq.ForkqError, match=r"Batch\.current\(\) was called outside"):
        forkq.Batch.current()


def test_a_callback_is_no_member_of_its_batch(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job = load()

    def perform() -> None:
        try:
            with forkq.Batch.current():
                job.perform_async(5)
        except forkq.ForkqError as error:
            ran.append(str(error))

    told = forkq.job(name="Told")(perform)
    with forkq.Batch(on_death=told.s()) as batch:  # which is open when its callback runs
        job.perform_async(-1)
        work(redis, redis_server.url, until=lambda: len(ran) == 2)
    assert ran == [-1, "there is no current batch: this job is no member of one"]
    assert numbers(redis, batch.bid) == (1, 0, 1, 0)


# Nesting


def test_a_batch_within_a_batch_has_ended_when_its_callbacks_have(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job, told = load(), report()

    def slow(event: str) -> None:
        gate.wait(30)
        ran.append(event)

    waits = forkq.job(name="Slow")(slow)
    with forkq.Batch("outer", on_success=told.s("outer")) as outer:
        with forkq.Batch("middle", on_success=waits.s("middle")) as middle:
            with forkq.Batch("inner", on_finish=told.s("inner")) as inner:
                job.perform_async(1)
            job.perform_async(2)
        job.perform_async(3)
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        wait_until(lambda: numbers(redis, middle.bid) == (2, 2, 0, 0), what="the inner one's end")
        assert numbers(redis, inner.bid) == (1, 1, 0, 0)
        assert "fired_s" in fields(redis, middle.bid)
        assert numbers(redis, outer.bid)[2:] == (0, 0)
        gate.set()
        wait_until(lambda: "outer" in ran, what="the callback of the outer one")
    assert ran.index("inner") < ran.index("middle") < ran.index("outer")
    assert numbers(redis, outer.bid) == (2, 2, 0, 0)
    assert fields(redis, outer.bid)["child:0"] == KEYS.batch(middle.bid)


def test_a_death_within_is_one_of_all_batches_above(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job, told = load(), report()
    with (
        forkq.Batch(
            on_death=told.s("d1"), on_finish=told.s("f1"), on_success=told.s("s1")
        ) as outer,
        forkq.Batch(on_death=told.s("d2"), on_finish=told.s("f2")) as inner,
    ):
        job.perform_bulk([[1], [-1]])
    work(redis, redis_server.url)
    assert sorted(map(str, ran)) == ["-1", "1", "d1", "d2", "f1", "f2"]
    assert (numbers(redis, inner.bid), numbers(redis, outer.bid)) == ((2, 1, 1, 0), (1, 0, 1, 0))

    registry._jobs.pop("Load")
    forkq.job(name="Load")(ran.append)
    ran.clear()
    api.DeadSet().retry_all()
    assert numbers(redis, outer.bid) == (1, 0, 0, 0)  # it waits again
    work(redis, redis_server.url)
    assert sorted(map(str, ran)) == ["-1", "s1"]


def test_a_member_makes_a_batch_within_its_own(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    job, told = load(), report()

    def perform() -> None:
        with forkq.Batch.current(), forkq.Batch("inner", on_success=told.s("inner")):
            job.perform_bulk([[1], [2]])

    makes = forkq.job(name="Makes")(perform)
    with forkq.Batch(on_success=told.s("outer")) as outer:
        makes.perform_async()
    work(redis, redis_server.url)
    assert sorted(ran[:2]) == [1, 2]
    assert ran[2:] == ["inner", "outer"]
    assert numbers(redis, outer.bid) == (2, 2, 0, 0)


def test_batches_are_nested_eight_deep_at_most(client: forkq.Client, redis: Redis) -> None:
    def nest(depth: int) -> None:
        with forkq.Batch():
            if depth > 1:
                nest(depth - 1)

    nest(8)
    with pytest.raises(forkq.InvalidJob, match="8 deep"):
        nest(9)


# Loops, commits, lost replies


def test_a_block_of_an_event_loop(client: forkq.Client, redis: Redis, redis_server: Server) -> None:
    async def rows() -> Any:
        for number in range(3):
            yield [number]

    async def push() -> forkq.Batch:
        async with forkq.Batch(on_success=report().s("success")) as batch:
            await job.aperform_async(7)
            assert await batch.aperform_bulk(job, rows()) == 3
            assert await batch.aperform_bulk(job, [[8]]) == 1
        await job.aperform_async(9)
        await client.aclose()
        return batch

    job = load()
    batch = asyncio.run(push())
    work(redis, redis_server.url)
    assert sorted(ran[:6], key=str) == [0, 1, 2, 7, 8, 9] or "success" in ran[:6]
    assert numbers(redis, batch.bid) == (5, 5, 0, 0)


def test_tasks_beside_the_block_push_no_members(client: forkq.Client, redis: Redis) -> None:
    async def push() -> forkq.Batch:
        async with forkq.Batch() as batch:
            await job.aperform_async(1)
        return batch

    async def beside() -> None:
        await job.aperform_async(2)

    async def both() -> forkq.Batch:
        batch, _ = await asyncio.gather(push(), beside())
        await client.aclose()
        return batch

    job = load()
    batch = asyncio.run(both())
    assert numbers(redis, batch.bid)[0] == 1
    assert redis.llen(QUEUE) == 2


@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_waits_for_the_commit_with_its_members(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(transactions, "on_commit", waiting.append)
    monkeypatch.setattr(transactions, "all_wait", True)
    job = load()
    with forkq.Batch(on_finish=report().s("finish")) as batch:
        job.perform_async(1)
    assert not redis.exists(KEYS.batch(batch.bid), QUEUE)
    if commits:
        for send in waiting:
            send()
    assert numbers(redis, batch.bid)[0] == int(commits)
    assert fields(redis, batch.bid).get("state") == ("sealed" if commits else None)
    [*needs] = (one["forkq"]["needs"]["batch"]["i"] for one in members(redis))
    assert needs == [0] * commits


def test_a_change_whose_reply_is_lost_is_sent_again(
    redis: Redis, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made, or it is made now: once in either case."""
    monkeypatch.setattr("forkq.default_client._default", None)
    client = forkq.configure(proxy.url, environ={})
    batch = forkq.Batch(on_finish=report().s("finish"))
    with batch:
        proxy.cut(b"seal")
    assert proxy.cuts == 1
    assert fields(redis, batch.bid)["state"] == "sealed"
    assert redis.zcard("schedule") == 1
    client.close()


# People: the API and the command


def test_the_command_shows_batches_and_ends_one_that_is_broken(
    environment: None, client: forkq.Client, redis: Redis, redis_server: Server, shell: Shell
) -> None:
    assert shell("batches") == 0
    assert "there is no batch" in shell.out + shell.err
    batch = broken(load(), 1, -1)
    work(redis, redis_server.url, until=lambda: redis.zcard("dead") == 1)
    assert shell("batches list") == 0
    header, line = shell.out.splitlines()
    assert header.split()[:4] == ["BATCH", "NAME", "STATE", "MEMBERS"]
    assert line.split()[:8] == [batch.bid, "import", "broken", "2", "0", "1", "1", "0"]
    assert shell(f"batches show {batch.bid}") == 0
    [dead] = api.DeadSet()
    assert f"dead: {dead.jid}" in shell.out
    assert f"forkq batches seal {batch.bid}" in shell.out
    assert shell(f"batches seal {batch.bid}") == 0
    assert api.Batch(batch.bid).report().state == "finished"
    assert shell(f"batches retry {batch.bid}") == 0
    assert "1 job sent to its queue" in shell.out
    assert numbers(redis, batch.bid) == (2, 1, 0, 0)
    assert shell(f"batches show {batch.bid} --json") == 0
    shown = json.loads(shell.out)
    assert (shown["state"], shown["waiting"], shown["fired"].keys()) == (
        "waiting", 1, {"death", "finish"}
    )  # fmt: skip
    for kind, noun in (("batches", "batch"), ("flows", "flow")):
        assert shell(f"{kind} show nowhere") == 1
        assert f"there is no {noun} 'nowhere'" in shell.err
        assert f"(`forkq {kind}` lists them)" in shell.err


def test_an_open_batch_that_gets_no_members_for_an_hour_may_be_abandoned(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    with forkq.Batch() as batch:
        assert not api.Batch(batch.bid).report().may_be_abandoned
        redis.hincrby(KEYS.batch(batch.bid), "nothing", 1)
        made = float(fields(redis, batch.bid)["pushed_at"])
        redis.hset(KEYS.batch(batch.bid), "pushed_at", made - 4000)
        assert api.Batch(batch.bid).report().may_be_abandoned
        shell(f"batches show {batch.bid}")
        assert f"forkq batches seal {batch.bid}" in shell.out


def test_a_cancelled_batch_ends_with_all_its_members(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    """Those that wait, that run, that are retried, and those of the batches within it."""

    def perform(number: int) -> None:
        try:
            assert gate.wait(30)
        except forkq.Cancelled:
            ran.append("cancelled")
            raise

    job, told = forkq.job(name="Waits")(perform), report(queue="told")
    with forkq.Batch(on_finish=told.s("outer")) as outer:
        with forkq.Batch(on_finish=told.s("inner")) as inner:
            job.perform_bulk([[1]] * 300)
        job.perform_in(900, 1)
        job.perform_async(1)
    job.perform_async(7)
    api.Batch(outer.bid).cancel()
    with InProcessClock(redis_server.url):
        wait_until(lambda: numbers(redis, inner.bid)[3] == 300, what="the end of all that wait")
        wait_until(lambda: redis.llen("queue:told") == 1, what="the callback of the inner one")
        assert [one["args"] for one in members(redis)] == [[7]]
        with InProcessChild(redis_server.url, queue="told"):
            wait_until(lambda: "outer" in ran, what="the callback of the outer one")
        wait_until(lambda: not redis.exists(KEYS.cancelled), what="the end of the notes")
    assert api.Batch(outer.bid).report().state == "cancelled"
    assert ran == ["inner", "outer"]
    with pytest.raises(forkq.ForkqError, match="is cancelled"):
        api.Batch(outer.bid).retry_dead()


def test_a_batch_that_has_ended_is_not_cancelled(client: forkq.Client) -> None:
    """Nothing of it waits or runs, and people want to see that it has succeeded."""
    with forkq.Batch() as batch:
        pass
    with pytest.raises(forkq.ForkqError, match="has succeeded: nothing of it is left"):
        api.Batch(batch.bid).cancel()
    assert api.Batch(batch.bid).report().state == "succeeded"


def test_a_batch_that_is_made_within_during_a_cancel_is_cancelled_too(
    client: forkq.Client, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load()
    made: list[forkq.Batch] = []
    change = batches_api._change

    def change_late(*arguments: Any) -> None:
        if not made:
            with forkq.Batch("within") as within:
                job.perform_in(900, 1)
            made.append(within)
        change(*arguments)

    monkeypatch.setattr(batches_api, "_change", change_late)
    with forkq.Batch("outer") as outer:
        api.Batch(outer.bid).cancel()
    states = [fields(redis, one.bid)["state"] for one in (outer, *made)]
    assert states == ["cancelled", "cancelled"]


def test_a_block_that_ends_since_its_batch_was_cancelled_has_not_broken_it(
    client: forkq.Client, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    job = load()
    batch = forkq.Batch()

    def push() -> None:
        with batch:
            api.Batch(batch.bid).cancel()
            job.perform_async(1)

    with pytest.raises(forkq.BatchFinished):
        push()
    assert fields(redis, batch.bid)["state"] == "cancelled"
    assert "is broken" not in caplog.text


def test_a_member_that_runs_hears_that_its_batch_is_cancelled(client: forkq.Client) -> None:
    """Its payload names the batch, beside which no other job is meant."""
    marks = {field_of_batch("b1"): Mark(1.0)}
    member = {"class": "A", "jid": "j", "forkq": {"needs": {"batch": {"bid": "b1", "i": 0}}}}
    callback = {"class": "A", "jid": "j", "forkq": {"needs": {"batch": {"of": "b1", "on": "f"}}}}
    assert field_in(marks, member) == field_of_batch("b1")
    assert field_in(marks, callback) == ""
    assert field_in(marks, {"class": "A", "jid": "j"}) == ""


def test_the_latest_batches_come_first(client: forkq.Client, redis: Redis) -> None:
    for name in "abc":
        with forkq.Batch(name):
            pass
    assert [each.name for each in api.batches()] == ["c", "b", "a"]
    assert [each.state for each in api.batches()] == ["succeeded"] * 3
    assert 179 * 86_400 < redis.ttl(KEYS.batch(api.batches()[0].bid)) <= 180 * 86_400


def test_what_a_batch_costs_is_what_the_page_says(client: forkq.Client, redis: Redis) -> None:
    load().perform_async(1)
    with forkq.Batch() as batch:
        load().perform_async(1)
    found: Any = redis.lrange(QUEUE, 0, -1)
    page = (ROOT / "docs" / "batches.md").read_text()
    [longer] = re.findall(r"payload is about (\d+) bytes longer", page)
    [megabytes] = re.findall(r"two bits for each member \(([\d.]+) MB for a million\)", page)
    assert len(found[0]) - len(found[1]) == pytest.approx(int(longer), abs=8)
    ends = KEYS.batch_ends(batch.bid)
    redis.bitfield(ends).set("u2", "#999999", 1).execute()
    held: Any = redis.memory_usage(ends)
    assert held < 2 * float(megabytes) * 1e6 < 1e6


def test_a_push_that_a_throttle_leaves_out_is_no_member(client: forkq.Client, redis: Redis) -> None:
    job = load(throttle="2/minute")
    with forkq.Batch() as batch:
        jids = [job.perform_async(1) for _ in range(4)]
    assert [bool(jid) for jid in jids] == [True, True, False, False]
    assert numbers(redis, batch.bid)[0] == 2
    assert [one["forkq"]["needs"]["batch"]["i"] for one in members(redis)] == [0, 1]


def test_a_member_that_is_pushed_once_more_is_one_member(
    client: forkq.Client, redis: Redis
) -> None:
    """So a member that runs twice pushes each of its further members once."""
    job = load()
    with forkq.Batch() as batch:
        for _ in range(2):
            assert job.set({"jid": "7ff3cf34efff6d76635f23dd"}, once=True).perform_async(1)
    assert numbers(redis, batch.bid)[0] == 1
    assert redis.llen(QUEUE) == 1


def test_a_job_names_its_batch_and_a_batch_is_cancelled_by_its_id(
    environment: None, client: forkq.Client, redis: Redis, shell: Shell
) -> None:
    job = load()
    with forkq.Batch(on_finish=report().s("x")) as batch:
        jid = job.perform_async(1)
    assert shell("find --json", jid) == 0
    assert json.loads(shell.out)["batch"] == {"bid": batch.bid, "index": 0}
    assert shell("find", jid) == 0
    assert f"member 0 of {batch.bid}" in shell.out
    assert shell("cancel --batch", batch.bid) == 0
    assert shell.out == f"all members of {batch.bid} are being cancelled\n"
    assert fields(redis, batch.bid)["state"] == "cancelled"
    assert shell("cancel --batch", batch.bid, jid) == 2
    assert shell("cancel --force --batch", batch.bid) == 2


def test_a_member_that_runs_twice_pushes_its_members_once(
    client: forkq.Client, redis: Redis, redis_server: Server
) -> None:
    def perform() -> None:
        ran.append("run")
        keys.append([forkq.idempotency_key(name) for name in ("a", "b")])
        with forkq.Batch.current():
            for key in keys[-1]:
                job.set({"jid": key}, once=True).perform_async(1)
        if ran.count("run") == 1:
            raise ValueError

    keys: list[list[str]] = []
    job = load()
    more = forkq.job(name="More", retry=1, retry_in=lambda *_: timedelta(milliseconds=1))(perform)
    with forkq.Batch(**all_three()) as batch:
        more.perform_async()
    work(redis, redis_server.url, until=lambda: "success" in ran)
    assert keys[0] == keys[1]
    assert len({*keys[0]}) == 2
    assert all(re.fullmatch("[0-9a-f]{24}", key) for key in keys[0])
    assert numbers(redis, batch.bid) == (3, 3, 0, 0)


def test_an_idempotency_key_belongs_to_a_job_and_a_name() -> None:
    with pytest.raises(forkq.ForkqError, match="outside of a running job"):
        forkq.idempotency_key("a")
    with pytest.raises(forkq.ForkqError, match="takes a name"):
        forkq.idempotency_key("")


@pytest.mark.parametrize("fails", [False, True])
def test_the_result_of_a_callback_can_be_waited_for_from_the_beginning(
    client: forkq.Client, redis: Redis, redis_server: Server, fails: bool
) -> None:
    job, jid = load(), "c" * 24
    last = forkq.job(name="Last", result_ttl=60)(lambda number: 2 * number)
    with forkq.Batch(on_finish=last.set({"jid": jid}).s(21)):
        with pytest.raises(TimeoutError):
            forkq.result(jid, 0)
        job.perform_async(-1 if fails else 1)
    assert redis.ttl(KEYS.result(jid)) > 179 * 86_400
    with InProcessClock(redis_server.url), InProcessChild(redis_server.url):
        assert forkq.result(jid, 60) == 42
    assert 0 < redis.ttl(KEYS.result(jid)) <= 60
