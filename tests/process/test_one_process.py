"""Small mode (``processes = "one"``): master, child and clock are threads of one process."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from forkq.wire.times import now
from tests.process.shared import (
    APP,
    Journal,
    json_log,
    leased,
    payloads,
    push,
    push_many,
    wait_settled,
    waiting,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

ONE = ["--processes", "one", "-c", "4"]
KILLED = -signal.SIGKILL


def started(
    tree: StartTree, server: Server, journal: Journal, *more: str, ready: bool = True
) -> ForkqTree:
    return tree(server, app=APP, args=[*ONE, *more], env=journal.env, ready=ready)


def test_one_process_runs_jobs_and_moves_due_ones(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = started(tree, redis_server, journal)
    jids = push_many(redis_server, "Quick", [[0]] * 50)
    jids.append(push(redis_server, "Quick", 0, at=now() + 0.3))
    journal.wait("end", jids)
    wait_settled(redis)
    assert {line.pid for line in journal.lines()} == {forkq.pid}
    assert forkq.processes()[0].pid == forkq.pid
    assert len(forkq.processes()) == 1
    shown = json.loads(forkq.run("status", "--json").stdout)
    names = [(child["name"], child["state"]) for child in shown["children"]]
    assert (shown["state"], names) == ("running", [("default.0", "running"), ("clock", "running")])
    assert shown["children"][0]["processed"] == 51
    assert forkq.run("status", "--alive").returncode == 0
    assert forkq.stop() == 0
    forkq.assert_gone()
    assert "Traceback" not in forkq.log_text()


def test_its_memory_is_shown(redis_server: Server, tree: StartTree, journal: Journal) -> None:
    """Once: the clock is in the same process."""
    forkq = started(tree, redis_server, journal)
    child, clock = wait_until(
        lambda: found if (found := forkq.status()["children"])[0]["memory"] else [],
        what="its memory",
    )
    assert child["memory"]["used"] > 10 << 20
    assert clock["memory"] is None
    row = next(line for line in forkq.run("status").stdout.splitlines() if "default.0" in line)
    assert row.count("MB ") == 2  # RSS and PSS


def test_a_job_that_wants_a_hard_time_out_is_named_at_the_start(
    redis_server: Server, tree: StartTree
) -> None:
    app = """
        import forkq

        @forkq.job(hard_timeout=60)
        def ends_hard() -> None: ...

        @forkq.job(timeout=5)
        def ends_softly() -> None: ...
    """
    forkq = tree(redis_server, app=app, args=[*ONE, "--log-format", "json"])
    [line] = [line for line in json_log(forkq) if "hard_timeout" in line["event"]]
    assert line["jobs"] == ["jobs.ends_hard"]
    assert forkq.stop() == 0


def test_a_stop_returns_what_runs_beyond_its_time(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its ``finally`` blocks run first, and the process ends."""
    forkq = started(tree, redis_server, journal, "--timeout", "0.5")
    jid = push(redis_server, "Nap", 600)
    journal.wait("begin", [jid])
    assert forkq.stop() == 0
    assert journal.jids("finally") == {jid}
    assert (waiting(redis), leased(redis)) == ([jid], [])
    forkq.assert_gone()


