"""Pidfile, `forkq stop`, `quiet` and `status`, exit codes, process titles."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    push,
    push_many,
    title,
    wait_settled,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import FORKQ, ForkqTree, StartTree
from tests.support.waiting import wait_until, within


def test_a_second_start_is_refused_with_the_pid(redis_server: Server, tree: StartTree) -> None:
    """Exit code 5; the first one notices nothing. With a tag of its own, it may."""
    forkq = tree(redis_server, app="import forkq")
    before = forkq.children()
    again = forkq.run("start", "-r", "jobs", "--redis", redis_server.url)
    assert again.returncode == 5
    assert str(forkq.pid) in again.stderr
    assert "forkq stop" in again.stderr
    assert "Traceback" not in again.stderr
    assert forkq.children() == before
    assert forkq.run("status").returncode == 0
    other = tree(redis_server, app="import forkq", args=["-g", "other"])
    assert other.stop() == 0
    assert forkq.stop() == 0
    forkq.assert_gone()


@pytest.mark.parametrize("content", ["", "garbage\n", "living"])
def test_a_stale_pidfile_is_replaced(redis_server: Server, tree: StartTree, content: str) -> None:
    """It may hold nothing, nonsense, or a pid that another process has by now."""
    forkq = tree(redis_server, app="import forkq")
    (path,) = forkq.runtime.glob("**/*.pid")
    assert path.read_text() == f"{forkq.pid}\n"
    assert forkq.stop() == 0
    path.write_text(f"{os.getpid()}\n" if content == "living" else content)
    assert forkq.run("stop").returncode == 4
    forkq.start().wait_ready()
    assert path.read_text() == f"{forkq.pid}\n"
    assert forkq.run("stop").returncode == 0
    forkq.assert_gone(deadline=0)


@pytest.mark.parametrize("command", ["stop", "quiet", "status"])
def test_commands_say_when_nothing_runs(
    tree: StartTree, redis_server: Server, command: str
) -> None:
    """Exit code 4, and where they looked."""
    forkq = tree(redis_server, app="import forkq", args=["-g", "shop"])
    result = forkq.run(command)  # without the tag
    assert result.returncode == 4
    assert "no forkq is running" in result.stderr
    assert "--tag" in result.stderr
    assert forkq.run(command, "-g", "shop").returncode == 0


def test_stop_returns_when_the_last_process_is_gone(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Not earlier: a script may start the next one at once."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    jid = push(redis_server, "Nap", 1)
    journal.wait("begin", [jid])
    result = forkq.run("stop")
    assert not forkq.processes()
    assert result.returncode == 0
    assert f"{forkq.pid} stopped" in result.stdout
    assert journal.jids("end") == {jid}
    assert not list(forkq.runtime.glob("**/*.pid"))


def test_quiet_waits_for_the_running_jobs_only_if_asked(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """`quiet --wait` returns when no job runs any more, and none will."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "2"], env=journal.env)
    door = journal.path.with_name("open")
    running = push_many(redis_server, "Gate", [[str(door)]] * 3)
    journal.wait("begin", running)
    assert forkq.run("quiet").returncode == 0
    wait_until(lambda: forkq.status()["state"] == "quiet", what="the state")
    behind = push(redis_server, "Quick", 0)
    program = [*FORKQ, "quiet", "--wait"]
    asked = subprocess.Popen(
        program, cwd=forkq.cwd, env=forkq.env, stdout=subprocess.PIPE, text=True
    )
    assert asked.stdout is not None
    assert "goes quiet" in asked.stdout.readline()
    assert asked.poll() is None
    assert not journal.lines("end")
    door.touch()
    assert asked.wait(60) == 0
    asked.stdout.close()
    assert journal.jids("end") == set(running)
    assert waiting(redis) == [behind]
    assert forkq.run("stop").returncode == 0


