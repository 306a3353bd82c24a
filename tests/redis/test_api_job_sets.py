"""The API acts on scheduled, retrying and dead jobs: on that very member, and on many in steps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from forkq import api
from forkq.api import DeadSet, Filter, JobSet, Queue, RetrySet, ScheduledSet
from forkq.api.entry import entry_of
from forkq.errors import ForkqError, InvalidJob, InvalidRule, MalformedPayload, WrongType
from forkq.store.crash_record import ProcessDeath, stamped
from forkq.store.find_job import Location

OTHER: dict[str, Any] = {"class": "Other"}
KEYS = {"scheduled": "schedule", "retrying": "retry", "dead": "dead"}
pytestmark = pytest.mark.usefixtures("client")


def failed(jid: str, **more: Any) -> bytes:
    """A job that has failed, as it stands in a set."""
    job = {
        "class": "shop.Mail", "args": [jid], "queue": "mail", "jid": jid, "retry": True,
        "created_at": 1000000000.5, "enqueued_at": 1000000001.5, "failed_at": 1000000002.5,
        "error_class": "ValueError", "error_message": "bad", "retry_count": 3,
    }  # fmt: skip
    return json.dumps({**job, **more}).encode()


def add(redis: Redis, key: str, *jids: str, score: float = 1700000000.25, **more: Any) -> None:
    redis.zadd(key, {failed(jid, **more): score + at for at, jid in enumerate(jids)})


def one(jobs: JobSet, jid: str = "a") -> api.JobEntry:
    found = jobs.find(jid)
    assert found is not None
    return found


def pushed(redis: Redis, queue: str = "mail") -> list[dict[str, Any]]:
    """What stands in a queue, the next one first."""
    return [json.loads(raw) for raw in redis.lrange(f"queue:{queue}", 0, -1)][::-1]


def jids(entries: Iterator[api.JobEntry] | list[api.JobEntry]) -> list[str]:
    return [entry.jid for entry in entries]


# One job


def test_an_entry_tells_what_its_payload_says(redis: Redis) -> None:
    add(redis, "retry", "a", retried_at=1000000009.5, tags=["x"], retry=5)
    found = one(RetrySet())
    assert (found.name, found.queue, found.args) == ("shop.Mail", "mail", ["a"])
    assert (found.error_class, found.error_message) == ("ValueError", "bad")
    assert (found.failed_at, found.last_failed_at) == (1000000002.5, 1000000009.5)
    assert (found.at, found.since) == (1700000000.25, 1000000009.5)
    assert (found.retry_count, found.retries, found.tags) == (3, 5, ("x",))
    # The next run is its fourth retry. It fails, the next one is later, and that is the last one.
    assert found.dies_at == pytest.approx(1700000000.25 + 4**4 + 15 + 25)
    assert [event.what for event in found.events] == [
        *("pushed", "enqueued", "failed", "retried", "due", "dies")
    ]


def test_a_retry_goes_to_its_queue_and_does_not_count(redis: Redis) -> None:
    add(redis, "dead", "a", at=5, other={"kept": [1]})
    assert one(DeadSet()).retry() is True
    [job] = pushed(redis)
    assert job["retry_count"] == 2  # Sidekiq 7 takes one off, too
    assert (job["jid"], job["other"], "at" in job) == ("a", {"kept": [1]}, False)
    assert job["enqueued_at"] > 1700000000
    assert redis.zcard("dead") == 0
    assert redis.smembers("queues") == {b"mail"}


def test_a_retry_never_makes_a_count_negative(redis: Redis) -> None:
    add(redis, "retry", "a", retry_count=0)
    one(RetrySet()).retry()
    assert pushed(redis)[0]["retry_count"] == 0


def test_a_fresh_retry_forgets_the_failures(redis: Redis) -> None:
    add(redis, "dead", "a")
    one(DeadSet()).retry(fresh=True)
    assert not {"retry_count", "failed_at", "error_class"} & set(pushed(redis)[0])


@pytest.mark.parametrize("fresh", [False, True])
def test_a_job_that_has_killed_its_process_alone_runs_alone_when_it_is_retried(
    redis: Redis, fresh: bool
) -> None:
    crash = ProcessDeath(signal=11, alone=True)
    crashes = [crash.record() for _ in range(3)]
    add(redis, "dead", "a", forkq={"crashes": crashes})
    one(DeadSet()).retry(fresh=fresh)
    [job] = map(json.loads, redis.lrange("{queue:mail}:suspects", 0, -1))
    assert job["forkq"]["suspect"] is True
    assert len(job["forkq"]["crashes"]) == 3  # they are kept for a person to read
    verdict, _, raw = stamped(json.dumps(job).encode(), "mail", crash)
    buried = json.loads(raw)["forkq"].get("failed")
    assert (verdict, buried is None) == ("isolate_last", fresh)  # all attempts, or only one more


def test_a_job_that_was_in_progress_in_anothers_crash_is_retried_beside_others(
    redis: Redis,
) -> None:
    add(redis, "dead", "a", forkq={"crashes": [ProcessDeath(signal=11, jobs=4).record()]})
    one(DeadSet()).retry()
    assert "suspect" not in pushed(redis)[0]["forkq"]


def test_add_to_queue_keeps_the_count(redis: Redis) -> None:
    add(redis, "retry", "a")
    assert one(RetrySet()).add_to_queue()
    assert pushed(redis)[0]["retry_count"] == 3


def test_add_all_to_queue_keeps_the_counts_of_those_that_are_named(redis: Redis) -> None:
    add(redis, "retry", "a", "b")
    add(redis, "retry", "c", queue="other")
    outcome = RetrySet().add_all_to_queue(Filter(queue="mail"))
    assert (outcome.done, redis.zcard("retry")) == (2, 1)
    assert [(job["jid"], job["retry_count"]) for job in pushed(redis)] == [("a", 3), ("b", 3)]


def test_a_killed_job_is_dead_with_the_same_payload(redis: Redis) -> None:
    add(redis, "retry", "a")
    before = time.time()
    assert one(RetrySet()).kill()
    [member] = redis.zrange("dead", 0, -1)
    assert member == failed("a")
    assert before - 60 <= one(DeadSet()).score <= time.time() + 60
    assert redis.zcard("retry") == 0


@pytest.mark.parametrize("jobs", [RetrySet(), ScheduledSet(), Queue("mail")], ids=repr)
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_kill_by_hand_removes_no_other_dead_job(
    jobs: JobSet | Queue, one_by_one: bool, redis: Redis
) -> None:
    """However many there are, however old they are, and whatever configuration the caller has."""
    before = {b"%d" % number: number for number in range(10_001)}  # more than dead_max, from 1970
    redis.zadd("dead", before)
    redis.lpush("queue:mail", failed("a"))
    for key in ("retry", "schedule"):
        add(redis, key, "a")
    if one_by_one:
        assert [entry.kill() for entry in jobs] == [True]
    else:
        assert jobs.kill_all().done == 1
    assert set(redis.zrange("dead", 0, -1)) == {*before, failed("a")}


def test_an_undo_removes_no_dead_job(redis: Redis) -> None:
    add(redis, "dead", "a", score=1.0)
    token = DeadSet().delete_all(undo=True).undo
    before = {b"%d" % number: number for number in range(10_001)}
    redis.zadd("dead", before)
    assert api.undo(token).done == 1
    assert set(redis.zrange("dead", 0, -1)) == {*before, failed("a")}


def test_a_job_moves_to_another_queue_when_it_is_due_or_at_once(redis: Redis) -> None:
    for key in KEYS.values():
        add(redis, key, "a")
    for jobs in (RetrySet(), ScheduledSet()):
        assert one(jobs).move("slow")
        assert (one(jobs).queue, one(jobs).score) == ("slow", 1700000000.25)
    assert one(DeadSet()).move("slow")
    assert pushed(redis, "slow")[0]["jid"] == "a"
    add(redis, "dead", "a")
    with pytest.raises(InvalidRule, match=r"pattern"):
        one(DeadSet()).move("slow-*")


def test_arguments_are_edited_in_place(redis: Redis) -> None:
    add(redis, "retry", "a")
    entry = one(RetrySet())
    edited = entry.edit(args=[1, {"x": None}])
    assert edited == one(RetrySet())
    assert one(RetrySet()).job == {**json.loads(failed("a")), "args": [1, {"x": None}]}
    assert entry.edit(args=[2]) is None  # these bytes are gone
    with pytest.raises(InvalidJob, match="an object"):
        one(RetrySet()).edit(args=[object()])


def test_a_job_is_rescheduled(redis: Redis) -> None:
    add(redis, "schedule", "a")
    assert one(ScheduledSet()).reschedule(1800000000.5)
    assert one(ScheduledSet()).at == 1800000000.5


def test_only_the_very_member_is_removed(redis: Redis) -> None:
    """Sidekiq's web UI may take a neighbour of the same score."""
    redis.zadd("dead", {failed("a"): 1.5, failed("b"): 1.5, failed("a", other=1): 1.5})
    first = next(iter(DeadSet().scan(Filter(jid="b"))))
    assert first.delete() is True
    assert first.delete() is False
    assert sorted(redis.zrange("dead", 0, -1)) == sorted([failed("a"), failed("a", other=1)])


