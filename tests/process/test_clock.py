"""The clock's process killed, frozen and thawed: every job that is due arrives once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import APP, Journal, json_log, measured, pass_time, payloads, push
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

ROOT = Path(__file__).parents[2]

# Forks two clocks on one Redis, kills one or the other with SIGKILL every few milliseconds, and
# starts it again, until both sets are empty. Prints how many it has killed.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from redis import Redis
from forkq.clock.main import Clock
from forkq.config.config import Config, RedisSettings
from forkq.runtime import log
from forkq.runtime.assignment import Assignment

url, seed = sys.argv[1], int(sys.argv[2])
chance, redis, kills = random.Random(seed), Redis.from_url(url), 0
log.configure("error", "logfmt")

def clock(number):
    control, ours = os.pipe()
    report = os.open(os.devnull, os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        nowhere = Path("/nonexistent")
        config = Config(pidfile=nowhere, state_dir=nowhere, redis=RedisSettings(url=url))
        assignment = Assignment("clock", None, f"{number:012x}", control, report, False)
        os._exit(Clock(config, assignment, os.pipe()[0]).run())
    os.close(control)
    os.close(report)
    return pid, ours

def kill(pid, ours):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ours)

clocks = [clock(0), clock(1)]
began = time.monotonic()
deadline = began + 120
while redis.zcard("schedule") + redis.zcard("retry") and time.monotonic() < deadline:
    # More and more time: on a slow machine a clock needs it to get anything done.
    time.sleep(chance.uniform(0.005, 0.12 + (time.monotonic() - began) / 30))
    victim = chance.randrange(2)
    kill(*clocks[victim])
    kills += 1
    clocks[victim] = clock(kills + 1)
for each in clocks:
    kill(*each)
print(kills)
"""


