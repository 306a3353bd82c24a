"""A restart of a running tree (USR2, `forkq restart`): new code and configuration, from a fresh
interpreter, tried by one child first."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from redis import Redis

from forkq.client import Client
from forkq.config.capsule import Capsule
from tests.process.shared import APP as JOBS
from tests.process.shared import (
    Journal,
    events,
    measured,
    payloads,
    push,
    push_many,
    title,
    wait_events,
    wait_settled,
    wait_swept,
    waiting,
    workers,
    zombies,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until, within

# `helper` is imported by the app: with preload, only a fresh interpreter sees a change of it.
APP = """
    import ctypes, os, time, forkq
    from pathlib import Path
    import helper

    JOURNAL = os.open(os.environ["FORKQ_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def record(event):
        jid = forkq.current_job().jid
        os.write(JOURNAL, f"{event} {jid} {os.getpid()} {time.monotonic()}\\n".encode())

    @forkq.job(name="Work")
    def work(seconds):
        record("begin")
        helper.work()
        time.sleep(seconds)
        record("end")
        record(helper.VERSION)

    @forkq.job(name="Crash")
    def crash(path):
        record("begin")
        while not Path(path).exists():
            time.sleep(0.01)
        ctypes.string_at(0)

    @forkq.job(name="Gate")
    def gate(path):
        record("begin")
        while not Path(path).exists():
            time.sleep(0.01)
        record("end")
"""
HELPER = "VERSION = {version!r}\n\ndef work():\n    {work}\n"
DEADLINE = 120.0
JSON = ["--log-format", "json"]
CALLED_OFF = "rolling restart called off: the new child died; the old ones go on"


class Release:
    """A tree whose app and configuration change on disk."""

    def __init__(self, forkq: ForkqTree, *, preload: bool) -> None:
        self.tree = forkq
        self.preload = preload
        self.hang = forkq.cwd / "hang"

    def write(self, version: str, *, top: str = "", work: str = "pass") -> None:
        """New code. Each version has a length of its own: Python's cache of compiled code looks at
        the size, and at the second in which the file was written."""
        text = top + HELPER.format(version=version, work=work)
        (self.tree.cwd / "helper.py").write_text(text)

    def configure(self, more: str = "", workers: int = 2) -> None:
        """A new forkq.toml."""
        settings = f"preload = {str(self.preload).lower()}\nworkers = {workers}\ntimeout = 5\n"
        (self.tree.cwd / "forkq.toml").write_text(f"[forkq]\n{settings}{more}")

    def state(self) -> str:
        """Of the last restart."""
        return str(self.tree.status().get("restart", {}).get("state"))


@pytest.fixture
def release(
    redis_server: Server, redis: Redis, journal: Journal, request: pytest.FixtureRequest
) -> Iterator[Release]:
    """Version "one", which runs; with preload if the test says so."""
    del redis  # its data is flushed before the tree starts
    preload = getattr(request, "param", False)
    forkq = ForkqTree(redis_server, app=APP, env=journal.env, args=JSON)
    made = Release(forkq, preload=preload)
    made.configure()
    made.write("one")
    try:
        forkq.start().wait_ready()
        yield made
    finally:
        forkq.close()


def restart(forkq: ForkqTree) -> tuple[int, str]:
    """`forkq restart --wait`: its exit code and what it said."""
    done = forkq.run("restart", "--wait", deadline=DEADLINE)
    return done.returncode, done.stdout + done.stderr


both = pytest.mark.parametrize("release", [False, True], ids=["import", "preload"], indirect=True)
# Preload changes how the new children come by the app: test_new_code_... tries that each time.
with_preload_slow = pytest.mark.parametrize(
    "release",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["import", "preload"],
    indirect=True,
)


@both
def test_new_code_and_configuration_without_a_new_master(
    release: Release, redis_server: Server, journal: Journal
) -> None:
    """More and fewer children than before, other queues; and a second restart after it."""
    forkq, pid = release.tree, release.tree.pid
    old = forkq.children()
    release.configure(
        "[capsules.default]\nqueues = ['default', 'more']\nconcurrency = 3\n"
        "[capsules.other]\nqueues = ['other']\n",
        workers=1,
    )
    release.write("number-two")
    assert restart(forkq) == (0, f"forkq {pid} restarts its children\nevery child is new\n")
    wait_until(lambda: not set(old) & set(forkq.children()), what="the end of the old children")
    names = ["clock", "default.0", "other.0"]
    wait_until(lambda: sorted(c["name"] for c in status_children(forkq)) == names, what="the rest")
    jids = [push(redis_server, "Work", 0, queue=name) for name in ("default", "more", "other")]
    journal.wait("number-two", jids)
    assert forkq.alive
    assert not zombies(forkq)
    assert restart(forkq)[0] == 0
    assert forkq.stop() == 0
    forkq.assert_gone()


@with_preload_slow
def test_code_that_cannot_be_imported_is_rolled_back(
    release: Release, redis_server: Server, journal: Journal
) -> None:
    """With the reason. The old children go on; with preload their successors have the old code."""
    forkq, old = release.tree, workers(release.tree)
    release.write("a-broken-one", top="def oops(:\n")
    code, said = restart(forkq)
    assert code == 1
    assert "rolled back, the old children go on" in said
    assert "SyntaxError" in said
    wait_until(lambda: workers(forkq) == old, what="the old children alone")
    if release.preload:
        old[0].kill()
        wait_until(lambda: len(workers(forkq)) == 2 and forkq.ready(), what="a successor")
    jid = push(redis_server, "Work", 0)
    journal.wait("one", [jid])
    release.write("the-mended-one")
    assert restart(forkq)[0] == 0
    journal.wait("the-mended-one", [push(redis_server, "Work", 0)])


@with_preload_slow
def test_code_whose_first_job_kills_its_child_is_rolled_back(
    release: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """No other child gets it, and every job is done, by the old code."""
    forkq, old = release.tree, workers(release.tree)
    jids = push_many(redis_server, "Work", [[0.1]] * 1000)
    release.write("a-killer", work="import os; os.kill(os.getpid(), 9)")
    code, said = restart(forkq)
    assert code == 1
    assert "it died with SIGKILL" in said
    assert set(old) == set(workers(forkq))
    wait_settled(redis, deadline=60)
    assert journal.jids("one") == set(jids)
    begun_by = {line.pid for line in journal.lines("begin")}
    assert len(begun_by - {child.pid for child in old}) == 1, "the canary alone ran the new code"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[forkq\n", "forkq.toml.*line 1"),
        ("[forkq]\nworkrs = 1\n", "forkq.toml: forkq.workrs: unknown key"),
        ('[forkq]\npidfile = "other.pid"\n', r"forkq.toml: \[forkq\] pidfile has changed"),
        ('[redis]\nprefix = "x"\n', r"forkq.toml: \[redis\] prefix has changed"),
    ],
    ids=["syntax", "key", "pidfile", "prefix"],
)
def test_a_wrong_configuration_is_refused_and_the_old_tree_goes_on(
    release: Release, redis_server: Server, journal: Journal, text: str, reason: str
) -> None:
    forkq, old = release.tree, release.tree.children()
    (forkq.cwd / "forkq.toml").write_text(text)
    forkq.signal(signal.SIGUSR2)
    (line,) = wait_events(forkq, CALLED_OFF)
    assert re.search(reason, line["reason"], re.DOTALL)
    wait_until(lambda: forkq.children() == old, what="the old children alone")
    journal.wait("one", [push(redis_server, "Work", 0)])
    assert forkq.stop() == 0


def test_user_and_password_in_the_url_may_change(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The new login first, then a rolling restart, then the end of the old login. Another server or
    another database is refused: its jobs are others."""
    at = own_server.url.removeprefix("redis://")
    everything = ("~*", "&*", "+@all")
    own_server.cli("ACL", "SETUSER", "ann", "on", ">first", *everything)
    config = '[redis]\nurl = "redis://{}@{}"\n'
    config_at_first = config.format("ann:first", at)
    forkq = tree(None, app=JOBS, config=config_at_first, args=JSON, env=journal.env)
    file = forkq.cwd / "forkq.toml"
    file.write_text(config.format("ann:first", at.replace("/0", "/1")))
    code, said = restart(forkq)
    assert (code, "[redis] url has changed" in said) == (1, True)
    own_server.cli("ACL", "SETUSER", "bob", "on", ">second", *everything)
    file.write_text(config.format("bob:second", at))
    assert restart(forkq)[0] == 0
    own_server.cli("ACL", "DELUSER", "ann")  # ends its connections
    jid = push(own_server, "Nap", 1)
    journal.wait("begin", [jid])
    workers(forkq)[0].kill()
    wait_events(forkq, "jobs rescued")  # by the master's own connection
    journal.wait("end", [jid])
    assert forkq.stop() == 0
    assert not events(forkq, "redis refuses; trying again")
    assert "second" not in forkq.log_text()


@with_preload_slow
def test_a_steady_stream_of_jobs_never_waits_for_a_child(
    release: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """At every moment a ready child of the capsule takes jobs."""
    forkq = release.tree
    release.write("number-two")
    pushed: dict[str, float] = {}
    fewest = 9

    def is_over() -> bool:
        nonlocal fewest
        at = time.monotonic()
        pushed[push(redis_server, "Work", 0.001)] = at
        if known := status_children(forkq):
            ready = [one for one in known if one["state"] == "running" and one["concurrency"]]
            fewest = min(fewest, len(ready))
        return release.state() == "done"

    forkq.signal(signal.SIGUSR2)
    wait_until(is_over, deadline=DEADLINE, every=0.005, what="the restart")
    wait_settled(redis)
    begun = {jid: runs[0].at for jid, runs in journal.runs().items()}
    longest = max(begun[jid] - at for jid, at in pushed.items())
    measured(f"{len(pushed)} jobs pushed, longest wait {longest * 1000:.0f} ms")
    assert fewest >= 1
    assert journal.jids("number-two")
    assert journal.jids("end") == set(pushed)
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert longest < within(5)


@both
@pytest.mark.parametrize("step", ["canary boots", "canary watched", "exec", "replacing"])
@pytest.mark.slow
def test_the_masters_death_in_each_step_loses_nothing(
    release: Release, redis_server: Server, redis: Redis, journal: Journal, step: str
) -> None:
    """Every process ends by itself, and the next start runs what is left."""
    forkq = release.tree
    if step == "exec" and not release.preload:
        pytest.skip("without preload there is no import during the exec")
    jids = push_many(redis_server, "Work", [[0.05]] * 1000)
    reach(release, step)
    forkq.process.kill()
    forkq.process.wait()
    release.hang.unlink(missing_ok=True)
    wait_until(lambda: not forkq.processes(), deadline=60, what="the end of its children")
    forkq.start().wait_ready()
    wait_settled(redis, deadline=60)
    assert journal.jids("end") == set(jids)
    assert forkq.stop() == 0
    forkq.assert_gone()


@both
@pytest.mark.parametrize("step", ["canary boots", "canary watched", "replacing"])
@pytest.mark.slow
def test_the_new_childs_death_in_each_step_is_rolled_back(
    release: Release, redis_server: Server, redis: Redis, journal: Journal, step: str
) -> None:
    forkq, old = release.tree, [child.pid for child in workers(release.tree)]
    if step == "replacing" and release.preload:
        pytest.skip("with preload a child boots at once")
    jids = push_many(redis_server, "Work", [[0.05]] * 500)
    reach(release, step)
    name = "default.0" if step == "replacing" else "default.canary"
    (new,) = [
        child["pid"]
        for child in status_children(forkq)
        if child["name"] == name and child["pid"] not in old
    ]
    os.kill(new, signal.SIGKILL)
    wait_until(lambda: release.state() == "rolled back", deadline=60, what="the rollback")
    release.hang.unlink(missing_ok=True)
    wait_until(lambda: len(workers(forkq)) == 2, what="two children")
    wait_settled(redis, deadline=60)
    assert journal.jids("end") == set(jids)
    assert restart(forkq)[0] == 0
    assert forkq.stop() == 0
    forkq.assert_gone()


@pytest.mark.parametrize("release", [True], ids=["preload"], indirect=True)
@pytest.mark.parametrize("step", ["canary boots", "canary watched", "exec"])
@pytest.mark.slow
def test_a_stop_in_each_step_ends_the_tree(release: Release, step: str) -> None:
    """One that comes during the exec is obeyed after it."""
    forkq = release.tree
    reach(release, step)
    forkq.signal(signal.SIGTERM)
    if step == "exec":
        release.hang.unlink()
    assert forkq.wait() == 0
    forkq.assert_gone()


@pytest.mark.parametrize("release", [True], ids=["preload"], indirect=True)
def test_a_configuration_that_breaks_during_the_exec_is_waited_for(
    release: Release, redis_server: Server, journal: Journal
) -> None:
    """The canary has read a right one. The children work on meanwhile, and the lock stands."""
    forkq = release.tree
    right = (forkq.cwd / "forkq.toml").read_text()
    release.write("number-two")
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: canary_state(forkq) == "running", deadline=60, what="a ready canary")
    (forkq.cwd / "forkq.toml").write_text("[forkq\n")
    forkq.wait_log("the configuration is wrong now; waiting")
    journal.wait("end", [push(redis_server, "Work", 0)])
    (forkq.cwd / "forkq.toml").write_text(right)
    wait_until(lambda: release.state() == "done", deadline=60, what="the restart")
    assert "already running" in forkq.run("start", "-r", "jobs").stderr
    assert forkq.stop() == 0


@pytest.mark.parametrize("release", [True], ids=["preload"], indirect=True)
def test_code_that_came_after_the_canary_is_tried_before_the_exec(release: Release) -> None:
    """The master itself would die of this import."""
    forkq = release.tree
    reach(release, "canary watched")
    release.write("a-killer", top="import os\nos.kill(os.getpid(), 9)\n")
    forkq.signal(signal.SIGUSR2)
    (line,) = wait_events(forkq, CALLED_OFF)
    assert "it died with SIGKILL before it was ready" in line["reason"]
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_status_tells_of_a_restart_that_was_rolled_back(release: Release) -> None:
    forkq = release.tree
    release.write("a-broken-one", top="raise RuntimeError('no such luck')\n")
    code, said = restart(forkq)
    assert (code, "RuntimeError: no such luck" in said) == (1, True)
    shown = forkq.run("status").stdout
    assert re.search(
        r"restart: rolled back \(RuntimeError: no such luck \(.+\.py, line 1\)\)", shown
    )


def test_what_forkq_refuses_is_told_with_its_line(release: Release) -> None:
    """By restart --wait, by status and in the log."""
    forkq = release.tree
    release.write("refused", top="import forkq\n@forkq.job(quueue='x')\ndef odd(): ...\n")
    code, said = restart(forkq)
    assert code == 1
    for text in (said, forkq.run("status").stdout, forkq.log_text()):
        # Python 3.10 gives a decorator that fails the line of its function.
        assert re.search(r"no job option 'quueue'.*\.py, line [23]\)", text)


def test_the_embedded_server_stays_as_it_is(journal: Journal) -> None:
    """The next program of the master finds it, and ends it with the tree."""
    forkq = ForkqTree("embedded", app=APP, env=journal.env, args=JSON)
    release = Release(forkq, preload=True)
    release.write("one")
    try:
        forkq.start().wait_ready()
        servers = forkq.children("server")
        release.write("number-two")
        assert restart(forkq)[0] == 0
        assert forkq.children("server") == servers
        assert forkq.stop() == 0
        forkq.assert_gone()
    finally:
        forkq.close()


@pytest.mark.parametrize("release", [True], ids=["preload"], indirect=True)
def test_a_child_that_dies_during_the_exec_is_rescued_and_replaced(
    release: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """Its master knows it after the exec as before."""
    forkq = release.tree
    running = push(redis_server, "Gate", str(forkq.cwd / "open"))
    journal.wait("begin", [running])
    pid = journal.lines("begin")[0].pid
    reach(release, "exec")
    os.kill(pid, signal.SIGKILL)
    (forkq.cwd / "open").touch()
    release.hang.unlink()
    journal.wait("end", [running])
    wait_until(lambda: release.state() == "done", deadline=60, what="the restart")
    wait_settled(redis)
    assert [line["how"] for line in wait_events(forkq, "child died")] == ["SIGKILL"]
    assert forkq.stop() == 0


OTHER = "[capsules.default]\n[capsules.other]\nqueues = ['other']\nconcurrency = 1\n"


@pytest.fixture
def narrow(
    redis_server: Server, redis: Redis, journal: Journal, request: pytest.FixtureRequest
) -> Iterator[Release]:
    """Two children for each capsule, each of the default one with one processor."""
    del redis  # its data is flushed before the tree starts
    forkq = ForkqTree(redis_server, app=APP, env=journal.env, args=["-c", "1", *JSON])
    made = Release(forkq, preload=False)
    made.configure(getattr(request, "param", ""))
    made.write("one")
    try:
        forkq.start().wait_ready()
        yield made
    finally:
        forkq.close()


@pytest.mark.parametrize("narrow", [OTHER], ids=["two capsules"], indirect=True)
def test_each_capsule_has_a_canary(
    narrow: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """The first capsule has no job: its canary alone would have proved nothing."""
    forkq, old = narrow.tree, set(workers(narrow.tree))
    pushed = set()
    narrow.write("a-killer", work="import os; os.kill(os.getpid(), 9)")
    forkq.signal(signal.SIGUSR2)

    def is_over() -> bool:
        pushed.update(more_work(redis_server, redis, "other"))
        return narrow.state() == "rolled back"

    wait_until(is_over, deadline=DEADLINE, every=0.05, what="the rollback")
    (line,) = wait_events(forkq, CALLED_OFF)
    assert (line["child"], line["reason"][:20]) == ("other.canary", "it died with SIGKILL")
    assert "(other.canary: it died with SIGKILL" in forkq.run("status").stdout
    wait_until(lambda: set(workers(forkq)) == old, what="the end of the other canary")
    wait_until(lambda: journal.jids("one") == pushed, deadline=60, what="all jobs, by the old code")


def test_what_the_master_shares_with_an_old_child_outlives_its_exec(
    narrow: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """A hard time limit that ends after it, and the stack of a crash after it."""
    forkq, never, door = narrow.tree, narrow.tree.cwd / "never", narrow.tree.cwd / "open"
    limit = max(5, round(within(4)))  # it must last longer than the restart
    stuck = push(redis_server, "Gate", str(never), retry=0, hard_timeout=limit)
    crash = push(redis_server, "Crash", str(door), on_crash="dead", crashes=1)
    journal.wait("begin", [stuck, crash])
    old = {line.pid for line in journal.lines("begin")}
    assert len(old) == 2
    assert restart(forkq)[0] == 0
    wait_swept(redis, forkq)
    door.touch()
    wait_until(lambda: redis.zcard("dead") == 2, deadline=60 + limit, what="the end of both")
    dead = {job["jid"]: job for job in payloads(redis, "dead")}
    assert dead[stuck]["error_class"] == "forkq.errors.TimeLimit"
    first = dead[crash]["forkq"]["crashes"][0]
    assert "in crash" in first.get("stack", ""), first
    assert {line.pid for line in journal.lines("begin") if line.jid == stuck} < old
    lines = wait_events(forkq, "child died", 2)
    died = next(line for line in lines if line["how"] == "SIGSEGV")
    assert died["pid"] in old
    assert "in crash" in died["stack"]
    assert forkq.stop() == 0


def test_a_canary_ends_a_job_at_its_hard_limit(
    narrow: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """The new code hangs: it is rolled back, and only the canary's job has failed."""
    forkq, pushed = narrow.tree, set()
    narrow.write("hangs", work="import time; time.sleep(60)")
    forkq.signal(signal.SIGUSR2)

    def is_over() -> bool:
        pushed.update(more_work(redis_server, redis, "default", retry=0, hard_timeout=3))
        return narrow.state() == "rolled back"

    wait_until(is_over, deadline=DEADLINE, every=0.05, what="the rollback")
    (line,) = wait_events(forkq, CALLED_OFF)
    assert "it died with a job beyond its limit" in line["reason"]
    wait_settled(redis)
    (failed,) = payloads(redis, "dead")
    assert failed["error_class"] == "forkq.errors.TimeLimit"
    assert journal.jids("one") == pushed - {failed["jid"]}


def more_work(server: Server, redis: Redis, queue: str, **more: Any) -> list[str]:
    """So many jobs that the old children, which take two at once, always leave some: the canary
    gets one before it counts as good, even if this process stands still for a second."""
    missing = 10 - len(waiting(redis, queue))
    return push_many(server, "Work", [[0.3]] * missing, queue=queue, **more) if missing > 0 else []


def reach(release: Release, step: str) -> None:
    """Brings a restart to ``step``, where it stays: new code hangs in its import while the file
    ``hang`` exists."""
    forkq = release.tree
    hanging = f"import time, pathlib\nwhile pathlib.Path({str(release.hang)!r}).exists():\n"
    hanging += "    time.sleep(0.01)\n"
    release.write("number-two", top=hanging)
    if step == "canary boots":
        release.hang.touch()
    forkq.signal(signal.SIGUSR2)
    if step == "canary boots":
        wait_until(lambda: canary_state(forkq) == "booting", deadline=60, what="the canary")
        return
    wait_until(lambda: canary_state(forkq) == "running", deadline=60, what="a ready canary")
    if step == "canary watched":
        return
    if release.preload and step == "replacing":
        wait_until(lambda: release.state() == "replacing", deadline=60, what="the exec")
        return
    release.hang.touch()
    if step == "exec":
        wait_until(lambda: "booting" in title(psutil.Process(forkq.pid)), what="the exec")
    else:
        wait_until(lambda: release.state() == "replacing", deadline=60, what="the exec")
        wait_until(lambda: len(status_children(forkq)) == 5, what="the first new child")


def canary_state(forkq: ForkqTree) -> str:
    """As the master knows it."""
    return next((c["state"] for c in status_children(forkq) if c["name"] == "default.canary"), "")


def status_children(forkq: ForkqTree) -> list[dict[str, Any]]:
    """The tree's children, as the master knows them."""
    found: list[dict[str, Any]] = forkq.status().get("children", [])
    return found


FAILS_AFTER_THE_CANARY = """
from pathlib import Path
if Path("booted").exists() and Path("broken").exists():
    raise RuntimeError("broken")
Path("booted").touch()
"""


def test_suspects_that_wait_run_after_a_restart_that_was_called_off(
    release: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    """The solo children of the program before go on with what they have, and end then."""
    forkq, door = release.tree, release.tree.cwd / "open"
    client = Client(redis_server.url)
    suspect: dict[str, Any] = {"forkq": {"suspect": True}}
    most = Capsule("default", workers=2).most_solo
    for _ in range(most):
        client.push({"class": "Gate", "args": [str(door)], **suspect})
    wait_until(lambda: len(journal.lines("begin")) == most, what="the solo children at work")
    held = [client.push({"class": "Work", "args": [0], **suspect}) for _ in range(3)]
    client.close()
    wait_until(lambda: not redis.llen("queue:default"), what="the others in the list of suspects")
    (forkq.cwd / "broken").touch()
    release.write("fails-later", top=FAILS_AFTER_THE_CANARY)
    assert restart(forkq)[0] == 1
    wait_events(forkq, CALLED_OFF)
    (forkq.cwd / "broken").unlink()
    wait_until(lambda: journal.jids("end") >= set(held), deadline=60, what="the suspects")
    door.touch()
    wait_settled(redis)
    assert redis.zcard("dead") == 0
    assert forkq.stop() == 0