def test_a_job_whose_new_queue_is_damaged_stays_where_it_is(redis: Redis) -> None:
    redis.set("queue:mail", "x")
    add(redis, "dead", "a", "b")
    with pytest.raises(WrongType, match=r"stays where it is.*queue:mail"):
        one(DeadSet()).retry()
    outcome = DeadSet().retry_all()
    assert (outcome.done, outcome.refused) == (0, 2)
    assert redis.zrange("dead", 0, -1, withscores=True) == [
        [failed("a"), 1700000000.25],
        [failed("b"), 1700000001.25],
    ]


@pytest.mark.parametrize("action", ["retry", "kill", "delete"])
def test_of_two_who_act_at_once_one_wins(redis: Redis, action: str) -> None:
    add(redis, "retry", *map(str, range(60)))
    entries = list(RetrySet())
    start, won = threading.Barrier(2), list[list[str]]()

    def act() -> None:
        start.wait(30)
        won.append([entry.jid for entry in entries if getattr(entry, action)()])

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won[0] + won[1], key=int) == [str(n) for n in range(60)]
    there = {"retry": redis.llen("queue:mail"), "kill": redis.zcard("dead"), "delete": 60}
    assert there[action] == 60
    assert redis.zcard("retry") == 0


# Hostile payloads


HOSTILE = {
    b"no JSON \xff\x1b[31m": "not JSON",
    b"[1, 2]": "a JSON array",
    b"42": "a JSON number",
    b'{"args": []}': "no job name",
    b"[" * 100_000: "not decoded|not JSON",
}