def test_status_shows_the_tree(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """For people and, with --json, for programs."""
    args = ["-w", "2", "-c", "3", "-g", "shop", "-q", "high,3", "-q", "low,1"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 2, queue="high")
    journal.wait("begin", jids)
    wait_until(lambda: sum(c["busy"] for c in forkq.status()["children"]) == 2, what="2 busy")
    found = json.loads(forkq.run("status", "--json", "-g", "shop").stdout)
    assert (found["pid"], found["state"], found["tag"]) == (forkq.pid, "running", "shop")
    assert found["ready"] is True
    children = {child["name"]: child for child in found["children"]}
    assert set(children) == {"default.0", "default.1", "clock"}
    assert {child["pid"] for child in children.values()} == {c.pid for c in forkq.children()}
    assert children["default.0"]["concurrency"] == 3
    assert children["default.0"]["queues"] == ["high", "low"]
    shown = forkq.run("status", "-g", "shop").stdout
    assert f"master {forkq.pid} [shop]: running" in shown
    assert "of 3" in shown
    door.touch()
    wait_until(lambda: sum(c["processed"] for c in forkq.status()["children"]) == 2, what="2 done")
    assert forkq.stop() == 0


def test_titles_name_each_process_and_how_busy_it_is(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """As `ps` shows them; with the state when it is not the usual one."""
    args = ["-w", "2", "-c", "10", "-g", "shop"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    master = psutil.Process(forkq.pid)
    assert re.fullmatch(r"forkq master \[?shop\]? 2 children.*", title(master))
    titles = [
        "forkq child default.0 [0 of 10 busy]",
        "forkq child default.1 [0 of 10 busy]",
        "forkq clock",
    ]
    wait_until(lambda: sorted(map(title, forkq.children())) == titles, what="the titles")
    door = journal.path.with_name("open")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 20)
    journal.wait("begin", jids)
    wait_until(lambda: _titled(forkq, "[10 of 10 busy]"), what="10 of 10")
    forkq.signal(signal.SIGTSTP)
    wait_until(lambda: _titled(forkq, "[10 of 10 busy, quiet]"), what="quiet")
    wait_until(lambda: "quiet" in title(master), what="the master's quiet")
    forkq.signal(signal.SIGTERM)
    wait_until(lambda: _titled(forkq, "[10 of 10 busy, stopping]"), what="stopping")
    wait_until(lambda: "stopping" in title(master), what="the master's stopping")
    door.touch()
    assert forkq.wait() == 0


def test_the_file_names_given_by_flag_are_used(redis_server: Server, tree: StartTree) -> None:
    """--pidfile, for all commands."""
    forkq = tree(redis_server, app="import forkq", args=["--pidfile", "mine.pid"], ready=False)
    mine = forkq.cwd / "mine.pid"
    wait_until(lambda: mine.exists() and mine.read_text(), what="the pidfile")
    wait_until((forkq.cwd / "mine.status.json").exists, what="the status file")
    assert forkq.run("status").returncode == 4
    assert forkq.run("status", "--pidfile", "mine.pid").returncode == 0
    assert forkq.run("stop", "--pidfile", "mine.pid").returncode == 0
    assert not mine.exists()


def test_a_pidfile_that_cannot_be_written(redis_server: Server, tree: StartTree) -> None:
    """Exit code 2 before anything starts, naming the file and the flag."""
    forkq = tree(redis_server, app="", args=["--pidfile", "/dev/null/forkq.pid"], ready=False)
    assert forkq.wait() == 2
    assert "/dev/null/forkq.pid" in forkq.log_text()
    assert "--pidfile" in forkq.log_text()
    assert "Traceback" not in forkq.log_text()


def test_a_runtime_folder_that_is_cleaned_away_does_not_end_the_tree(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Some systems empty temporary folders: then `forkq status` finds nothing, but jobs run."""
    forkq = tree(redis_server, app=APP, args=["-t", "1"], env=journal.env)
    (pidfile,) = forkq.runtime.glob("**/*.pid")
    shutil.rmtree(forkq.runtime)
    first = push_many(redis_server, "Quick", [[0.3]] * 2)
    wait_settled(redis)
    workers(forkq)[0].kill()
    wait_until(lambda: "child died" in forkq.log_text(), what="the death noticed")
    second = push(redis_server, "Quick", 0)
    journal.wait("end", [*first, second])
    successor = tree(
        redis_server, app="import forkq", args=["--pidfile", str(pidfile)], ready=False
    )
    successor.wait_log("event=ready")  # with its pidfile in the same place
    began = time.monotonic()
    assert forkq.stop() == 0
    assert time.monotonic() - began < within(1 + 5)
    assert not forkq.processes()
    assert pidfile.read_text() == f"{successor.pid}\n", "a pidfile that is not ours must stay"
    assert successor.stop() == 0


def test_many_starts_at_once_make_one_tree(redis_server: Server, tree: StartTree) -> None:
    """The pidfile's lock decides, not luck."""
    forkq = tree(redis_server, app="import forkq", ready=False)
    program = [*FORKQ, "start", "-r", "jobs", "--redis", redis_server.url]
    rivals = [
        subprocess.Popen(program, cwd=forkq.cwd, env=forkq.env, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    everyone = [forkq.process, *rivals]
    wait_until(
        lambda: sum(process.poll() is None for process in everyone) == 1,
        deadline=60,
        what="the losers' ends",
    )
    assert [p.poll() for p in everyone if p.poll() is not None] == [5, 5, 5, 5]
    wait_until(lambda: forkq.run("status").returncode == 0, what="the winner's status")
    assert forkq.run("stop").returncode == 0
    for rival in rivals:
        rival.communicate(timeout=60)
    forkq.assert_gone()


def _titled(tree: ForkqTree, text: str) -> bool:
    return all(text in title(child) for child in workers(tree))


HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, sys.argv[2].encode())
os.fchown(fd, int(sys.argv[3]), -1)
fcntl.lockf(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("command", ["stop", "quiet", "status"])
@pytest.mark.parametrize("owner", ["self", "other"])
def test_a_planted_pidfile_gets_no_process_signalled(
    tmp_path: Path, command: str, owner: str
) -> None:
    """One that is locked, and names a process of its author's choice: our own, or a forkq of ours
    while the file is another user's."""
    if owner == "other" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    uid = os.geteuid() if owner == "self" else 65534
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    if owner == "other":
        program += ["forkq", "start"]  # it looks like a master, but is not the file's owner's
    pidfile = tmp_path / "planted.pid"
    with subprocess.Popen(program) as victim:
        holding = [sys.executable, "-c", HOLDER, str(pidfile), f"{victim.pid}\n", str(uid)]
        with subprocess.Popen(holding, stdout=subprocess.PIPE, text=True) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == "held\n"
                asked = subprocess.run(
                    [*FORKQ, command, "--pidfile", str(pidfile)],
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert asked.returncode == 1
                assert f"pid {victim.pid}, which is no forkq master" in asked.stderr
                assert "Traceback" not in asked.stderr
                assert (victim.poll(), psutil.Process(victim.pid).status()) == (None, "sleeping")
            finally:
                holder.kill()
                victim.kill()


def test_a_server_folder_that_is_open_to_others_is_refused(tmp_path: Path, tree: StartTree) -> None:
    """Another user could put a socket there, and get every push."""
    folder = tmp_path / "server"
    folder.mkdir()
    folder.chmod(0o777)
    config = f'[forkq]\nstate_dir = "{tmp_path}"\n'
    forkq = tree(None, app="", args=["--redis", "embedded"], ready=False, config=config)
    assert forkq.wait() == 2
    assert f"{folder} is open to other users (mode 777)" in forkq.log_text()
    assert "state_dir" in forkq.log_text()
