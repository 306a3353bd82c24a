"""A queue has two lists, its own and that of its suspects: the API reads and changes both."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import pytest
from redis import Redis

from forkq import api
from forkq.api import DeadSet, Filter, JobEntry, Queue, RetrySet, ScheduledSet
from forkq.errors import WrongType

pytestmark = pytest.mark.usefixtures("client")

PLAIN: Final = "queue:mail"
SUSPECTS: Final = "{queue:mail}:suspects"
INDEX: Final = "forkq:suspects"
CRASHES: Final = [{"at": time.time(), "signal": 9, "alone": True}]


def job(jid: object, **more: Any) -> bytes:
    fields = {"class": "Mail", "args": [], "queue": "mail", "jid": str(jid), "retry": True}
    return json.dumps({**fields, "enqueued_at": time.time() - 5, **more}).encode()


def suspect(jid: object, **more: Any) -> bytes:
    return job(jid, forkq={"suspect": True, "crashes": CRASHES}, **more)


def push(redis: Redis, *jids: object, **more: Any) -> None:
    redis.sadd("queues", "mail")
    redis.lpush(PLAIN, *(job(jid, **more) for jid in jids))


def isolate(redis: Redis, *jids: object, **more: Any) -> None:
    """Adds suspects as the rescue of a dead child does."""
    redis.sadd("queues", "mail")
    redis.sadd(INDEX, "mail")
    redis.lpush(SUSPECTS, *(suspect(jid, **more) for jid in jids))


def jids(entries: Any) -> list[str]:
    return [entry.jid for entry in entries]


def in_list(redis: Redis, key: str) -> list[str]:
    """The jids there, the next one first."""
    return [json.loads(raw)["jid"] for raw in reversed(redis.lrange(key, 0, -1))]


# Contents


def test_suspects_come_first_and_say_that_they_are(redis: Redis) -> None:
    push(redis, *"abc")
    isolate(redis, *"xy")
    queue = Queue("mail")
    found = list(queue)
    assert jids(found) == ["x", "y", "a", "b", "c"]
    assert [entry.suspect for entry in found] == [True, True, False, False, False]
    assert jids(queue.scan(newest_first=True)) == ["c", "b", "a", "y", "x"]
    assert jids(queue.scan(Filter(jid="y"))) == ["y"]
    assert jids(queue.page(1, 3)) == ["y", "a", "b"]
    assert jids(queue.page(3, 9)) == ["b", "c"]
    assert jids(queue.page(2, 2, newest_first=True)) == ["a", "y"]
    assert jids(queue.page(4, 2, newest_first=True)) == ["x"]
    assert queue.page(5) == []


def test_a_job_without_the_flag_among_the_suspects_is_one_too(redis: Redis) -> None:
    redis.lpush(SUSPECTS, job("z"))
    redis.sadd(INDEX, "mail")
    redis.lpush(PLAIN, suspect("flagged"))
    assert [(e.jid, e.suspect) for e in Queue("mail")] == [("z", True), ("flagged", True)]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("sizes", [(450, 1), (1, 450), (450, 450), (0, 450), (450, 0)])
def test_long_lists_are_read_in_pages_one_after_the_other(
    redis: Redis, sizes: tuple[int, int], newest_first: bool
) -> None:
    plain, alone = (
        [f"{kind}{n}" for n in range(count)] for kind, count in zip("ps", sizes, strict=True)
    )
    if plain:
        push(redis, *plain)
    if alone:
        isolate(redis, *alone)
    expected = [*alone, *plain]
    queue = Queue("mail")
    assert jids(queue.scan(newest_first=newest_first)) == expected[:: -1 if newest_first else 1]
    assert queue.delete_all(Filter(match='"jid"')).done == len(expected)
    assert queue.size == 0


def test_a_job_that_is_there_all_the_time_comes_once(redis: Redis) -> None:
    """While suspects are fetched, come back to either end, or go to the plain list."""
    push(redis, *(f"p{n}" for n in range(500)))
    isolate(redis, *(f"s{n}" for n in range(500)))
    found = []
    for number, entry in enumerate(Queue("mail")):
        found.append(entry.jid)
        if number == 100:
            redis.rpop(SUSPECTS, 250)
            isolate(redis, "new")
            redis.rpush(SUSPECTS, suspect("returned"))
        if number == 350:
            redis.lmove(SUSPECTS, PLAIN, "LEFT", "RIGHT")
            redis.rpop(PLAIN, 10)
    stayed = [*(f"s{n}" for n in range(250, 500)), *(f"p{n}" for n in range(10, 500))]
    assert [jid for jid in found if jid in set(stayed)] == stayed
    assert len(found) == len(set(found))


def test_an_action_ends_while_suspects_and_other_jobs_come(redis: Redis) -> None:
    push(redis, *(f"p{n}" for n in range(450)))
    isolate(redis, *(f"s{n}" for n in range(450)))
    new: list[str] = []

    def come(_: api.Outcome) -> None:
        new.append(f"n{len(new)}")
        redis.lpush(PLAIN, job(f"p{new[-1]}"))
        redis.lpush(SUSPECTS, suspect(f"s{new[-1]}"))

    outcome = Queue("mail").delete_all(progress=come)
    assert (outcome.total, outcome.done) == (900, 900)
    assert in_list(redis, PLAIN) == [f"p{jid}" for jid in new]
    assert in_list(redis, SUSPECTS) == [f"s{jid}" for jid in new]


def test_size_and_latency_count_both_lists(redis: Redis) -> None:
    queue = Queue("mail")
    push(redis, "a", enqueued_at=time.time() - 100)
    assert (queue.size, round(queue.latency, -1)) == (1, 100)
    isolate(redis, "x", "y", enqueued_at=time.time() - 500)
    assert (queue.size, round(queue.latency, -1)) == (3, 500)
    [state] = api.queues()
    assert (state.size, state.suspects) == (3, 2)
    stats = api.stats()
    assert stats.enqueued == 3
    [figures] = stats.queues
    assert (figures.size, round(figures.latency, -1)) == (3, 500)
    redis.delete(PLAIN)
    assert (queue.size, round(queue.latency, -1)) == (2, 500)


def test_a_queue_that_was_deleted_is_listed_while_it_has_suspects(redis: Redis) -> None:
    """Sidekiq's UI deletes the list and the name."""
    push(redis, "a")
    isolate(redis, "x")
    redis.delete(PLAIN)
    redis.srem("queues", "mail")
    assert api.queue_names() == ["mail"]
    assert [state.name for state in api.queues()] == ["mail"]
    assert [figures.size for figures in api.stats().queues] == [1]
    assert [report.state.size for report in api.queue_reports()] == [1]
    assert Queue("mail").delete("x")
    assert api.queue_names() == []


