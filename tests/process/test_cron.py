"""Periodic jobs in a real tree: from the decorator and the file to the run, each tick once."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from tests.process.shared import Journal, json_log, wait_events, workers
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

# Each run tells its tick in place of the jid: `Journal` reads it as such.
APP = """
import os, time
import forkq

JOURNAL = os.open(os.environ["FORKQ_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def record(event):
    mark = forkq.current_job().payload["forkq"]
    line = f"{event} {mark['cron']}/{mark['tick']} {os.getpid()} {time.time()}\\n"
    os.write(JOURNAL, line.encode())


@forkq.every("* * * * * *", name="code")
@forkq.job(name="Tell")
def told(who="default"):
    record(who)


@forkq.every("* * * * * *", name="slow", overlap="skip")
@forkq.job(name="Slow")
def slow():
    record("begin")
    time.sleep(2.2)
    record("end")
"""

CONFIG = """
[[cron]]
name = "file"
cron = "* * * * * *"
job = "Tell"
args = ["named"]
"""

_NOT_PUBLISHED = (
    "periodic jobs not published: another app has defined these names, and runs; they are taken "
    "over within a minute after it has ended, as after a change of this app's name or tag; if both "
    "shall run, rename them"
)
_TAKEN_OVER = "periodic jobs taken over from an app that does not run"


def ticks(journal: Journal, name: str, event: str | None = None) -> list[int]:
    """The ticks of an entry whose jobs have run."""
    lines = journal.lines(*([event] if event else []))
    found = (line.jid.partition("/") for line in lines)
    return sorted(int(tick) for owner, _, tick in found if owner == name)


def consecutive(found: list[int]) -> bool:
    return found == list(range(found[0], found[-1] + 1))


def wait_consecutive(journal: Journal, name: str) -> None:
    """Waits until every tick of an entry up to the latest has run: a job may stand still before it
    tells, while the next one runs."""
    wait_until(lambda: consecutive(ticks(journal, name)), what=f"the ticks between, of {name!r}")


def wait_ticks(journal: Journal, name: str, count: int) -> list[int]:
    """Waits until that many ticks of an entry have run, from now on."""
    before = len(ticks(journal, name))
    return wait_until(
        lambda: found if len(found := ticks(journal, name)) >= before + count else [],
        deadline=90,
        what=f"{count} more runs of {name!r}",
    )


def wait_tick_after(journal: Journal, name: str, moment: float) -> None:
    """Waits until a tick of an entry has run that is later than ``moment``, epoch seconds."""
    wait_until(
        lambda: max(ticks(journal, name), default=0) > moment,
        deadline=90,
        what=f"a run of {name!r} after {moment}",
    )


def start(tree: StartTree, server: Server, journal: Journal) -> ForkqTree:
    return tree(
        server,
        app=APP,
        config=CONFIG,
        args=["-t", "5", "--concurrency", "10", "--log-format", "json"],
        env=journal.env,
    )


def history(redis: Redis, name: str) -> list[dict[str, Any]]:
    lines: Any = redis.lrange(f"forkq:cron:runs:{name}", 0, -1)
    return [json.loads(line) for line in reversed(lines)]


def test_jobs_of_code_and_file_run_each_second_and_each_tick_once(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    start(tree, own_server, journal)
    for name in ("code", "file"):
        wait_ticks(journal, name, 5)
        wait_consecutive(journal, name)
    # The leader measures the server's time by a round trip, so it may be a little ahead.
    assert all(line.at > int(line.jid.partition("/")[2]) - 1 for line in journal.lines("default"))
    told = {line.event for line in journal.lines() if line.jid.startswith("file/")}
    assert told == {"named"}
    runs = history(own_server.client(), "code")
    assert {"enqueued", "done"} == {run["event"] for run in runs}


def test_a_slow_job_is_not_joined_by_its_next_tick(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    start(tree, own_server, journal)
    wait_ticks(journal, "slow", 6)
    told = [line.event for line in journal.lines("begin", "end")]
    assert told == ["begin", "end"] * (len(told) // 2) + ["begin"] * (len(told) % 2)
    assert "skipped" in {run["event"] for run in history(own_server.client(), "slow")}


@pytest.mark.parametrize("what", ["the clock is killed", "a child is killed", "rolling restart"])
def test_ticks_go_on_through_a_change_of_processes(
    tree: StartTree, own_server: Server, journal: Journal, what: str
) -> None:
    running = start(tree, own_server, journal)
    wait_ticks(journal, "code", 2)
    for _ in range(2):
        before = {process.pid for process in running.children()}
        if what == "the clock is killed":
            running.children("forkq clock")[0].kill()
        elif what == "a child is killed":
            workers(running)[0].kill()
        else:
            running.signal(signal.SIGUSR2)
        wait_until(
            lambda before=before: {p.pid for p in running.children()} - before,  # type: ignore[misc]
            deadline=60,
            what="a new process",
        )
        wait_ticks(journal, "code", 2)
    running.stop()
    redis = own_server.client()
    wait_until(lambda: not running.alive, what="the end")
    found = Counter(ticks(journal, "code"))
    waiting: Any = redis.lrange("queue:default", 0, -1)
    left = [json.loads(payload) for payload in waiting]
    for job in left:
        if job["forkq"]["cron"] == "code":
            found[job["forkq"]["tick"]] += 1
    assert consecutive(sorted(found))
    enqueued = Counter(run["tick"] for run in history(redis, "code") if run["event"] == "enqueued")
    assert set(enqueued.values()) == {1}


def test_two_trees_on_one_redis_share_the_ticks(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    first = start(tree, own_server, journal)
    start(tree, own_server, journal)
    wait_ticks(journal, "code", 3)
    first.stop()
    wait_ticks(journal, "code", 3)
    wait_consecutive(journal, "code")


def test_an_entry_that_a_deploy_has_dropped_ticks_no_more(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    running = start(tree, own_server, journal)
    wait_ticks(journal, "file", 2)
    (running.cwd / "forkq.toml").write_text("")
    running.stop()
    running.start().wait_ready()
    redis = own_server.client()
    wait_until(lambda: not redis.hexists("forkq:cron", "file"), what="its removal")
    removal = time.time()
    wait_tick_after(journal, "code", removal + 1)
    assert ticks(journal, "file")[-1] <= removal
    assert set(redis.hkeys("forkq:cron")) == {b"code", b"slow"}
    [removed] = wait_until(
        lambda: [line for line in json_log(running) if "jobs removed" in line["event"]],
        what="the line of the removal",
    )
    assert (removed["names"], removed["level"]) == (["file"], "warning")


def test_an_app_that_was_renamed_goes_on_with_its_own_entries(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    """And what it no longer defines sleeps, instead of ticking for ever under the old name."""
    running = start(tree, own_server, journal)
    wait_ticks(journal, "file", 2)
    redis = own_server.client()
    found: Any = redis.keys("forkq:cron:origin:*")
    [announced] = found
    running.stop()
    (running.cwd / "forkq.toml").write_text('[forkq]\ntag = "renamed"\n')
    running.start().wait_ready()
    [told] = wait_events(running, _NOT_PUBLISHED, deadline=60)
    assert told["names"] == ["code", "slow"]
    redis.delete(announced)  # as a minute's end does
    [told] = wait_events(running, _TAKEN_OVER, deadline=60)
    asleep = time.time() + within(2)  # the clock has to hear of it
    assert told["names"] == ["code", "slow"]
    wait_tick_after(journal, "code", asleep + 1)
    wait_consecutive(journal, "code")
    definitions: Any = redis.hgetall("forkq:cron")
    origins = {name: json.loads(raw)["origin"] for name, raw in definitions.items()}
    assert origins == {
        b"code": "code:renamed",
        b"slow": "code:renamed",
        b"file": announced.decode().replace("forkq:cron:origin", "file"),
    }
    assert ticks(journal, "file")[-1] <= asleep
    assert running.run("cron", "remove", "file", "--redis", own_server.url).returncode == 0


HOURLY = """
import forkq


@forkq.every("0 * * * *", name="{name}")
@forkq.job(name="Hourly")
def hourly():
    pass
"""


def test_a_killed_child_of_the_old_version_does_not_bring_its_periodic_jobs_back(
    tree: StartTree, own_server: Server
) -> None:
    """Two versions of a service run. What was started or rolled last decides."""
    redis = own_server.client()

    def start_version(name: str) -> ForkqTree:
        args = ["-g", "shop", "--log-format", "json"]
        env = {"FORKQ_LOG_LEVEL": "debug"}
        return tree(own_server, app=HOURLY.format(name=name), args=args, env=env)

    def wait_for(*names: str) -> None:
        wanted = {name.encode() for name in names}
        wait_until(lambda: set(redis.hkeys("forkq:cron")) == wanted, deadline=60, what=str(names))

    old = start_version("v1")
    wait_for("v1")
    new = start_version("v2")
    wait_for("v2")
    workers(old)[0].kill()
    wait_events(old, "a newer child of this app publishes the periodic jobs", deadline=60)
    wait_for("v2")
    old.signal(signal.SIGUSR2)
    wait_for("v1")  # now it is the newer one
    workers(new)[0].kill()
    wait_events(new, "a newer child of this app publishes the periodic jobs", deadline=60)
    old.stop()
    wait_for("v1")  # until its claim has run out: docs/periodic.md


def test_ticks_that_passed_while_all_was_down_are_made_up_for_by_the_latest(
    tree: StartTree, own_server: Server, journal: Journal
) -> None:
    """A tree that was stopped for an hour: seen from Redis, the last tick is an hour old."""
    running = start(tree, own_server, journal)
    wait_ticks(journal, "code", 2)
    running.stop()
    redis = own_server.client()
    redis.delete("queue:default")
    back = int(time.time()) - 3600
    redis.hset("forkq:cron:last", "code", back)
    again = back + 3600
    running.start().wait_ready()
    wait_tick_after(journal, "code", again + 2)
    told = wait_events(running, "ticks of a periodic job were missed")
    assert told[0]["count"] == "more than can be counted"
    # A clock that stands still while it makes up for them misses the ticks that grow too old.
    assert {line["name"] for line in told} == {"code"}
    hour = {tick for tick in ticks(journal, "code") if back < tick < again - 55}
    assert len(hour) <= 7  # the latest of the hour's, and some of the last minute's
