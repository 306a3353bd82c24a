"""The API reads and changes large sets in short steps, without loading them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from redis import Redis

from forkq.api import DeadSet, Filter, JobEntry, Queue, bulk, pages
from forkq.api.bulk import _DEEP, _MOST_AT_ONCE
from forkq.api.pages import PAGE

COUNT = 30_000
STEP = 10_000
FILL = """
for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local job = '{"class":"Mail' .. n % 100 .. '","args":[],"queue":"mail","jid":"' .. n .. '"}'
  if ARGV[3] == 'set' then
    redis.call('ZADD', KEYS[1], math.floor(n / 1000), job)
  else
    redis.call('LPUSH', KEYS[1], job)
  end
end
"""
pytestmark = pytest.mark.usefixtures("client")


def fill(redis: Redis, key: str, kind: str, count: int = COUNT) -> None:
    for first in range(1, count + 1, STEP):  # one script for all may outlast the client's time-out
        redis.eval(FILL, 1, key, str(first), str(min(first + STEP - 1, count)), kind)
    redis.config_resetstat()


def scripts(redis: Redis) -> int:
    """How many scripts have run since the server was filled."""
    calls: Any = redis.info("commandstats")
    return int(calls.get("cmdstat_evalsha", {}).get("calls", 0))


def alive() -> int:
    """How many are in memory. isinstance would ask the lazy objects of other tests."""
    return sum(type(each) is JobEntry for each in gc.get_objects())


@pytest.mark.parametrize("kind", ["set", "list"])
def test_a_large_set_or_queue_is_read_in_short_scripts_and_not_kept(
    redis: Redis, kind: str
) -> None:
    """No script returns more than a page, and no more than two pages are in memory."""
    fill(redis, "dead" if kind == "set" else "queue:mail", kind)
    entries = iter(DeadSet() if kind == "set" else Queue("mail"))
    next(entries)
    assert scripts(redis) <= 2  # the server may not know the script
    seen, most = 1, 0
    for _ in entries:
        seen += 1
        if seen % 9_999 == 0:
            most = max(most, alive())
    assert seen == COUNT
    assert scripts(redis) >= COUNT / PAGE
    assert most <= 2 * PAGE


def test_an_action_on_some_of_many_changes_a_page_at_a_time(redis: Redis) -> None:
    fill(redis, "dead", "set", 20_000)
    seen: list[int] = []
    outcome = DeadSet().retry_all(Filter(job="Mail7"), progress=lambda o: seen.append(o.seen))
    assert (outcome.seen, outcome.matched, outcome.done) == (20_000, 200, 200)
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) <= PAGE
    assert (redis.zcard("dead"), redis.llen("queue:mail")) == (19_800, 200)


def test_from_the_middle_of_a_long_queue_many_are_removed_in_one_pass(redis: Redis) -> None:
    """Redis reads a list from its end to remove an entry: a pass for each job would take hours, and
    one for each page minutes."""
    fill(redis, "queue:mail", "list", 30_000)
    outcome = Queue("mail").delete_all(Filter(job="Mail*5"), most=2500)
    assert outcome.done == 2500
    calls: Any = redis.info("commandstats")
    assert calls["cmdstat_lrem"]["calls"] <= _DEEP / PAGE + outcome.done / _MOST_AT_ONCE + 2
    assert Queue("mail").size == 27_500


@pytest.mark.parametrize("job", ["*", "Mail7"])
def test_jobs_that_are_fetched_meanwhile_cost_no_search(redis: Redis, job: str) -> None:
    """To look for one that has left, Redis would read the whole queue: as long as children fetch,
    the server would do little else."""
    fill(redis, "queue:mail", "list", 6_000)
    really = pages.ListPages.next

    def read(found: pages.ListPages, count: int = PAGE) -> list[JobEntry]:
        page = really(found, count)
        redis.rpop("queue:mail", 60)  # and so before 30 jobs of each class are read
        return page

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages.ListPages, "next", read)
        outcome = Queue("mail").delete_all(Filter(job=job))
    assert outcome.gone > 0
    assert outcome.done + outcome.gone == outcome.matched
    assert not list(Queue("mail").scan(Filter(job=job)))
    calls: Any = redis.info("commandstats")
    assert calls["cmdstat_lrem"]["calls"] <= outcome.seen / PAGE
    assert "cmdstat_lpos" not in calls


@pytest.mark.parametrize("deep", [0, _DEEP])
def test_deep_in_a_queue_jobs_are_found_that_have_moved(redis: Redis, deep: int) -> None:
    """Others were fetched or returned since the page was read, and equal payloads are there; also
    where the jobs of several pages are removed together."""
    fill(redis, "queue:mail", "list", 2_000)
    queue, ends = Queue("mail"), redis.lrange("queue:mail", -3, -1)
    really, moves = pages.ListPages.next, iter(["fetch", "return", "fetch all", ""])

    def read(found: pages.ListPages, count: int = PAGE) -> list[JobEntry]:
        page = really(found, count)
        match next(moves, ""):
            case "fetch":
                redis.rpop("queue:mail", 3)
            case "return":
                redis.rpush("queue:mail", *ends)
            case "fetch all":
                redis.rpop("queue:mail", 900)
        return page

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages.ListPages, "next", read)
        patched.setattr(bulk, "_DEEP", deep)
        outcome = queue.kill_all(Filter(job="Mail*5"))
    assert outcome.done + outcome.gone == outcome.matched
    left = [entry.name for entry in queue]
    assert sum(name.endswith("5") for name in left) <= 1  # of those that were returned
    assert outcome.done == DeadSet().size
    assert len(left) + outcome.done + 900 == 2_000
