"""A tree that was ready goes on with the living children when another one cannot boot; and what
ends a child that boots."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    events,
    leased,
    push,
    push_many,
    title,
    wait_events,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import StartTree
from tests.support.waiting import wait_until, within

JSON = ["--log-format", "json"]
# A startup handler that fails while the file "no-database" is there. It writes a line for each try.
STARTUP = """

@forkq.on("startup")
def connect() -> None:
    here = Path(os.environ["FORKQ_TEST_JOURNAL"])
    fails = here.with_name("no-database").exists()
    with here.with_name("tries").open("a") as tries:
        tries.write(f"{time.monotonic()}\\n")
    if fails:
        raise OSError("no database")
"""
# An import that does not return while the file "hang" is there.
HANG = """
import os, time
from pathlib import Path

def hang():
    os.write(2, b"importing\\n")
    while (Path(__file__).parent / "hang").exists():
        time.sleep(0.01)

hang()
"""


class Systemd:
    """The socket on which systemd receives messages. A thread reads them at once, since few
    datagrams fit into it. ``lines``: what has come."""

    def __init__(self, path: Path) -> None:
        self.env = {"NOTIFY_SOCKET": str(path)}
        self.lines: list[str] = []
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while message := self._socket.recv(65536):
            self.lines += message.decode().splitlines()

    def close(self) -> None:
        """Ends the thread, by an empty datagram."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", str(self._path))
        self._thread.join(10)
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    found = Systemd(tmp_path / "notify")
    yield found
    found.close()


def test_a_tree_that_was_ready_goes_on_when_a_child_cannot_boot(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal, systemd: Systemd
) -> None:
    """The other children keep their jobs. The master tries again with pauses, logs that once, and
    shows that the tree is degraded, and why, until the child is ready."""
    here = journal.path.parent
    env = {**journal.env, **systemd.env}
    args = ["-w", "3", "-c", "1", *JSON]
    forkq = tree(redis_server, app=APP.read_text() + STARTUP, args=args, env=env)
    running = push_many(redis_server, "Gate", [[str(here / "open")]] * 2)
    journal.wait("begin", running)
    busy = {line.pid for line in journal.lines("begin")}
    (here / "no-database").touch()
    (idle,) = [child for child in workers(forkq) if child.pid not in busy]
    idle.kill()
    wait_until(lambda: len(_tries(here)) >= 3 + 5, what="five tries")
    gaps = [later - earlier for earlier, later in pairwise(_tries(here)[3:])]
    assert all(gap >= least for gap, least in zip(gaps, (0.5, 1.0, 2.0, 4.0), strict=False))
    assert forkq.alive
    wait_until(lambda: forkq.status()["state"] == "degraded", what="the state")
    (missing,) = forkq.status()["missing"]
    assert re.fullmatch(r"default\.\d cannot boot: .*no database.*", missing)
    wait_until(
        lambda: any("degraded: default." in line for line in systemd.lines), what="the STATUS"
    )
    assert "degraded: default." in title(psutil.Process(forkq.pid))
    (line,) = events(forkq, "child cannot boot; trying again, the others go on")
    assert "no database" in line["reason"]
    assert not [line for line in systemd.lines if line.startswith("STOPPING")]
    (here / "no-database").unlink()
    wait_until(lambda: forkq.status()["state"] == "running", what="its recovery", deadline=60)
    assert forkq.status()["missing"] == []
    (line,) = wait_events(forkq, "child is ready again")
    assert line["failed"] >= 5
    (here / "open").touch()
    journal.wait("end", running)
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert forkq.stop() == 0
    assert not events(forkq, "cannot boot; giving up")


def test_a_rolling_restart_tries_an_empty_slot_at_once_and_ends_without_it(
    redis_server: Server, tree: StartTree, journal: Journal, systemd: Systemd
) -> None:
    """The new code may boot. systemd gets the end of the reload even if it does not."""
    here = journal.path.parent
    env = {**journal.env, **systemd.env}
    args = ["-w", "2", "-c", "1", *JSON]
    forkq = tree(redis_server, app=APP.read_text() + STARTUP, args=args, env=env)
    (here / "no-database").touch()
    workers(forkq)[0].kill()
    wait_until(lambda: len(_tries(here)) >= 2 + 4, what="four tries")
    forkq.signal(signal.SIGUSR2)
    wait_events(forkq, "rolling restart called off: the new child died; the old ones go on")
    wait_until(lambda: "READY=1" in _after(systemd.lines, "RELOADING=1"), what="the reload's end")
    wait_until(lambda: forkq.status()["state"] == "degraded", what="the state")
    (here / "no-database").unlink()
    tries = len(_tries(here))
    asked = time.monotonic()
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: len(_tries(here)) > tries, what="another try")
    assert _tries(here)[tries] - asked < within(1.0), "the pause has grown beyond this"
    wait_until(lambda: forkq.status()["state"] == "running", what="its recovery")
    assert forkq.stop() == 0


