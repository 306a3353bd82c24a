"""``forkq start --reload``: a save is live at once, running jobs end, broken code is survived."""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from redis import Redis

from tests.process.shared import measured, push, title, wait_settled, workers
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

pytest.importorskip("watchfiles", reason="pip install 'forkq[reload]'")

APP = """
import forkq, os, time

@forkq.job(name="Version")
def version() -> None:
    print("version", VERSION, flush=True)

@forkq.job(name="Long")
def long(gate: str) -> None:
    print("long", VERSION, "begins", flush=True)
    while not os.path.exists(gate):
        time.sleep(0.01)
    print("long", VERSION, "ends", flush=True)

VERSION = 1
"""


def save(forkq: ForkqTree, version: str) -> None:
    (forkq.cwd / "jobs.py").write_text(APP.replace("VERSION = 1", f"VERSION = {version}"))


def new_child(forkq: ForkqTree, before: list[psutil.Process]) -> None:
    """Waits for a child that has taken the slot of those, which fetch nothing more. They hear of
    it a moment after it is ready, and may fetch a job until then."""
    old = {child.pid for child in before}
    wait_until(
        lambda: [c for c in workers(forkq) if c.pid not in old and "busy]" in title(c)],
        what="a new child",
    )
    wait_until(lambda: not any("busy]" in title(c) for c in before), what="the old one to retire")


def test_a_save_is_live_and_running_jobs_end_and_broken_code_is_survived(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "2", "--reload"])
    gate = str(forkq.cwd / "gate")
    push(redis_server, "Long", gate)
    forkq.wait_log("long 1 begins")
    before = workers(forkq)

    saved = time.monotonic()
    save(forkq, "2")
    new_child(forkq, before)
    measured(f"a new child has taken the slot {time.monotonic() - saved:.2f} s after the save")
    push(redis_server, "Version")
    forkq.wait_log("version 2")
    assert "long 1 ends" not in forkq.log_text()
    (forkq.cwd / "gate").touch()
    forkq.wait_log("long 1 ends")  # the old child ends its job

    save(forkq, "(((")
    forkq.wait_log("SyntaxError")
    push(redis_server, "Version")
    wait_until(lambda: forkq.log_text().count("version 2") == 2, what="a run of the old code")
    save(forkq, "4")
    forkq.wait_log(r"(?s)SyntaxError.*replac")
    wait_until(lambda: _runs(forkq, redis_server, "version 4"), what="the mended code", every=0.2)
    wait_settled(redis)
    assert forkq.stop() == 0
    forkq.assert_gone()


def _runs(forkq: ForkqTree, server: Server, line: str) -> bool:
    push(server, "Version")
    return line in forkq.log_text()


def test_a_tree_whose_app_is_broken_at_first_waits_for_the_mended_code(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app="1 / 0", args=["-c", "1", "--reload"], ready=False)
    forkq.wait_log("ZeroDivisionError")
    save(forkq, "3")
    forkq.wait_ready()
    push(redis_server, "Version")
    forkq.wait_log("version 3")
    [watcher] = forkq.children("code_watch")
    watcher.kill()
    save(forkq, "4")  # nothing watches now
    forkq.wait_log("watched the code has ended")
    wait_until(lambda: _runs(forkq, redis_server, "version 4"), what="the saved code", every=0.1)
    [watcher] = forkq.children("code_watch")
    forkq.signal(signal.SIGKILL)
    wait_until(lambda: not watcher.is_running() or title(watcher) == "", what="the watcher's end")