def test_what_is_no_job_is_an_entry_with_its_text(redis: Redis) -> None:
    redis.zadd("dead", {raw: at for at, raw in enumerate(HOSTILE)})
    redis.zadd("dead", {failed("a"): 99})
    found = list(DeadSet())
    assert [entry.raw for entry in found[:-1]] == list(HOSTILE)
    for entry in found[:-1]:
        assert entry.malformed
        assert (entry.jid, entry.name) == ("", "")
        assert entry.args == [entry.raw.decode("utf-8", "replace")]
        assert entry.masked == entry.raw
        with pytest.raises(MalformedPayload, match="delete it"):
            entry.retry()
    outcome = DeadSet().retry_all()
    assert (outcome.matched, outcome.done, outcome.refused) == (6, 1, 5)
    assert found[0].delete()
    assert DeadSet().delete_all().done == 4


def test_any_value_in_any_field_can_be_shown(redis: Redis) -> None:
    job = json.loads(failed("a"))
    odd: list[Any] = [None, True, -1, 10**400, 1.5, "x", [], [[]], {}, {"a": 1}]
    places: list[tuple[Location, float]] = [
        ("dead", float("inf")), ("retrying", 5.0), ("scheduled", float("-inf")), ("queued", 0.0),
    ]  # fmt: skip
    names = [
        *("args", "queue", "jid", "retry", "created_at", "enqueued_at", "failed_at", "retried_at"),
        *("retry_count", "retry_for", "tags", "error_class", "error_message", "error_backtrace"),
        *("forkq", "wrapped", "secret", "at"),
    ]
    server = api.server()
    entries = [
        entry_of(server, json.dumps({**job, name: value}).encode(), location, score=score)
        for name in names for value in odd
        for location, score in places
    ]  # fmt: skip
    properties = [n for n, v in vars(api.JobEntry).items() if isinstance(v, property)]
    for entry in entries:
        for name in properties:
            getattr(entry, name)
        Filter(job="x", error="x", tag="x", older_than=1, match="nothing").matches(entry)