def test_the_suspects_of_a_queue_that_was_deleted_run_once_it_has_a_name_again(
    redis: Redis,
) -> None:
    isolate(redis, "x")
    redis.srem("queues", "mail")
    outcome = Queue("mail").delete_all(undo=True)
    api.undo(outcome.undo)
    assert redis.smembers("queues") == {b"mail"}
    assert redis.smembers(INDEX) == {b"mail"}


def test_a_report_says_how_many_suspects_wait_to_run_alone(redis: Redis) -> None:
    isolate(redis, "x")
    [hold] = [hold for hold in Queue("mail").report().holds if hold.kind == "alone"]
    assert hold.text == "1 suspect waits to run alone, in a solo child"
    isolate(redis, "y")
    assert "2 suspects wait to run alone" in [h.text for h in Queue("mail").report().holds][-1]
    push(redis, "a")
    assert [h for h in Queue("mail").report().holds if h.kind == "alone"] == []


def test_queues_without_suspects_cost_no_round_trip_more(redis: Redis) -> None:
    """Nor a command, where the names of the queues are read before."""
    push(redis, *"abc")
    redis.sadd("queues", "empty")
    queue = Queue("mail")
    queue.page()
    asked: list[Any] = []
    for look in (lambda: queue.size, lambda: queue.latency, lambda: queue.page(2, 9), api.stats):
        redis.config_resetstat()
        look()
        stats: Any = redis.info("commandstats")
        asked.append(
            [stats.get(f"cmdstat_{c}", {}).get("calls", 0) for c in ("llen", "lindex", "evalsha")]
        )
    # A script's commands count, too; stats ask for the size and the head of two queues.
    assert asked == [[2, 0, 0], [0, 2, 0], [2, 0, 1], [2, 2, 0]]


