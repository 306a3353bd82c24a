"""Unique jobs while children, masters and pushers are killed, and jobs are deleted by the web UI,
by commands and by Sidekiq's own API: the lock of a job that lives is never taken, and no lock whose
job is gone stands in the way for longer than two minutes."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.wire.times import now
from tests.process.shared import measured, workers
from tests.support import bound
from tests.support.ruby import obstacle
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within
from tests.web.shared import client_of, confirm

APP = Path(__file__).with_name("unique_app.py")
RUNS, STOP = "test:runs", "test:stop"  # as in that file
BOUND: Final = 120.0  # seconds
PLACES: Final = ("queue:default", "{queue:default}:inflight", "schedule", "retry")
# All jobs that wait or run, and the locks with the jids that have them, at one moment.
SNAPSHOT = """
local jobs, locks = {}, {}
local function add(found) for _, each in ipairs(found) do jobs[#jobs + 1] = each end end
for _, list in ipairs({ 'queue:default', '{queue:default}:suspects' }) do
  add(redis.call('LRANGE', list, 0, -1))
end
add(redis.call('HVALS', '{queue:default}:inflight'))
for _, set in ipairs({ 'schedule', 'retry' }) do add(redis.call('ZRANGE', set, 0, -1)) end
for _, lock in ipairs(redis.call('KEYS', 'forkq:unique:*')) do
  if lock ~= 'forkq:unique:doubt' then
    locks[#locks + 1], locks[#locks + 2] = lock, redis.call('HGET', lock, 'jid')
  end
end
return { jobs, locks }
"""
# Deletes up to so many jobs by chance, wherever they are, for each line that it reads.
RUBY = """
require "sidekiq"
require "sidekiq/api"
Sidekiq.configure_client { |config| config.redis = { url: ENV.fetch("URL") } }
$stdout.sync = true
$stdin.each_line do |line|
  jobs = [Sidekiq::Queue.new("default"), Sidekiq::ScheduledSet.new, Sidekiq::RetrySet.new]
  puts jobs.flat_map(&:to_a).sample(line.to_i).count { |job| job.delete }
end
"""


class Watch:
    """Looks at all jobs and locks again and again. ``gone``: since when (monotonic) a lock stands
    whose job is nowhere; ``longest``: the longest time for which one did."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.gone: dict[tuple[bytes, bytes], float] = {}
        self.longest = 0.0
        self.looks = self.found_gone = 0

    def until(self, condition: Callable[[], object], what: str, deadline: float = 60.0) -> None:
        """Looks again and again, until that is true."""

        def seen() -> object:
            self.look()
            return condition()

        wait_until(seen, deadline=deadline, what=what, every=0.05)

    def look(self) -> None:
        """Fails if two jobs of one lock live, if one that lives has not its lock, or if a lock has
        been in the way for too long."""
        found: Any = self._redis.eval(SNAPSHOT, 0)
        at, (jobs, flat) = time.monotonic(), found
        locks = dict(zip(flat[::2], flat[1::2], strict=True))
        living = defaultdict(set)
        for job in map(json.loads, jobs):
            lock = f"forkq:unique:{job['forkq']['needs']['unique']['lock']}"
            living[lock.encode()].add(job["jid"].encode())
        assert {lock: jids for lock, jids in living.items() if jids != {locks.get(lock)}} == {}
        gone = {(lock, jid) for lock, jid in locks.items() if lock not in living}
        self.found_gone += len(gone - self.gone.keys())
        self.longest = max([self.longest, *(at - since for since in self.gone.values())])
        assert self.longest < within(BOUND)
        self.gone = {each: self.gone.get(each, at) for each in gone}
        self.looks += 1


class Chaos:
    """Kills processes, and deletes jobs, each by chance. ``done`` counts what was done."""

    def __init__(self, tree: ForkqTree, program: subprocess.Popen[bytes], url: str) -> None:
        self._tree = tree
        self._program = program
        self._url = url
        self.done: Counter[str] = Counter()
        self._ruby = None if obstacle() else _ruby(url)
        forkq.configure(url)
        self._web = client_of()

    def kill(self) -> None:
        """A SIGKILL to a child, to a process that pushes, or, less often, to the master."""
        what = random.choices(("child", "pusher", "master"), (6, 3, 1))[0]
        if what == "master":
            found = [psutil.Process(self._tree.pid)]
        else:
            parent = psutil.Process(self._program.pid)
            found = workers(self._tree) if what == "child" else parent.children()
        with suppress(psutil.NoSuchProcess, IndexError):
            random.choice(found).kill()
            self.done[f"kills of a {what}"] += 1
        if what == "master":
            wait_until(lambda: not self._tree.alive, what="the end of the master")
            self._tree.start()

    def delete(self) -> None:
        """Deletes some jobs that wait, in one of the ways in which people do."""
        ways: list[Callable[[], int]] = [self._by_page, self._by_command, self._clear]
        ways += [self._by_ruby] if self._ruby else []
        way = random.choice(ways)
        self.done[f"deleted {way.__name__.strip('_').replace('_', ' ')}"] += way()

    def __enter__(self) -> Chaos:
        return self

    def __exit__(self, *error: object) -> None:
        default_client.forget()
        if self._ruby is not None:
            self._ruby.communicate()

    def _by_page(self) -> int:
        html = self._web.get("/queue?name=default").text
        keys = re.findall(r'name="key" value="([^"]+)" aria-label="Select Index', html)
        at = re.search(r'name="at" value="(\d+)"', html)
        if at is None or not keys:
            return 0
        fields: Any = {
            "name": "default",
            "at": at[1],
            "key": random.sample(keys, min(3, len(keys))),
        }
        with suppress(AssertionError):  # all were fetched meanwhile: there is no question
            confirm(self._web, "/queue/jobs/delete", **fields)
        return len(fields["key"])

    def _by_command(self) -> int:
        kind = random.choice(("jobs", "retries", "scheduled"))
        return self._run(kind, "delete", "--class", "Ind*", "--limit", "3")

    def _clear(self) -> int:
        return self._run("queues", "clear", "default")

    def _run(self, *command: str) -> int:
        """How many jobs the command has deleted."""
        done = self._tree.run(*command, "--yes", "--json", "--redis", self._url)
        if "nothing to do" in done.stderr:
            return 0
        return int(json.loads(done.stdout)["done"])

    def _by_ruby(self) -> int:
        assert self._ruby is not None
        assert self._ruby.stdin is not None
        assert self._ruby.stdout is not None
        self._ruby.stdin.write("3\n")
        self._ruby.stdin.flush()
        return int(self._ruby.stdout.readline())


def _ruby(url: str) -> subprocess.Popen[str]:
    command = bound.command(["ruby", "-e", RUBY])
    environ = {**os.environ, "URL": url}
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@contextmanager
def pushing(server: Server, pushers: int) -> Iterator[subprocess.Popen[bytes]]:
    """So many processes that push, as long as the block runs."""
    environ = {**os.environ, "FORKQ_TEST_REDIS": server.url}
    command = bound.command([sys.executable, str(APP), server.url, str(pushers)])
    program = subprocess.Popen(command, env=environ)
    try:
        yield program
        server.client().set(STOP, 1)
        wait_until(lambda: program.poll() is not None, what="the end of the pushes")
    finally:
        found = psutil.Process(program.pid).children() if program.poll() is None else []
        program.kill()
        program.wait()
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def runs(redis: Redis) -> int:
    found: Any = redis.get(RUNS)
    return int(found or 0)


def wreck(trees: StartTree, server: Server, *, kills: int, ages: bool) -> Watch:
    """Kills and deletes so often, and then waits until no lock without a job is left. ``ages``: as
    if their minute had passed, in which nothing doubts them."""
    redis = server.client()
    watch = Watch(redis)
    environ = {"FORKQ_TEST_REDIS": server.url}
    tree = trees(server, app=APP, args=["-w", "2", "-c", "4", "--log-level", "error"], env=environ)
    with pushing(server, 4) as program:
        wait_until(lambda: runs(redis), what="the first run")
        with Chaos(tree, program, server.url) as chaos:
            for number in range(kills):
                five_more = runs(redis) + 5
                chaos.kill()
                if not number % 3:
                    chaos.delete()
                watch.until(partial(has_run, redis, five_more), "five more runs")
        if ages:
            age(redis, watch)
        watch.until(lambda: not watch.gone, "no lock without a job", BOUND)
    watch.until(lambda: not redis.exists(*PLACES), "the end of all jobs")
    told = [f"{count} {what}" for what, count in sorted(chaos.done.items())]
    told += [f"{watch.looks} looks", f"{watch.found_gone} locks whose job was gone"]
    measured(f"{', '.join(told)}, one of them for {watch.longest:.1f} s")
    return watch


def has_run(redis: Redis, count: int) -> bool:
    """Whether there were so many runs."""
    return runs(redis) >= count


def age(redis: Redis, watch: Watch) -> None:
    """Leaves some locks without a job, whose minute is over."""
    watch.until(lambda: redis.llen("queue:default") > 2, "jobs that wait")
    redis.ltrim("queue:default", 2, -1)
    watch.look()
    assert watch.gone
    for lock, _ in watch.gone:
        redis.hset(lock, "sure", round((now() - 1) * 1000))


def test_locks_of_living_jobs_stay_and_others_leave_the_way(
    tree: StartTree, redis_server: Server
) -> None:
    wreck(tree, redis_server, kills=9, ages=True)


def test_the_watch_notices_a_lock_that_was_taken(redis: Redis) -> None:
    """It can fail: in each of its three ways."""
    watch = Watch(redis)
    needs = {"unique": {"lock": "d", "for": 60.0, "until": "end"}}
    jobs = [json.dumps({"jid": jid, "forkq": {"needs": needs}}) for jid in ("a", "b")]
    redis.hset("forkq:unique:d", "jid", "a")
    redis.lpush("queue:default", jobs[0])
    watch.look()
    redis.lpush("queue:default", jobs[1])
    with pytest.raises(AssertionError):
        watch.look()
    redis.delete("queue:default")
    watch.look()
    assert list(watch.gone.values()) == [pytest.approx(time.monotonic(), abs=5)]
    watch.gone = {each: since - within(BOUND) - 60 for each, since in watch.gone.items()}
    with pytest.raises(AssertionError):
        watch.look()


@pytest.mark.slow
def test_many_kills_and_deletes(tree: StartTree, redis_server: Server) -> None:
    kills = int(os.environ.get("FORKQ_TEST_KILLS", "1000"))
    watch = wreck(tree, redis_server, kills=kills, ages=False)
    assert watch.found_gone >= kills / 50