def test_clocks_killed_again_and_again_lose_and_duplicate_nothing(
    redis: Redis, redis_server: Server
) -> None:
    """Six thousand jobs of both sets fall due meanwhile, some of them thousands at one instant."""
    begin, spread = time.time(), min(within(5), 60)
    for name in ("schedule", "retry"):
        entries = {}
        for number in range(3000):
            late = random.uniform(0, spread) if number % 2 else spread / 2
            jid = f"{name}-{number}"
            text = {"class": "J", "args": [], "jid": jid, "queue": f"q{number % 3}"}
            entries[json.dumps(text)] = begin + late
        redis.zadd(name, entries)
    command = [sys.executable, "-c", KILLER, redis_server.url, str(random.getrandbits(32))]
    killer = subprocess.run(
        bound.command(command), cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert killer.returncode == 0, killer.stderr
    assert not redis.exists("schedule", "retry", "dead")
    found: Counter[str] = Counter()
    for number in range(3):
        queue: Any = redis.lrange(f"queue:q{number}", 0, -1)
        found.update(json.loads(payload)["jid"] for payload in queue)
    wanted = {f"{name}-{number}" for name in ("schedule", "retry") for number in range(3000)}
    assert wanted == set(found)
    assert set(found.values()) == {1}
    measured(f"{killer.stdout.strip()} kills")
    assert int(killer.stdout) >= 5  # the fewer, the longer a fork takes: 40 on an idle machine


def test_jobs_that_fall_due_while_a_trees_clock_is_killed_run_once(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, env=journal.env)
    begin = time.time()
    jids = [push(redis_server, "Quick", 0, at=begin + 0.5 + number / 200) for number in range(400)]
    killed: set[int] = set()
    for _ in range(3):
        pass_time(0.3)
        victim = wait_until(lambda: another_clock(forkq, killed), deadline=20, what="another clock")
        assert victim is not None
        victim.kill()
        killed.add(victim.pid)
    journal.wait("end", jids, deadline=30)
    assert {len(lines) for lines in journal.runs().values()} == {1}
    assert not payloads(redis, "schedule")


def test_a_clock_that_was_frozen_goes_on_where_it_stood(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """As after a suspend: what fell due meanwhile runs at once, once, and nothing else does."""
    forkq = tree(redis_server, app=APP, env=journal.env)
    frozen = clock(forkq)
    wait_until(lambda: redis.exists("forkq:leader"), what="a leader")
    frozen.send_signal(signal.SIGSTOP)
    jids = [push(redis_server, "Quick", 0, at=time.time() + 0.1) for _ in range(5)]
    later = push(redis_server, "Quick", 0, at=time.time() + 600)
    pass_time(0.5)
    assert not journal.jids("begin")
    frozen.send_signal(signal.SIGCONT)
    journal.wait("end", jids)
    assert {len(lines) for lines in journal.runs().values()} == {1}
    assert [found["jid"] for found in payloads(redis, "schedule")] == [later]


# Loaded in the master, before any fork: every process of the host has the wrong time.
WRONG = """
import os
import time

true = time.time
time.time = lambda: true() + float(os.environ["FORKQ_TEST_WRONG"])

import forkq


@forkq.job(name="Fail")
def fail():
    raise ValueError("boom")


@forkq.every("* * * * * *", name="tick")
@forkq.job(name="Tick", queue="elsewhere")
def tick():
    pass
"""


@pytest.mark.parametrize("wrong", [3600, -3600])
def test_a_host_with_a_wrong_clock_goes_by_the_servers(
    own_server: Server, tree: StartTree, wrong: int
) -> None:
    """Its leader moves what is due, and nothing else; its children's retries come in time."""
    redis, begun = own_server.client(), int(time.time())
    early = push(own_server, "Fail", at=begun + 1800)
    due = push(own_server, "Fail", at=begun + 3)
    env = {"FORKQ_TEST_WRONG": str(wrong), "FORKQ_PRELOAD": "true"}
    forkq = tree(own_server, app=WRONG, args=["--log-format", "json"], env=env)
    [failed] = wait_until(lambda: payloads(redis, "retry"), deadline=30, what="the due job's run")
    assert failed["jid"] == due
    assert [job["jid"] for job in payloads(redis, "schedule")] == [early]
    scores: Any = redis.zrange("retry", 0, -1, withscores=True)
    [(_, at)] = scores
    assert 10 < at - failed["failed_at"] < 60
    # The server's time is measured by a round trip: it is off by half of that at most.
    assert time.time() - 60 < failed["failed_at"] < time.time() + 1
    last: Any = wait_until(lambda: redis.hget("forkq:cron:last", "tick"), what="a tick")
    assert begun <= int(last) < time.time() + 1
    told = [line for line in json_log(forkq) if "clock and redis's differ" in line["event"]]
    [line] = told
    assert abs(line["seconds_ahead"] - wrong) < 60, "exact but for a slow answer"


def test_a_clock_that_hangs_is_no_reason_to_wait_where_there_is_another(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its lease runs out; when it thaws, it moves nothing a second time."""
    first = tree(redis_server, app=APP, env=journal.env)
    wait_until(lambda: redis.exists("forkq:leader"), what="a leader")
    second = tree(redis_server, app=APP, env=journal.env)
    frozen = clock(first)
    frozen.send_signal(signal.SIGSTOP)
    jids = [push(redis_server, "Quick", 0, at=time.time() + 0.2) for _ in range(50)]
    journal.wait("end", jids, deadline=60)
    frozen.send_signal(signal.SIGCONT)
    more = [push(redis_server, "Quick", 0, at=time.time() + 0.2) for _ in range(50)]
    journal.wait("end", more, deadline=60)
    assert {len(lines) for lines in journal.runs().values()} == {1}
    for each in (first, second):
        assert each.stop() == 0


def test_a_wall_clock_beyond_all_jobs_is_no_matter_to_a_tree_that_stops(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A job that is due in a thousand years does not keep the clock from hearing the stop."""
    push(redis_server, "Quick", 0, at=time.time() + 1000 * 365 * 86_400)
    forkq = tree(redis_server, app=APP, env=journal.env)
    wait_until(lambda: redis.exists("forkq:leader"), what="a leader")
    assert forkq.stop(deadline=10) == 0
    assert len(payloads(redis, "schedule")) == 1


def clock(tree: ForkqTree) -> psutil.Process:
    """The tree's clock."""
    [found] = tree.children("forkq clock")
    return found


def another_clock(tree: ForkqTree, than: set[int]) -> psutil.Process | None:
    """The tree's clock, if it has one that is none of these."""
    return next((each for each in tree.children("forkq clock") if each.pid not in than), None)