# Actions


def test_each_action_finds_the_job_in_the_list_that_has_it(redis: Redis) -> None:
    push(redis, "a")
    isolate(redis, *"wxyz")
    queue = Queue("mail")
    edited = next(iter(queue)).edit(args=[7])
    assert edited is not None
    assert (edited.jid, edited.suspect, edited.delete()) == ("w", True, True)
    assert queue.delete("x")
    assert not queue.delete("x")
    found = queue.find("y")
    assert found is not None
    assert found.kill()
    assert not found.kill()
    assert in_list(redis, SUSPECTS) == ["z"]
    assert in_list(redis, PLAIN) == ["a"]
    assert redis.smembers(INDEX) == {b"mail"}
    entry = api.entry("z")
    assert entry is not None
    assert entry.suspect
    assert entry.delete()
    assert redis.smembers(INDEX) == set()


ALL: Final[dict[str, Callable[[Queue], api.Outcome]]] = {
    "delete_all": lambda queue: queue.delete_all(),
    "kill_all": lambda queue: queue.kill_all(),
    "move_all": lambda queue: queue.move_all("low"),
}


@pytest.mark.parametrize("act", ALL)
def test_an_action_on_all_jobs_takes_both_lists_and_the_name_in_the_index(
    redis: Redis, act: str
) -> None:
    push(redis, *range(300))
    isolate(redis, *(f"s{number}" for number in range(300)))
    outcome = ALL[act](Queue("mail"))
    assert (outcome.total, outcome.done) == (600, 600)
    assert not redis.exists(PLAIN, SUSPECTS)
    assert redis.smembers(INDEX) == ({b"low"} if act == "move_all" else set())


def test_a_moved_suspect_is_one_in_its_new_queue(redis: Redis) -> None:
    push(redis, "a")
    isolate(redis, "x", "y")
    redis.lpush(SUSPECTS, job("without the flag"))
    redis.lpush(PLAIN, suspect("flagged"))
    assert next(iter(Queue("mail"))).move("other")
    assert in_list(redis, "{queue:other}:suspects") == ["x"]
    assert Queue("mail").move_all("low").done == 4
    assert in_list(redis, "{queue:low}:suspects") == ["y", "without the flag", "flagged"]
    assert in_list(redis, "queue:low") == ["a"]
    assert redis.smembers("queues") == {b"mail", b"low", b"other"}
    assert redis.smembers(INDEX) == {b"low", b"other"}
    assert [entry.queue for entry in Queue("low")] == ["low"] * 4


def test_undo_puts_each_job_back_into_its_list(redis: Redis) -> None:
    push(redis, *range(300))
    isolate(redis, *(f"s{number}" for number in range(300)))
    redis.lpush(SUSPECTS, job("without the flag"))
    before = jids(Queue("mail"))
    outcome = Queue("mail").delete_all(undo=True)
    assert outcome.done == 601
    assert api.undo(outcome.undo).done == 601
    assert jids(Queue("mail")) == before
    assert redis.llen(SUSPECTS) == 301
    assert redis.smembers(INDEX) == {b"mail"}


@pytest.mark.parametrize("damaged", [SUSPECTS, INDEX])
def test_what_cannot_go_back_to_the_suspects_goes_to_the_plain_list(
    redis: Redis, damaged: str
) -> None:
    isolate(redis, "x")
    outcome = Queue("mail").delete_all(undo=True)
    redis.delete(damaged)
    redis.set(damaged, "another program's")
    redis.zadd("dead", {suspect("y"): 1})
    assert api.undo(outcome.undo).done == 1
    assert DeadSet().retry_all().done == 1
    assert sorted(in_list(redis, PLAIN)) == ["x", "y"]
    assert redis.get(damaged) == b"another program's"
    assert redis.exists(INDEX) == (damaged == INDEX)