def test_a_child_short_of_threads_fetches_nothing(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It begins no job before its last thread runs. A tree of such children ends with the reason,
    and its jobs get no crash record."""
    app = APP.read_text() + (
        "\n\nimport threading\n"
        "_start, _started = threading.Thread.start, []\n"
        "def scarce(thread):\n"
        "    if thread.name.startswith('processor'):\n"
        "        _started.append(thread)\n"
        "    if len(_started) > 3:\n"
        "        time.sleep(0.2)  # enough for the first ones to fetch\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    _start(thread)\n"
        "threading.Thread.start = scarce\n"
    )
    jids = push_many(redis_server, "Nap", [[5]] * 5)
    limit = within(3.0)
    config = f"[forkq]\nboot_timeout = {limit:g}\n"
    args = ["-c", "5", *JSON]
    forkq = tree(redis_server, app=app, config=config, args=args, env=journal.env, ready=False)
    assert forkq.wait(deadline=limit + 60) == 8
    (line,) = events(forkq, "cannot boot; giving up")
    assert "the system gives no more threads" in line["reason"]
    assert not events(forkq, "ready")
    assert journal.lines("begin") == []
    assert waiting(redis) == jids
    assert not any(b"crashes" in payload for payload in redis.lrange("queue:default", 0, -1))
    forkq.assert_gone()


def test_the_child_that_hangs_in_its_boot_is_named_with_its_stack(
    redis_server: Server, tree: StartTree
) -> None:
    """After the time limit the master kills it, and ends: systemd starts it again."""
    app = HANG.replace('(Path(__file__).parent / "hang").exists()', "True")
    timeout = round(within(0.5), 1)  # the app must be on its way by then
    config = f"[forkq]\nboot_timeout = {timeout:g}\n"
    forkq = tree(redis_server, config=config, app=app, ready=False, args=JSON)
    assert forkq.wait(deadline=90) == 8
    killed = events(forkq, "a child hangs in its boot; killing it")
    assert [line["child"] for line in killed] == ["default.0"]
    assert any("in hang" in line["stack"] for line in events(forkq, "stack"))
    (line,) = events(forkq, "cannot boot; giving up")
    assert f"not ready after {timeout:g} s ([forkq] boot_timeout)" in line["reason"]
    forkq.assert_gone()


def test_systemd_is_asked_for_more_time_while_children_boot(
    redis_server: Server, tree: StartTree, journal: Journal, systemd: Systemd
) -> None:
    """At the start and in a rolling restart; not when all children are ready."""
    app = APP.read_text() + HANG
    args = ["-c", "1", *JSON]
    forkq = tree(redis_server, app=app, args=args, env={**journal.env, **systemd.env})
    extension = "EXTEND_TIMEOUT_USEC=30000000"
    wait_until(lambda: "READY=1" in systemd.lines, what="the start")
    assert extension in systemd.lines[: systemd.lines.index("READY=1")]
    assert extension not in _after(systemd.lines, "READY=1")
    (forkq.cwd / "hang").touch()
    forkq.signal(signal.SIGUSR2)
    wait_until(
        lambda: extension in _after(systemd.lines, "RELOADING=1"),
        what="an extension of the reload",
    )
    (forkq.cwd / "hang").unlink()
    wait_until(lambda: "READY=1" in _after(systemd.lines, "RELOADING=1"), what="the reload's end")
    assert forkq.stop() == 0


def test_usr2_during_a_rolling_restart_is_done_after_it(
    redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Even if the first one hangs in the boot of new code: the next code may boot."""
    # The start of an interpreter beside a load included.
    config = f"[forkq]\nboot_timeout = {max(4, within(2)):g}\n"
    args = ["-c", "1", *JSON]
    app = APP.read_text() + HANG
    forkq = tree(redis_server, config=config, app=app, args=args, env=journal.env)
    (old,) = workers(forkq)
    (forkq.cwd / "hang").touch()
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: forkq.log_text().count("importing") == 2, what="the new child's import")
    forkq.signal(signal.SIGUSR2)
    forkq.signal(signal.SIGUSR2)
    wait_events(forkq, "rolling restart: one is under way; another one follows it")
    called_off = "rolling restart called off: the new child died; the old ones go on"
    wait_events(forkq, called_off, deadline=90)
    assert old in workers(forkq)
    (forkq.cwd / "hang").unlink()
    wait_events(forkq, "rolling restart: every child is new")
    assert len(events(forkq, "rolling restart: one is under way; another one follows it")) == 1
    wait_until(lambda: old not in workers(forkq), what="the old one's end")
    assert forkq.stop() == 0