def test_a_job_that_ignores_the_stop_ends_with_the_process_and_runs_again(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It is never returned while its thread lives: the next start finds its lease."""
    forkq = started(tree, redis_server, journal, "--timeout", "0.5")
    jid = push(redis_server, "Stubborn")
    journal.wait("begin", [jid])
    assert forkq.stop() == 0
    assert (waiting(redis), leased(redis)) == ([], [jid])
    assert "jobs stay leased in redis; the next start gives them back" in forkq.log_text()
    forkq.assert_gone()
    last = journal.lines("tick")[-1].at
    forkq.start().wait_ready()
    wait_until(lambda: len(journal.runs()[jid]) == 2, what="its second run")
    assert last < journal.runs()[jid][1].at


def test_what_a_kill_leaves_behind_runs_at_the_next_start(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    forkq = started(tree, redis_server, journal)
    jids = [push(redis_server, "Gate", str(gate)) for _ in range(3)]
    journal.wait("begin", jids)
    forkq.signal(signal.SIGKILL)
    assert forkq.wait() == KILLED
    gate.touch()
    forkq.start().wait_ready()
    journal.wait("end", jids)
    wait_settled(redis)
    assert all(len(journal.runs()[jid]) == 2 for jid in jids)


def test_quiet_lets_running_jobs_end_and_takes_no_other(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    forkq = started(tree, redis_server, journal)
    jid = push(redis_server, "Gate", str(gate))
    journal.wait("begin", [jid])
    forkq.signal(signal.SIGTSTP)
    wait_until(lambda: forkq.status().get("state") == "quiet", what="a quiet process")
    wait_until(lambda: forkq.status()["children"][0]["state"] == "quiet", what="a quiet child")
    other = push(redis_server, "Quick", 0)
    gate.touch()
    journal.wait("end", [jid])
    wait_until(lambda: not leased(redis), what="its acknowledgement")
    assert waiting(redis) == [other]
    assert forkq.stop() == 0


def test_a_restart_loads_new_code_in_the_same_process(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A running job ends first. What waits runs under the new code, and the pid stays."""
    forkq = started(tree, redis_server, journal)
    pid, jid = forkq.pid, push(redis_server, "Polite")
    journal.wait("begin", [jid])
    code = (forkq.cwd / "jobs.py").read_text().replace('record("end")', 'record("new")', 1)
    (forkq.cwd / "jobs.py").write_text(code)
    done = forkq.run("restart", "--wait")
    assert done.returncode == 0, f"{done.stderr}{forkq.log_text()}"
    assert done.stdout == (
        f"forkq {pid} restarts: its jobs end, then it loads the new code\n"
        "the process has loaded the new code\n"
    )
    assert journal.jids("end") == {jid}
    second = push(redis_server, "Quick", 0)
    journal.wait("new", [second])
    assert {line.pid for line in journal.lines()} == {pid}
    wait_settled(redis)
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_restart_that_meets_a_stubborn_job_ends_the_process(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Its lease would be that of a living process. A service manager starts the next one."""
    forkq = started(tree, redis_server, journal, "--timeout", "0.2")
    jid = push(redis_server, "Stubborn")
    journal.wait("begin", [jid])
    forkq.signal(signal.SIGUSR2)
    assert forkq.wait() == 70
    assert leased(redis) == [jid]
    forkq.assert_gone()


def test_a_suspect_runs_alone(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """In the one child, under a lease of a solo child, while the others wait."""
    plain = push_many(redis_server, "Quick", [[0.1]] * 12)
    job = {
        "class": "Quick", "args": [0.3], "jid": "suspect", "queue": "default",
        "forkq": {"suspect": True, "crashes": [{"at": now(), "signal": 9, "tree": True}] * 2},
    }  # fmt: skip
    redis.lpush("{queue:default}:suspects", json.dumps(job))
    redis.sadd("forkq:suspects", "default")
    started(tree, redis_server, journal)
    journal.wait("end", [*plain, "suspect"])
    wait_settled(redis)
    [begin], [end] = (
        [line.at for line in journal.lines(event) if line.jid == "suspect"]
        for event in ("begin", "end")
    )
    others = [line.at for line in journal.lines("begin", "end") if line.jid != "suspect"]
    assert not [at for at in others if begin < at < end]


def test_a_job_that_kills_the_process_is_buried_and_its_neighbours_run(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A service manager starts the process again each time; no job can make that go on for ever."""
    bad = push(redis_server, "Die", int(signal.SIGKILL))
    good = push_many(redis_server, "Quick", [[0.01]] * 20)
    forkq = started(tree, redis_server, journal, ready=False)
    starts = 1
    while not payloads(redis, "dead"):
        wait_until(
            lambda: not forkq.alive or payloads(redis, "dead"),
            deadline=60,
            what="a death, or its end",
        )
        if not forkq.alive:
            forkq.start()
            starts += 1
        assert starts < 20
    journal.wait("end", good)
    wait_settled(redis)
    assert [job["jid"] for job in payloads(redis, "dead")] == [bad]
    assert len(journal.runs()[bad]) == 2 + 6  # until it is a suspect, and alone: small-mode.md


def test_a_job_that_holds_the_interpreter_ends_the_process_if_that_is_wanted(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """With the stacks of all threads, so that the log says which job it was."""
    env = {**journal.env, "FORKQ_KILL_SILENT_AFTER": "3", "FORKQ_SILENT_AFTER": "3"}
    forkq = tree(redis_server, app=APP, args=ONE, env=env)
    jid = push(redis_server, "Hold", 600)
    journal.wait("begin", [jid])
    assert forkq.wait() == 1
    assert "in hold" in forkq.log_text()
    assert leased(redis) == [jid]
    forkq.start()  # it may not become ready: the job holds it again
    wait_until(lambda: len(journal.runs()[jid]) == 2, what="its second run")


@pytest.fixture
def notified() -> Iterator[socket.socket]:
    """What systemd is: a socket that takes messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0forkq-test-{os.getpid()}-{time.monotonic_ns()}")
        systemd.settimeout(0.05)
        yield systemd


def messages(systemd: socket.socket, seen: list[str]) -> list[str]:
    """All lines so far."""
    try:
        while True:
            seen += systemd.recv(4096).decode().splitlines()
    except TimeoutError:
        return seen


def test_systemd_hears_of_the_start_the_restart_the_life_and_the_stop(
    redis_server: Server, tree: StartTree, journal: Journal, notified: socket.socket
) -> None:
    address = "@" + notified.getsockname()[1:].decode()
    env = {**journal.env, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000"}
    forkq = tree(redis_server, app=APP, args=ONE, env=env)
    seen: list[str] = []
    wait_until(lambda: "READY=1" in messages(notified, seen), what="READY")
    assert f"MAINPID={forkq.pid}" in seen
    wait_until(lambda: seen.count("WATCHDOG=1") > 2 or not messages(notified, seen), what="a life")
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: messages(notified, seen).count("READY=1") == 2, what="the next READY")
    assert seen.index("RELOADING=1") < len(seen) - 1 - seen[::-1].index("READY=1")
    assert forkq.stop() == 0
    wait_until(lambda: "STOPPING=1" in messages(notified, seen), what="STOPPING")


def test_an_app_that_cannot_be_imported_is_an_error_at_the_start(
    redis_server: Server, tree: StartTree
) -> None:
    """Lasting or not, as in a tree."""
    for app, code in (("import nothing_of_that_name", 3), ("raise OSError('away')", 8)):
        forkq = tree(redis_server, app=app, args=ONE, ready=False)
        assert forkq.wait() == code
        assert "Traceback" not in forkq.log_text().replace(
            "Traceback (most recent call last)", "", 1
        )
        forkq.assert_gone()


def test_a_process_that_a_job_forks_does_not_pass_its_signals_on(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    app = (
        APP.read_text()
        + """

@forkq.job(name="ForkHere")
def fork_here() -> None:
    record("begin")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    record("end")
"""
    )
    forkq = tree(redis_server, app=app, args=ONE, env=journal.env)
    jid = push(redis_server, "ForkHere")
    journal.wait("end", [jid])
    after = push(redis_server, "Quick", 0)
    journal.wait("end", [after])
    wait_settled(redis)
    assert "stopping" not in forkq.log_text()


def test_a_stop_that_comes_just_before_the_exec_of_a_restart_is_obeyed(
    redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The child has ended, and the clock gives up its lease, for which it waits for Redis."""
    app = (
        APP.read_text()
        + f"""

@forkq.on("exit")
def stop_after_the_child() -> None:
    import redis
    import threading

    def stop() -> None:
        while any(thread.name == "default.0" for thread in threading.enumerate()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    redis.Redis.from_url("{redis_server.url}").client_pause(1500)
    threading.Thread(target=stop, daemon=True).start()
"""
    )
    forkq = tree(redis_server, app=app, args=ONE, env=journal.env)
    forkq.signal(signal.SIGUSR2)
    assert forkq.wait() == 0
    assert forkq.log_text().count("event=starting") == 1
    forkq.assert_gone()


def test_a_clock_that_fails_ends_the_process(
    redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Else no due job would be moved any more. A service manager starts the next process."""
    app = (
        APP.read_text()
        + """

from forkq.clock.main import Clock

Clock._turn = lambda self: 1 / 0
"""
    )
    forkq = tree(redis_server, app=app, args=ONE, env=journal.env, ready=False)
    assert forkq.wait() == 70
    assert "the thread clock has failed; this process ends" in forkq.log_text()
    forkq.assert_gone()