def test_secrets_are_masked(redis: Redis) -> None:
    args = [{"user": 7, "password": "p", "deep": [{"api_key": "k", "passenger": "Ann"}]}]
    add(redis, "dead", "a", args=args, token="t")
    add(redis, "dead", "b", args=["s", 2], secret=True)
    shown = [{"user": 7, "password": "***", "deep": [{"api_key": "***", "passenger": "Ann"}]}]
    assert one(DeadSet()).args == shown
    assert json.loads(one(DeadSet()).masked)["token"] == "***"
    assert one(DeadSet(), "b").args == ["***", "***"]
    assert json.loads(one(DeadSet(), "b").masked)["args"] == ["***", "***"]


def test_an_active_job_shows_the_wrapped_class_and_its_arguments(redis: Redis) -> None:
    wrapped = {"job_class": "MailJob", "job_id": "x", "arguments": [1, "b"]}
    name = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
    job: dict[str, Any] = {"class": name, "wrapped": "MailJob", "args": [wrapped]}
    add(redis, "retry", "a", **job)
    found = one(RetrySet())
    assert (found.name, found.wrapper, found.args) == ("MailJob", name, [1, "b"])
    assert found.edit(args=[2])
    assert one(RetrySet()).job["args"] == [{**wrapped, "arguments": [2]}]


def test_a_damaged_set_is_empty(redis: Redis) -> None:
    redis.set("dead", "x")
    assert (DeadSet().size, list(DeadSet()), DeadSet().page(), DeadSet().find("a")) == (
        *(0, [], []), None,
    )  # fmt: skip
    assert DeadSet().delete_all().done == 0
    assert len(api.failures()) == 0


# Many jobs