def test_clear_deletes_both_lists_and_the_name(redis: Redis) -> None:
    push(redis, *"abc")
    isolate(redis, *"xy")
    assert Queue("mail").clear() == 5
    assert redis.keys("*") == []


def test_clear_leaves_what_is_no_list(redis: Redis) -> None:
    push(redis, *"abc")
    redis.set(SUSPECTS, "another program's")
    assert Queue("mail").clear() == 3
    assert redis.get(SUSPECTS) == b"another program's"
    redis.delete(SUSPECTS)
    isolate(redis, "x")
    redis.set(PLAIN, "another program's")
    with pytest.raises(WrongType):
        Queue("mail").clear()
    assert in_list(redis, SUSPECTS) == ["x"]


def test_a_damaged_list_of_suspects_is_left_out(redis: Redis) -> None:
    push(redis, *"ab")
    redis.set(SUSPECTS, "another program's")
    redis.sadd(INDEX, "mail")
    queue = Queue("mail")
    assert (queue.size, queue.latency > 0, jids(queue), jids(queue.page())) == (
        2, True, ["a", "b"], ["a", "b"],
    )  # fmt: skip
    assert [state.suspects for state in api.queues()] == [0]
    assert api.stats().enqueued == 2
    assert [hold.kind for hold in queue.report().holds] == ["unserved"]
    assert queue.delete_all().done == 2
    assert api.damaged_keys() == [SUSPECTS]


def test_suspects_are_counted_while_the_index_is_damaged(redis: Redis) -> None:
    push(redis, "a")
    isolate(redis, "x")
    redis.delete(INDEX)
    redis.set(INDEX, "another program's")
    assert api.queue_names() == ["mail"]
    assert [state.size for state in api.queues()] == [2]
    assert api.stats().enqueued == 2
    assert api.damaged_keys() == [INDEX]


def test_a_look_at_a_large_suspect_takes_little_memory(redis: Redis) -> None:
    """It may be one that kills whoever decodes it: 15 times as large as objects."""
    isolate(redis, "x", args=[[]] * 200_000)
    api.stats()
    tracemalloc.start()
    try:
        assert (Queue("mail").latency > 0, api.stats().queues[0].latency > 0) == (True, True)
        assert api.queue_reports()[0].latency > 0
        assert api.is_alive("x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


# From the sets


def add_to(redis: Redis, key: str, *payloads: bytes) -> None:
    redis.zadd(key, dict.fromkeys(payloads, 1.0))


SENT: Final[dict[str, tuple[str, Callable[[JobEntry], bool]]]] = {
    "retry a dead one": ("dead", JobEntry.retry),
    "retry one that waits for its retry": ("retry", JobEntry.retry),
    "a scheduled one now": ("schedule", JobEntry.add_to_queue),
    "move a dead one": ("dead", lambda entry: entry.move("mail")),
}


@pytest.mark.parametrize("case", SENT)
def test_a_flagged_job_of_a_set_goes_among_the_suspects(redis: Redis, case: str) -> None:
    key, send = SENT[case]
    add_to(redis, key, suspect("x"), job("a"))
    places: Any = {"dead": DeadSet, "retry": RetrySet, "schedule": ScheduledSet}
    found = {entry.jid: entry for entry in places[key]()}
    assert found["x"].suspect
    assert not found["a"].suspect
    assert all(send(entry) for entry in found.values())
    assert in_list(redis, SUSPECTS) == ["x"]
    assert in_list(redis, PLAIN) == ["a"]
    assert redis.smembers(INDEX) == redis.smembers("queues") == {b"mail"}


def test_a_dead_job_that_has_killed_its_process_alone_is_retried_alone(redis: Redis) -> None:
    add_to(redis, "dead", job("x", forkq={"crashes": CRASHES}), job("a", forkq={"crashes": []}))
    assert DeadSet().retry_all(fresh=True).done == 2
    assert in_list(redis, SUSPECTS) == ["x"]
    assert in_list(redis, PLAIN) == ["a"]
