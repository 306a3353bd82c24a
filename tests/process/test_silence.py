"""A child or a clock that hangs: the master finds it, logs it, and shows its stacks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    pass_time,
    push,
    push_many,
    wait_event_of,
    wait_events,
    workers,
)
from tests.support.printed import objects
from tests.support.server import Server
from tests.support.tree import CHECKOUT, ForkqTree, StartTree
from tests.support.waiting import wait_until, within

PROBE = CHECKOUT / "bin" / "forkq-probe"
# Beside a load any process may stand still for a second.
LIMIT = round(min(within(1.0), 3.0), 1)


def env_of(journal: Journal, silent_after: float = LIMIT) -> dict[str, str]:
    """A child is silent soon, so that the tests need not wait."""
    return {**journal.env, "FORKQ_SILENT_AFTER": f"{silent_after:g}"}


def start_tree(
    tree: StartTree,
    server: Server,
    journal: Journal,
    args: Sequence[str] = (),
    silent_after: float = LIMIT,
) -> ForkqTree:
    """A tree that writes its log as JSON."""
    options = ["--log-format", "json", "-t", "1", *args]
    return tree(server, app=APP, args=options, env=env_of(journal, silent_after))


def states(tree: ForkqTree) -> dict[str, str]:
    """The state of each child in the status file."""
    return {child["name"]: child["state"] for child in tree.status()["children"]}


@pytest.mark.parametrize("name", ["default.0", "clock"])
def test_a_stopped_process_is_logged_once_and_again_when_it_is_back(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, name: str
) -> None:
    """With its name and how long it has been silent. `forkq status` shows it, too."""
    forkq = start_tree(tree, redis_server, journal)
    (child,) = forkq.children("forkq clock" if name == "clock" else "forkq child")
    child.suspend()
    line = wait_event_of(forkq, "child is silent", child.pid)
    assert (line["level"], line["child"], line["pid"]) == ("warning", name, child.pid)
    assert line["silent_for"] >= round(LIMIT)  # whole seconds
    assert (line["process"], line["hint"]) == ("stopped", f"kill -CONT {child.pid} lets it go on")
    wait_until(lambda: states(forkq)[name] == "silent", what="the state")
    assert not forkq.status()["ready"]
    assert re.search(rf"^{name} +{child.pid} +silent ", forkq.run("status").stdout, re.MULTILINE)
    pass_time(2 * LIMIT)
    found = json.loads(forkq.run("status", "--json").stdout)
    ages = {child["name"]: child["beat_age"] for child in found["children"]}
    age = ages.pop(name)
    assert age >= 3 * LIMIT
    assert max(*ages.values(), found["beat_age"]) < age
    child.resume()
    back = wait_event_of(forkq, "child is back", child.pid)
    assert (back["child"], back["silent_for"] >= 2) == (name, True)
    wait_until(forkq.ready, what="a tree that is ready again")
    silent = [line["pid"] for line in wait_events(forkq, "child is silent")]
    assert silent.count(child.pid) == 1
    assert "Traceback" not in forkq.log_text()
    assert forkq.stop() == 0


def test_a_job_that_holds_the_interpreter_shows_its_stack_at_once_and_at_ttin(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """No thread of its process can run Python: a C handler writes the stacks."""
    forkq = start_tree(tree, redis_server, journal, ["-w", "2", "-c", "2"])
    jid = push(redis_server, "Hold", 60)
    journal.wait("begin", [jid])
    wait_event_of(forkq, "child is silent", journal.lines("begin")[0].pid)
    forkq.wait_log(r'File ".*jobs.py", line \d+ in hold')
    forkq.signal(signal.SIGTTIN)
    wait_until(lambda: forkq.log_text().count(" in hold") == 2, what="its stack again")
    wait_events(forkq, "idle processors")  # of the other child
    assert forkq.stop() == 0


def test_the_jobs_of_a_stopped_child_are_stuck(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """From the time when its heartbeat is overdue, in `forkq running` too, until the next one."""
    forkq = start_tree(tree, redis_server, journal, ["-c", "2"])
    jids = push_many(redis_server, "Nap", [[60]] * 2)
    journal.wait("begin", jids)
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    ask = ["--redis", redis_server.url]
    assert forkq.run("stuck", *ask).returncode == 0
    workers(forkq)[0].suspend()
    members: Any = redis.smembers("processes")
    redis.expire(members.pop(), 25)  # as 35 s after its last heartbeat
    shown = forkq.run("stuck", *ask)
    assert shown.returncode == 1
    assert all(re.search(rf"{jid} .* no heartbeat ", shown.stdout) for jid in jids)
    found = objects(forkq.run("running", "--json", *ask).stdout)
    assert {(job["jid"], job["heartbeat"]) for job in found} == {(jid, False) for jid in jids}
    workers(forkq)[0].resume()
    wait_until(
        lambda: forkq.run("stuck", *ask).returncode == 0, deadline=60, what="its next heartbeat"
    )
    assert forkq.stop() == 0


def test_ttin_shows_the_stacks_of_the_clock_and_of_a_child_that_boots(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """They show where a child hangs while it loads the app."""
    app = "import time\ntime.sleep(60)\n"
    forkq = tree(redis_server, app=app, args=["-t", "0"], ready=False)
    wait_until(lambda: workers(forkq) and forkq.children("forkq clock"), what="both")

    def shown() -> Any:
        forkq.signal(signal.SIGTTIN)
        pass_time(0.1)
        log = forkq.log_text()
        return "jobs.py" in log and "_turn (" in log

    wait_until(shown, what="the stacks of both")
    workers(forkq)[0].kill()
    assert forkq.stop() == 0


def test_a_busy_tree_and_an_idle_one_are_never_silent(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """With processors that compute, with a clock that has no work, with a quiet child."""
    forkq = start_tree(tree, redis_server, journal, ["-c", "4"])
    journal.wait("begin", push_many(redis_server, "Spin", [[]] * 4))
    pass_time(1.5 * LIMIT)
    forkq.signal(signal.SIGTSTP)
    pass_time(1.5 * LIMIT)
    assert "silent" not in forkq.log_text()
    assert forkq.stop() == 0


def test_a_master_that_was_stopped_itself_finds_no_child_silent(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It has read no facts meanwhile. If the children were stopped with it, they have sent none."""
    forkq = start_tree(tree, redis_server, journal)
    everyone = [*forkq.children()]
    for child in everyone:
        child.suspend()
    forkq.signal(signal.SIGSTOP)
    pass_time(2 * LIMIT)
    forkq.signal(signal.SIGCONT)
    pass_time(LIMIT / 4)
    for child in everyone:
        child.resume()
    pass_time(1.5 * LIMIT)
    assert "silent" not in forkq.log_text()
    assert forkq.stop() == 0


