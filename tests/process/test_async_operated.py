"""What an operator does to a tree holds for coroutines: in a capsule of threads, whose child has a
loop for them, and in one of ``kind = "async"``."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from redis import Redis

import forkq
from tests.process.shared import (
    Journal,
    payloads,
    push,
    push_many,
    title,
    wait_events,
    wait_settled,
    wait_swept,
    waiting,
    workers,
)
from tests.process.test_debugger import Terminal
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

APP = Path(__file__).with_name("async_app.py")
Kind: TypeAlias = Literal["threads", "async"]
KINDS = pytest.mark.parametrize("kind", ["threads", "async"])
Start: TypeAlias = Callable[..., ForkqTree]
Command: TypeAlias = Callable[..., str]
ONCE = "\n@forkq.job(name='Version')\nasync def version() -> None:\n    record('version-1')\n"


@pytest.fixture
def start(redis_server: Server, tree: StartTree, journal: Journal) -> Start:
    """Starts a tree with one capsule of that kind, for 10 jobs at a time in each child."""

    def started(
        kind: Kind, *args: str, app: str | Path = APP, more: str = "", many: int = 10, **named: Any
    ) -> ForkqTree:
        config = f'{more}\n[capsules.default]\nkind = "{kind}"\nconcurrency = {many}\n'
        options = ["--log-format", "json", *args]
        return tree(redis_server, app=app, config=config, args=options, env=journal.env, **named)

    return started


@pytest.fixture
def server(redis_server: Server) -> Iterator[Any]:
    """What the API reads."""
    with closing(forkq.Client(redis_server.url)) as client:
        yield client.servers.default


@pytest.fixture
def command(redis_server: Server) -> Command:
    """Runs a command of forkq that succeeds, and returns what it prints."""

    def run(tree: ForkqTree, *args: str) -> str:
        done = tree.run(*args, "--redis", redis_server.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """Jobs of the class Gate wait for it."""
    return tmp_path / "door"


def ran_once(journal: Journal) -> bool:
    return all(len(runs) == 1 for runs in journal.runs().values())


@KINDS
def test_a_rate_lets_no_more_start(
    start: Start, redis: Redis, redis_server: Server, server: Any, journal: Journal, kind: Kind
) -> None:
    """docs/limits.md: "over any minute at most 100, and one more for the first"."""
    jids = push_many(redis_server, "Nap", [[0]] * 30)
    start(kind, more='[rates]\ndefault = { rate = "3/hour", burst = 3 }')
    journal.wait("end", jids[:3])
    queue = forkq.Queue("default", server)
    wait_until(lambda: queue.report().state.size == 27, what="the rest in its queue")
    assert waiting(redis) == jids[3:]
    assert journal.jids("begin") == set(jids[:3])


@KINDS
def test_a_pause_lets_what_runs_end_and_nothing_begin(
    start: Start,
    command: Command,
    redis: Redis,
    redis_server: Server,
    journal: Journal,
    kind: Kind,
    door: Path,
) -> None:
    """docs/limits.md: "no job starts until the queue is resumed"."""
    tree = start(kind)
    running = push_many(redis_server, "Gate", [[str(door)]] * 3)
    journal.wait("begin", running)
    command(tree, "pause", "default")
    later = push_many(redis_server, "Nap", [[0]] * 5)
    door.touch()
    journal.wait("end", running)
    wait_until(lambda: waiting(redis) == later, what="the rest in its queue")
    assert journal.jids("begin") == set(running)
    command(tree, "resume", "default")
    journal.wait("end", later)
    wait_settled(redis)


@KINDS
def test_a_rolling_restart_ends_coroutines_in_the_old_child_and_has_new_code(
    start: Start, redis: Redis, redis_server: Server, journal: Journal, kind: Kind, door: Path
) -> None:
    """docs/signals.md: "Rolling restart with new code"."""
    tree = start(kind, app=APP.read_text() + ONCE)
    running = push_many(redis_server, "Gate", [[str(door)]] * 5)
    journal.wait("begin", running)
    [old] = workers(tree)
    path = tree.cwd / "jobs.py"
    path.write_text(path.read_text().replace("version-1", "version-2"))
    tree.signal(signal.SIGUSR2)
    tree.wait_log("every child is new")
    wait_until(lambda: "busy]" not in title(old), what="the old child to retire")
    jid = push(redis_server, "Version")
    journal.wait("version-2", [jid])
    door.touch()
    journal.wait("end", running)
    wait_until(lambda: not old.is_running(), what="the end of the old child")
    assert {line.pid for line in journal.lines("end")} == {old.pid}
    assert ran_once(journal)
    assert tree.stop() == 0


PRELOADED = "\nLOADED_BY = os.getpid()\n" + ONCE.replace("version-1", "by-{LOADED_BY}").replace(
    "'by", "f'by"
)


@KINDS
def test_with_preload_each_child_has_a_loop_of_its_own(
    start: Start, redis_server: Server, journal: Journal, kind: Kind, door: Path
) -> None:
    """docs/async.md: "One event loop in each child". The master has loaded the app."""
    tree = start(kind, "-w", "2", more="[forkq]\npreload = true", app=APP.read_text() + PRELOADED)
    jids = push_many(redis_server, "Gate", [[str(door)]] * 20)
    journal.wait("begin", jids)
    assert {line.pid for line in journal.lines("begin")} == {one.pid for one in workers(tree)}
    door.touch()
    journal.wait("end", jids)
    journal.wait(f"by-{tree.pid}", [push(redis_server, "Version")])
    assert tree.stop() == 0


@KINDS
def test_recycled_children_lose_no_coroutine_and_repeat_none(
    start: Start, redis: Redis, redis_server: Server, journal: Journal, kind: Kind
) -> None:
    """docs/configuration.md: "After about how many jobs a child is replaced"."""
    tree = start(kind, more="[forkq]\nmax_jobs = 40")
    jids: list[str] = []
    while len({line.pid for line in journal.lines("begin")}) < 3:
        jids += push_many(redis_server, "Nap", [[0.01]] * 20)
        journal.wait("begin", jids[:-20])
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert ran_once(journal)
    assert tree.stop() == 0


@pytest.mark.parametrize("limit", ['max_memory = "150MB"', "max_age = 1"])
def test_a_child_that_is_large_or_old_ends_its_coroutines_beside_a_new_one(
    start: Start, redis: Redis, redis_server: Server, journal: Journal, door: Path, limit: str
) -> None:
    """docs/configuration.md: the new child takes jobs before those of the old one have ended."""
    tree = start("async", more=f"[forkq]\n{limit}")
    [old] = workers(tree)
    running = push_many(redis_server, "Gate", [[str(door)]] * 3)
    running += push_many(redis_server, "Grow", [[200, str(door)]])
    journal.wait("begin", running)
    line = wait_events(tree, "recycling a child")[0]
    assert (line["why"], line["pid"]) == (limit.split(maxsplit=1)[0], old.pid)
    wait_until(lambda: "busy]" not in title(old), what="the old child to retire")
    later = push_many(redis_server, "Nap", [[0]] * 5)
    journal.wait("end", later)
    assert journal.jids("end").isdisjoint(running)
    door.touch()
    wait_settled(redis)
    assert {one.pid for one in journal.lines("end") if one.jid in running} == {old.pid}
    assert ran_once(journal)
    wait_until(lambda: not old.is_running(), what="the end of the old child")


def test_a_save_replaces_the_child_and_its_coroutines_end(
    start: Start, redis: Redis, redis_server: Server, journal: Journal, door: Path
) -> None:
    """docs/operating.md: `forkq start --reload`."""
    pytest.importorskip("watchfiles", reason="pip install 'forkq[reload]'")
    tree = start("async", "--reload", app=APP.read_text() + ONCE)
    running = push_many(redis_server, "Gate", [[str(door)]] * 3)
    journal.wait("begin", running)
    [old] = workers(tree)
    path = tree.cwd / "jobs.py"
    path.write_text(path.read_text().replace("version-1", "version-2"))
    wait_until(lambda: "busy]" not in title(old), what="the old child to retire")
    journal.wait("version-2", [push(redis_server, "Version")])
    assert not journal.jids("end")
    door.touch()
    wait_settled(redis)
    assert {line.pid for line in journal.lines("end")} == {old.pid}
    assert ran_once(journal)


WHICH = """
@forkq.job(name="Which")
async def which() -> None:
    await asyncio.sleep(0)
    record(type(asyncio.get_running_loop()).__module__)
