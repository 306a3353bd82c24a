"""Iterable jobs of forkq and of a real Sidekiq, 7.3 or later, on one Redis: one side begins, the
other one goes on, and each hears when the other one cancels."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

import forkq
from forkq import iteration, middleware, registry
from tests.redis.in_process_child import InProcessChild
from tests.redis.test_iterable import ENDS, JID, KEY, over, push, stop_after
from tests.support import ruby as ruby_support
from tests.support.server import Server
from tests.support.waiting import wait_until

OBSTACLE = ruby_support.iterable_obstacle()
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=OBSTACLE or "")

RUBY_JOBS = """
require "sidekiq"
require "sidekiq/job/iterable"
class Walk
  include Sidekiq::IterableJob
  def build_enumerator(total, cursor:)
    array_enumerator((0...total).to_a, cursor: cursor)
  end
  def each_iteration(item, total)
    Sidekiq.redis { |r| r.call("RPUSH", "items", "ruby #{item}") }
    sleep(0.05)
  end
end
"""


@pytest.fixture(autouse=True)
def walk(monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    monkeypatch.setattr(registry, "_jobs", {})
    monkeypatch.setattr(middleware, "client", middleware.Chain())

    class Walk(forkq.IterableJob, name="Walk"):
        def build_enumerator(self, total: int, cursor: int | None = None) -> Any:
            return forkq.cursors.sequence(range(total), cursor)

        def each_iteration(self, item: int, total: int) -> None:
            redis.rpush("items", f"forkq {item}")


@pytest.fixture
def ruby(redis_server: Server) -> Callable[[str], None]:
    def run(code: str) -> None:
        program = f"{RUBY_JOBS}\n{code}"
        environment = {**os.environ, "REDIS_URL": redis_server.url}
        subprocess.run(["ruby", "-e", program], env=environment, check=True, timeout=60)

    return run


def items(redis: Redis) -> list[str]:
    found: Any = redis.lrange("items", 0, -1)
    return [item.decode() for item in found]


def test_forkq_begins_and_sidekiq_goes_on(
    redis: Redis, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(redis, 6)
    stop_after(monkeypatch, 2)
    with InProcessChild(redis_server.url, concurrency=1) as child:
        wait_until(lambda: len(items(redis)) == 2, what="two items")
        child.manager.quiet()
        wait_until(lambda: redis.llen("queue:default"), what="the stop")
    with ruby_support.sidekiq(redis_server, tmp_path, RUBY_JOBS):
        wait_until(lambda: len(items(redis)) == 6, deadline=60, what="the other items")
        wait_until(lambda: not redis.exists(KEY), what="the end")
    assert items(redis) == ["forkq 0", "forkq 1", *(f"ruby {item}" for item in range(2, 6))]


def test_sidekiq_begins_and_forkq_goes_on(
    redis: Redis, redis_server: Server, tmp_path: Path
) -> None:
    push(redis, 40)
    with ruby_support.sidekiq(redis_server, tmp_path, RUBY_JOBS):
        wait_until(lambda: len(items(redis)) > 3, deadline=60, what="its first items")
    begun = items(redis)
    assert redis.llen("queue:default") == 1
    with InProcessChild(redis_server.url, concurrency=1):
        wait_until(over(redis), what="the end")
    rest = [f"forkq {item}" for item in range(len(begun), 40)]
    assert items(redis) == [*(f"ruby {item}" for item in range(len(begun))), *rest]
    assert not redis.exists(KEY)


def test_forkq_ends_what_ruby_cancels(
    redis: Redis,
    redis_server: Server,
    ruby: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iteration, "_SAVE_EVERY", 0.0)
    ruby(f"job = Walk.new; job.jid = '{JID}'; job.cancel!")
    push(redis, 5)
    redis.hdel(KEY, "c")  # as it is where the job has no cursor yet
    with InProcessChild(redis_server.url, concurrency=1):
        wait_until(over(redis), what="the end")
    assert items(redis) == []
    assert redis.hget(ENDS, "Walk|cancelled") == b"1"
    assert not redis.exists(KEY)


def test_sidekiq_ends_what_forkq_cancels(
    client: forkq.Client, redis: Redis, redis_server: Server, tmp_path: Path
) -> None:
    """Also before the job has a cursor."""
    push(redis, 5)
    forkq.cancel(JID, wait=0)
    with ruby_support.sidekiq(redis_server, tmp_path, RUBY_JOBS):
        wait_until(lambda: not redis.exists("queue:default"), deadline=60, what="its fetch")
        wait_until(lambda: not redis.exists(KEY), deadline=60, what="its end")
    assert items(redis) == []