def test_jobs_come_in_order_and_by_page(redis: Redis) -> None:
    add(redis, "dead", *map(str, range(450)))
    assert jids(list(DeadSet())) == [str(n) for n in range(450)]
    assert jids(list(DeadSet().scan(newest_first=True))) == [str(n) for n in range(449, -1, -1)]
    assert jids(DeadSet().page(10, 3)) == ["10", "11", "12"]
    assert jids(DeadSet().page(10, 3, newest_first=True)) == ["439", "438", "437"]
    assert DeadSet().page(9000) == []


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("same_score", [False, True])
def test_a_scan_survives_changes(redis: Redis, newest_first: bool, same_score: bool) -> None:
    """What is there all the time comes once, whatever is added or removed meanwhile, even the last
    one that was read, and even if all have one score."""
    raw = [failed(f"{n:04}", args=["é" * (n % 7)]) for n in range(900)]
    redis.zadd("dead", {one: 5.0 if same_score else n // 2 for n, one in enumerate(raw)})
    seen: list[bytes] = []
    removed = set()
    for number, entry in enumerate(DeadSet().scan(newest_first=newest_first)):
        seen.append(entry.raw)
        if number % 100 == 0:  # the pages are read 200 at a time
            for gone in (entry.raw, raw[0], raw[number % 900], raw[-1 - number % 900]):
                redis.zrem("dead", gone)
                removed.add(gone)
            redis.zadd("dead", {f"new{number}": 5.0})
        if number in (150, 199, 399):
            redis.zrem("dead", *(page := set(seen[-200:])))
            removed |= page
    stayed = [one for one in raw if one not in removed]
    assert [one for one in seen if one in set(stayed)] == sorted(
        stayed, key=lambda m: (redis.zscore("dead", m), m), reverse=newest_first
    )
    assert len(seen) == len(set(seen))


def test_a_filter_names_jobs(redis: Redis) -> None:
    now = time.time()
    add(redis, "dead", "a", score=now - 3600)
    add(redis, "dead", "b", score=now - 60, error_class="requests.exceptions.Timeout")
    add(redis, "dead", "c", score=now - 60, **OTHER, queue="low", tags=["t"])

    def named(**given: Any) -> list[str]:
        return jids(list(DeadSet().scan(Filter(**given))))

    assert named(job="Mail") == named(job="shop.*") == named(job="=shop.Mail") == ["a", "b"]
    assert named(job="=Mail") == []
    assert named(error="Timeout") == named(match="TIMEOUT") == ["b"]
    assert named(jid="c") == named(queue="low") == named(tag="t") == ["c"]
    assert named(older_than=600) == ["a"]
    assert named(newer_than=600, job="Mail") == ["b"]
    assert DeadSet().count(Filter(job="Mail")) == 2


@pytest.mark.parametrize(
    ("jobs", "act"),
    [
        *((RetrySet(), act) for act in ("cancel_all", "delete_all", "retry_all", "scan", "groups")),
        *((Queue("mail"), act) for act in ("cancel_all", "kill_all", "scan")),
    ],
)
def test_what_is_no_filter_is_refused_with_how_to_write_one(
    redis: Redis, jobs: Any, act: str
) -> None:
    add(redis, "retry", "a")
    with pytest.raises(ForkqError, match=r"'a' is no filter: pass .*Filter\(jid="):
        list(getattr(jobs, act)("a"))
    assert redis.zcard("retry") == 1


def test_a_selection_is_found_by_its_keys(redis: Redis) -> None:
    redis.zadd("dead", {failed(str(n)): 5.5 for n in range(500)})
    chosen = [one(DeadSet(), "7").key, one(DeadSet(), "499").key]
    assert all(len(key) == 32 and key.isalnum() for key in chosen)
    assert sorted(jids(list(DeadSet().scan(Filter(keys=chosen))))) == ["499", "7"]
    assert [DeadSet().get("nonsense"), DeadSet().get("f" * 32)] == [None, None]
    outcome = DeadSet().retry_all(Filter(keys=[*chosen, "0" * 32]))
    assert (outcome.total, outcome.seen, outcome.done) == (3, 2, 2)
    assert sorted(job["jid"] for job in pushed(redis)) == ["499", "7"]


def test_an_action_on_many_reports_its_progress_and_keeps_its_bounds(redis: Redis) -> None:
    add(redis, "retry", *map(str, range(500)))
    add(redis, "retry", "x", **OTHER)
    told: list[api.Outcome] = []
    dry = RetrySet().kill_all(Filter(job="Mail"), dry_run=True)
    assert (dry.total, dry.seen, dry.matched, dry.done) == (501, 501, 500, 0)
    assert redis.zcard("dead") == 0
    outcome = RetrySet().kill_all(Filter(job="Mail"), most=300, progress=told.append)
    assert (outcome.matched, outcome.done) == (300, 300)
    assert [o.done for o in told][-1] == 300
    assert len(told) > 1
    assert (redis.zcard("retry"), redis.zcard("dead")) == (201, 300)
    with pytest.raises(ForkqError, match="delete_all"):
        DeadSet().kill_all()


def test_move_all_moves_each_job_once(redis: Redis) -> None:
    redis.zadd("schedule", {failed(f"{n:03}"): 5.5 for n in range(450)})
    outcome = ScheduledSet().move_all("slow")
    assert (outcome.matched, outcome.done) == (450, 450)
    assert {entry.queue for entry in ScheduledSet()} == {"slow"}
    assert ScheduledSet().move_all("slow").matched == 0


def test_a_job_that_fails_again_meanwhile_is_left_alone(redis: Redis) -> None:
    add(redis, "dead", *map(str, range(300)))

    def fail_again(outcome: api.Outcome) -> None:
        if outcome.seen < 5000:  # else an action that takes them, too, would never end
            add(redis, "dead", f"again{outcome.seen}", score=time.time() + 60)

    outcome = DeadSet().retry_all(progress=fail_again)
    assert (outcome.matched, outcome.done) == (300, 300)
    assert all(entry.jid.startswith("again") for entry in DeadSet())


def test_what_was_deleted_can_be_put_back(redis: Redis) -> None:
    add(redis, "dead", *map(str, range(450)))
    add(redis, "dead", "other", **OTHER)
    before = redis.zrange("dead", 0, -1, withscores=True)
    outcome = DeadSet().delete_all(Filter(job="Mail"), undo=True)
    assert (outcome.done, DeadSet().size) == (450, 1)
    kept = redis.keys("forkq:undo:*")
    assert all(0 < redis.ttl(key) <= 600 for key in kept)
    assert api.undo(outcome.undo).done == 450
    assert redis.zrange("dead", 0, -1, withscores=True) == before
    assert redis.keys("forkq:undo:*") == []
    with pytest.raises(ForkqError, match="ten minutes are over"):
        api.undo(outcome.undo)


def test_nothing_is_kept_unless_it_is_asked_for(redis: Redis) -> None:
    add(redis, "dead", "a", "b")
    assert DeadSet().delete_all().undo == ""
    assert DeadSet().delete_all(undo=True).undo == ""  # there was nothing
    assert redis.keys("forkq:undo:*") == []


def test_clear_deletes_all(redis: Redis) -> None:
    add(redis, "dead", "a", "b")
    assert (DeadSet().clear(), DeadSet().clear(), redis.exists("dead")) == (2, 0, 0)
    redis.set("dead", "another program's")
    with pytest.raises(WrongType, match="dead"):
        DeadSet().clear()
    assert redis.get("dead") == b"another program's"


def test_failures_are_grouped(redis: Redis) -> None:
    now = time.time()
    add(redis, "dead", "a", "b", failed_at=now - 7200, retried_at=now - 3700)
    add(redis, "retry", "c", failed_at=now - 30, error_message="worse")
    add(redis, "retry", "d", error_class="KeyError")
    redis.zadd("dead", {b"no JSON": 1})
    first, *others = groups = api.failures()
    assert (groups.seen, groups.total, len(groups)) == (5, 5, 3)
    assert (first.job, first.error, first.count) == ("shop.Mail", "ValueError", 3)
    assert (first.retrying, first.dead, first.message) == (1, 2, "worse")
    assert first.first_seen == pytest.approx(now - 7200)
    assert first.last_seen == pytest.approx(now - 30)
    assert (len(first.hourly), first.hourly[-2:]) == (24, (2, 1))
    assert {(one.job, one.error) for one in others} == {("shop.Mail", "KeyError"), ("", "")}
    assert jids(list(DeadSet().scan(first.where))) == ["a", "b"]
    assert len(DeadSet().groups()) == 2


def test_a_job_is_found_wherever_it_is(redis: Redis) -> None:
    add(redis, "dead", "a")
    redis.sadd("queues", "mail")
    redis.lpush("queue:mail", failed("b"))
    redis.hset("{queue:mail}:inflight", "host:1:0123456789ab/1", failed("c"))
    found = {jid: api.entry(jid) for jid in "abcd"}
    assert [entry and entry.location for entry in found.values()] == [
        *("dead", "queued", "running"), None,
    ]  # fmt: skip
    running = found["c"]
    assert running is not None
    assert (running.owner, running.delete(), running.retry()) == (
        "host:1:0123456789ab",
        False,
        False,
    )
    assert redis.hlen("{queue:mail}:inflight") == 1