"""


@pytest.mark.parametrize("found", ["asyncio.unix_events", "uvloop"])
def test_a_child_has_the_loop_of_uvloop_where_that_is_installed(
    start: Start,
    redis_server: Server,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    found: str,
) -> None:
    """docs/async.md: "Where uvloop is installed, the loop is one of uvloop"."""
    if found == "uvloop":
        pytest.importorskip("uvloop")
        monkeypatch.setenv("FORKQ_TEST_WITH_UVLOOP", "1")
    tree = start("async", app=APP.read_text() + WHICH)
    jids = push_many(redis_server, "Which", [[]] * 20)
    jids += push_many(redis_server, "Nap", [[0.01]] * 100)
    journal.wait(found, jids[:20])
    journal.wait("end", jids[20:])
    assert ran_once(journal)
    assert tree.stop() == 0


@KINDS
def test_small_mode_runs_coroutines_and_its_stop_lets_them_clean_up(
    start: Start, redis: Redis, redis_server: Server, journal: Journal, kind: Kind
) -> None:
    """docs/small-mode.md: master, child and clock in one process."""
    tree = start(kind, "--processes", "one", "--timeout", "0.5")
    done = push_many(redis_server, "Nap", [[0.01]] * 30)
    journal.wait("end", done)
    jids = push_many(redis_server, "Nap", [[600]] * 5)
    journal.wait("begin", jids)
    assert {line.pid for line in journal.lines()} == {tree.pid}
    tree.signal(signal.SIGTERM)
    tree.wait()
    assert journal.jids("finally") == {*done, *jids}
    assert sorted(waiting(redis)) == sorted(jids)


@KINDS
def test_metrics_count_coroutines_by_class_and_outcome(
    start: Start, command: Command, server: Any, redis_server: Server, kind: Kind
) -> None:
    """docs/metrics.md: "Runs of forkq's children by outcome", and their times."""
    tree = start(kind)
    push_many(redis_server, "Nap", [[0.05]] * 20)
    push_many(redis_server, "Fail", [[]] * 3, retry=False)
    report = forkq.api.Metrics(server)

    def counted() -> dict[str, tuple[int, int]]:
        return {row.job: (row.processed, row.failed) for row in report.over(5).classes}

    wait_until(lambda: counted() == {"Nap": (20, 0), "Fail": (3, 3)}, what="all figures")
    [nap] = [row for row in report.over(5).classes if row.job == "Nap"]
    assert nap.seconds >= 20 * 0.05
    text = command(tree, "metrics", "--once")
    assert re.search(r'forkq_jobs_total\{class="Nap",outcome="done"\} 20', text), text[:2000]


@KINDS
def test_a_crash_is_certified_with_the_jobs_and_the_stack(
    start: Start,
    command: Command,
    redis: Redis,
    redis_server: Server,
    journal: Journal,
    kind: Kind,
    door: Path,
) -> None:
    """docs/jobs.md: one line says how the child died, and with which jobs; so does the record."""
    tree = start(kind)
    [neighbour] = push_many(redis_server, "Gate", [[str(door)]])
    journal.wait("begin", [neighbour])
    wait_swept(redis, tree)
    jid = push(redis_server, "Segfault")
    wait_until(lambda: redis.zcard("dead"), deadline=60, what="the burial")
    door.touch()
    wait_settled(redis)
    first = wait_events(tree, "child died")[0]
    assert first["how"] == "SIGSEGV"
    named = {text.rpartition(" (")[0] for text in re.split(r"(?<=\)), ", first["in_progress"])}
    assert f"Segfault {jid}" in named
    assert "in segfault" in first["stack"]
    [dead] = payloads(redis, "dead")
    assert dead["jid"] == jid
    assert "in segfault" in dead["forkq"]["crashes"][-1]["stack"]
    found = json.loads(command(tree, "find", jid, "--json"))
    assert found["crashes"][-1]["jobs"] == 1
    assert neighbour in journal.jids("end")
    assert tree.stop() == 0


@KINDS
def test_stacks_name_each_coroutine_by_its_job(
    start: Start,
    command: Command,
    redis: Redis,
    redis_server: Server,
    journal: Journal,
    kind: Kind,
    door: Path,
) -> None:
    """docs/async.md: `forkq processes stacks` shows where each coroutine waits."""
    tree = start(kind)
    gates = push_many(redis_server, "Gate", [[str(door)]] * 3)
    nap = push(redis_server, "Nap", 600)
    journal.wait("begin", [*gates, nap])
    processes: Any = redis.smembers("processes")
    command(tree, "processes", "stacks", *(str(each, "utf-8") for each in processes))
    tree.wait_log(f"(?s){nap}.*in nap|in nap.*{nap}")
    text = tree.log_text()
    assert "in gate" in text
    assert any(jid in text for jid in gates)


LOOK = """
import asyncio, forkq

@forkq.job(name="Look", timeout=0.2)
async def look(secret: int) -> None:
    await asyncio.sleep(0)
    breakpoint()
    print("the job has seen", secret + 1, flush=True)
"""


@KINDS
def test_a_debugger_in_a_coroutine_has_the_terminal(
    redis: Redis, redis_server: Server, kind: Kind
) -> None:
    """docs/operating.md: `breakpoint()` with `forkq start -c 1 --foreground`."""
    config = f'[capsules.default]\nkind = "{kind}"\n'
    config += "threads = 1\n" if kind == "async" else ""
    tree = ForkqTree(redis_server, app=LOOK, config=config, args=["-c", "1", "--foreground"])
    terminal = Terminal(tree)
    try:
        terminal.wait("ready ")
        push(redis_server, "Look", 41)
        terminal.wait(r"\(Pdb\) $")
        terminal.type("secret\n")
        terminal.wait(r"41\r\n\(Pdb\) $")
        terminal.type("c\n")
        terminal.wait("the job has seen 42")
        wait_settled(redis)
        assert redis.zcard("retry") == 0
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(30) == 0
    finally:
        tree.close()
        terminal.process.wait(10)
        terminal.close()