def test_an_outage_makes_no_clock_silent(
    own_server: Server, tree: StartTree, journal: Journal
) -> None:
    """It waits for Redis, and sends its beats meanwhile."""
    forkq = start_tree(tree, own_server, journal)
    own_server.stop()
    wait_events(forkq, "redis lost")
    pass_time(2.5 * LIMIT)
    assert "child is silent" not in forkq.log_text()
    own_server.start()
    wait_events(forkq, "redis is back")
    assert forkq.stop() == 0


def test_status_checks_that_every_child_is_ready(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """While the app is imported, and after `forkq quiet`: exit code 1 and the reason."""
    app = "import os, time\nwhile not os.path.exists('open'):\n    time.sleep(0.01)\nimport forkq\n"
    forkq = tree(redis_server, app=app, ready=False)
    booted = ["booting", "running"]  # the child imports the app; the clock needs none
    wait_until(
        lambda: [one["state"] for one in forkq.status().get("children", [])] == booted,
        what="the clock, in the status file",
    )
    assert forkq.run("status").returncode == 0
    check = forkq.run("status", "--ready")
    assert (check.returncode, check.stdout) == (1, "")
    assert "not ready: booting (default.0 booting, clock running)" in check.stderr
    assert forkq.run("status", "--alive").returncode == 0
    (forkq.cwd / "open").touch()
    forkq.wait_ready()
    check = forkq.run("status", "--ready")
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
    forkq.run("quiet")
    wait_until(lambda: forkq.status()["state"] == "quiet", what="quiet")
    assert "not ready: quiet" in forkq.run("status", "--ready").stderr
    assert forkq.run("status", "--alive").returncode == 0
    assert forkq.stop() == 0
    assert (
        forkq.run("status", "--alive").returncode == forkq.run("status", "--ready").returncode == 4
    )


def test_status_checks_that_the_masters_loop_goes_on(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A stopped master holds its pidfile, but is not alive."""
    forkq = start_tree(tree, redis_server, journal)
    forkq.signal(signal.SIGSTOP)
    wait_until(lambda: forkq.run("status", "--alive").returncode == 1, what="a failed check")
    check = forkq.run("status", "--alive")
    assert re.search(rf"master {forkq.pid} has been silent for \d+ s", check.stderr)
    assert forkq.run("status", "--ready").returncode == 1
    shown = forkq.run("status")
    assert (shown.returncode, f"master {forkq.pid}: silent" in shown.stdout) == (0, True)
    forkq.signal(signal.SIGCONT)
    wait_until(lambda: forkq.run("status", "--alive").returncode == 0, what="a check that passes")
    assert forkq.stop() == 0


def test_a_status_file_that_was_never_written_is_no_silence(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The disk is full, say: the master shows that it lives all the same, to the probe and to the
    clock, and no longer once it has stopped."""
    forkq = start_tree(tree, redis_server, journal, ["--pidfile", "../run/p.pid"])
    wait_events(forkq, "ready")  # else the next one may be the first
    assert forkq.stop() == 0
    (forkq.runtime / ".p.status.json.new" / "full").mkdir(parents=True)
    forkq.start()
    wait_events(forkq, "ready", 2)
    wait_events(forkq, "cannot write the status file")
    pidfile = ["--pidfile", str(forkq.runtime / "p.pid")]
    pass_time(2 * LIMIT)
    check = forkq.run("status", "--alive", *pidfile)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
    for shown in (["--ready"], []):
        told = forkq.run("status", *shown, *pidfile)
        assert (told.returncode, "cannot write" in told.stderr) == (4, True)
    assert "the master is silent" not in forkq.log_text()
    forkq.signal(signal.SIGSTOP)
    wait_events(forkq, "the master is silent; its children go on, but none that dies is replaced")
    assert forkq.run("status", "--alive", *pidfile).returncode == 1
    forkq.signal(signal.SIGCONT)
    assert forkq.stop() == 0


def test_a_status_file_that_cannot_be_replaced_is_written_in_place(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """What the disk has given to the file, it keeps. While the children of a restart boot, the file
    is too small for all of them, and a command follows a file that is not older than a silence."""
    options = ["--pidfile", "../run/p.pid"]
    forkq = start_tree(tree, redis_server, journal, options, silent_after=15.0)
    (forkq.runtime / ".p.status.json.new" / "full").mkdir(parents=True)
    wait_events(forkq, "cannot write the status file")
    pidfile = ["--pidfile", str(forkq.runtime / "p.pid")]
    assert forkq.run("restart", "--wait", *pidfile).returncode == 0
    assert forkq.run("status", "--ready", *pidfile).returncode == 0
    assert forkq.run("quiet", "--wait", *pidfile).returncode == 0
    assert "not ready: quiet" in forkq.run("status", "--ready", *pidfile).stderr
    assert "outdated" not in forkq.run("status", *pidfile).stdout
    assert forkq.stop() == 0


def test_a_probe_that_costs_little_finds_the_same(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """`forkq-probe`, a shell's: before, after and during the life of a tree, and if its master
    hangs. It allows a minute, which the test lets pass by the time of the file."""
    app = "import os, time\nwhile not os.path.exists('open'):\n    time.sleep(0.01)\nimport forkq\n"
    forkq = tree(redis_server, app=app, ready=False)
    wait_until(lambda: "children" in forkq.status(), what="a status file")
    (pidfile,) = forkq.runtime.glob("**/*.pid")
    status = pidfile.with_suffix(".status.json")
    assert probed(pidfile, "alive") == (0, "")
    assert probed(pidfile, "ready") == (1, f"forkq-probe: not ready: {status} has the states\n")
    (forkq.cwd / "open").touch()
    forkq.wait_ready()
    assert probed(pidfile, "ready") == probed(pidfile, "alive") == (0, "")
    forkq.signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(forkq.pid).status() == "stopped", what="a stopped master")
    for path in (pidfile, status):
        os.utime(path, (time.time() - 61, time.time() - 61 - (path == pidfile)))
    for check in ("alive", "ready"):
        code, reason = probed(pidfile, check)
        assert (code, "silent for a minute" in reason) == (1, True)
    forkq.signal(signal.SIGCONT)
    wait_until(lambda: probed(pidfile, "alive")[0] == 0, what="a check that passes")
    forkq.process.kill()
    forkq.wait()
    os.utime(pidfile, (time.time(), time.time() + 1))  # as that of the next master
    assert "just starting" in probed(pidfile, "ready")[1]
    pidfile.unlink()
    assert "no forkq runs here" in probed(pidfile, "alive")[1]


def probed(pidfile: Path, check: str) -> tuple[int, str]:
    """The exit code and the reason of `forkq-probe`."""
    environment = {"PATH": os.environ["PATH"], "FORKQ_PIDFILE": str(pidfile)}
    return run_probe(environment, check)


def run_probe(environment: dict[str, str], *args: str) -> tuple[int, str]:
    done = subprocess.run(
        [PROBE, *args], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("args", [[], ["live"], ["alive", "x"]])
def test_a_probe_that_is_called_wrongly_says_how(args: list[str]) -> None:
    code, reason = run_probe({"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": "/x"}, *args)
    assert (code, "usage: forkq-probe ready|alive" in reason) == (2, True)


def test_a_probe_needs_to_know_where_the_pidfile_is(tmp_path: Path) -> None:
    """As in a unit: the first of the folders is the one of the pidfile."""
    path = {"PATH": os.environ["PATH"]}
    code, reason = run_probe(path, "alive")
    assert (code, "set FORKQ_PIDFILE or RUNTIME_DIRECTORY" in reason) == (2, True)
    code, reason = run_probe({**path, "RUNTIME_DIRECTORY": f"{tmp_path}:/y"}, "alive")
    assert (code, f"there is no {tmp_path}/forkq.pid" in reason) == (1, True)


def test_the_status_file_of_a_killed_master_is_not_shown_for_the_next_one(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """The old file stays, and the next master may take long to write its own."""
    app = "import os, time\nwhile os.path.exists('shut'):\n    time.sleep(0.01)\nimport forkq\n"
    forkq = tree(redis_server, app=app, config="[forkq]\npreload = true\n")
    forkq.process.kill()
    forkq.wait()
    (forkq.cwd / "shut").touch()
    forkq.start()
    (pidfile,) = forkq.runtime.glob("**/*.pid")
    wait_until(lambda: pidfile.read_text() == f"{forkq.pid}\n", what="the next pidfile")
    for check in (["--ready"], ["--alive"], []):
        shown = forkq.run("status", *check)
        assert (shown.returncode, "just starting" in shown.stderr) == (4, True)
    (forkq.cwd / "shut").unlink()
    assert forkq.wait_ready().run("status", "--ready").returncode == 0
    assert forkq.stop() == 0