@pytest.mark.parametrize("end", ["TERM", "TERM to the child", "KILL to the master"])
def test_a_child_that_still_imports_ends_at_once(
    redis_server: Server, tree: StartTree, end: str
) -> None:
    """It has fetched no jobs, so there is nothing to wait for."""
    app = HANG.replace('(Path(__file__).parent / "hang").exists()', "True")
    forkq = tree(redis_server, app=app, args=["-w", "2", *JSON], ready=False)
    wait_until(lambda: forkq.log_text().count("importing") == 2, what="both imports")
    booting = workers(forkq)
    began = time.monotonic()
    if end == "TERM":
        assert forkq.stop(deadline=10) == 0
        assert not events(forkq, "jobs ignore the stop; freezing")
        forkq.assert_gone()
    elif end == "TERM to the child":
        booting[0].terminate()
        wait_until(lambda: not booting[0].is_running(), what="its end")
        wait_until(lambda: forkq.log_text().count("importing") == 3, what="another one's import")
    else:
        forkq.signal(signal.SIGKILL)
        wait_until(lambda: not forkq.processes(), what="the end of all")
    assert time.monotonic() - began < within(5)


def test_a_stop_does_not_wait_for_an_import(redis_server: Server, tree: StartTree) -> None:
    """A child whose import blocks all its threads cannot obey. It holds no lease, so the master
    kills it long before the deadline."""
    app = "import ctypes, os\nos.write(2, b'importing\\n')\nctypes.PyDLL(None).sleep(60)\n"
    forkq = tree(redis_server, app=app, args=JSON, ready=False)
    wait_until(lambda: "importing" in forkq.log_text(), what="the import")
    assert forkq.stop(deadline=15) == 0
    (line,) = events(forkq, "a child in its boot does not obey; killing it")
    assert line["child"] == "default.0"
    assert events(forkq, "child killed"), "the master has killed it: it did not die"
    assert not events(forkq, "child died")
    forkq.assert_gone()


def test_a_stop_does_not_blame_jobs_when_none_runs(redis_server: Server, tree: StartTree) -> None:
    """A handler of the app may keep a child from ending, too."""
    app = """
        import time
        import forkq

        @forkq.on("exit")
        def hang():
            time.sleep(60)
    """
    forkq = tree(redis_server, app=app, args=["-t", "0.1", *JSON])
    assert forkq.stop(deadline=15) == 0
    (line,) = events(forkq, "children do not end; freezing")
    assert line["children"] == {"default.0": "stopping"}
    assert line["jobs"] == 0
    assert "ignore the stop" not in forkq.log_text()
    forkq.assert_gone()


def test_a_frozen_child_that_is_killed_from_outside_leaves_no_lease(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The kill comes between the freeze and the requeue: the jobs go back all the same."""
    args = ["-w", "2", "-c", "1", "-t", "0.2", *JSON]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Stubborn", [[]] * 2)
    journal.wait("begin", jids)
    children = workers(forkq)
    forkq.signal(signal.SIGTERM)
    # Polled without a pause: the state lasts for some milliseconds.
    wait_until(lambda: _is_stopped(children[0]), every=0, what="the freeze")
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    assert forkq.wait() == 0
    assert leased(redis) == []
    assert sorted(waiting(redis)) == sorted(jids)
    assert not any(b"crashes" in payload for payload in redis.lrange("queue:default", 0, -1))
    forkq.assert_gone()


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except (
        psutil.NoSuchProcess
    ):  # on a busy machine the test may come too late, and proves nothing then
        return True


def _tries(here: Path) -> list[float]:
    path = here / "tries"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def _after(lines: list[str], line: str) -> list[str]:
    """``line`` and those that follow it."""
    return lines[lines.index(line) :] if line in lines else []


def test_a_solo_child_that_cannot_boot_is_told(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A suspect waits for it. When it boots, the tree is as it was."""
    forkq = tree(redis_server, app=APP.read_text() + STARTUP, args=JSON, env=journal.env)
    broken = journal.path.with_name("no-database")
    broken.touch()
    jid = push(redis_server, "Quick", 0, forkq={"suspect": True})
    wait_until(lambda: forkq.status().get("state") == "degraded", what="a degraded tree")
    shown = forkq.run("status").stdout
    assert "missing: default.solo0 cannot boot: OSError: no database" in shown
    broken.unlink()
    journal.wait("end", [jid])
    wait_until(lambda: forkq.status().get("state") == "running", what="the whole tree")
    assert forkq.stop() == 0
