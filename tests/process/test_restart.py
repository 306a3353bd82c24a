"""A restart of a running tree (USR2, `forkq restart`): new code and configuration, from a fresh
interpreter, tried by one child first."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    Journal,
    measured,
    push,
    push_many,
    title,
    wait_settled,
    workers,
    zombies,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

# `helper` is imported by the app: with preload, only a fresh interpreter sees a change of it.
APP = """
    import os, time, forkq
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

    @forkq.job(name="Gate")
    def gate(path):
        record("begin")
        while not Path(path).exists():
            time.sleep(0.01)
        record("end")
"""
HELPER = "VERSION = {version!r}\n\ndef work():\n    {work}\n"
DEADLINE = 60.0


class Release:
    """A tree whose app and configuration change on disk."""

    def __init__(self, forkq: ForkqTree) -> None:
        self.tree = forkq

    def write(self, version: str, *, top: str = "", work: str = "pass") -> None:
        """New code. Each version has a length of its own: Python's cache of compiled code looks at
        the size, and at the second in which the file was written."""
        (self.tree.cwd / "helper.py").write_text(top + HELPER.format(version=version, work=work))

    def configure(self, text: str) -> None:
        """A new forkq.toml."""
        (self.tree.cwd / "forkq.toml").write_text(text)


@pytest.fixture
def release(redis_server: Server, tree: StartTree, journal: Journal, request) -> Release:
    """Version "one", which runs; with preload if the test says so."""
    preload = getattr(request, "param", False)
    forkq = tree(redis_server, app=APP, env=journal.env, args=[], config="", ready=False)
    forkq.process.kill()
    forkq.process.wait()
    made = Release(forkq)
    made.configure(f"[forkq]\npreload = {str(preload).lower()}\nworkers = 2\ntimeout = 5\n")
    made.write("one")
    forkq.start().wait_ready()
    return made


def restart(forkq: ForkqTree) -> tuple[int, str]:
    """`forkq restart --wait`: its exit code and what it said."""
    done = forkq.run("restart", "--wait", deadline=DEADLINE)
    return done.returncode, done.stdout + done.stderr


both = pytest.mark.parametrize("release", [False, True], ids=["import", "preload"], indirect=True)


@both
def test_new_code_and_configuration_without_a_new_master(
    release: Release, redis_server: Server, redis: Redis, journal: Journal
) -> None:
    forkq, pid = release.tree, release.tree.pid
    old = forkq.children()
    preload = "preload = true" in (forkq.cwd / "forkq.toml").read_text()
    release.configure(
        f"[forkq]\npreload = {str(preload).lower()}\nworkers = 1\ntimeout = 5\n"
        "[capsules.default]\nqueues = ['default', 'more']\nconcurrency = 3\n"
        "[capsules.other]\nqueues = ['other']\n"
    )
    release.write("number-two")
    assert restart(forkq) == (0, f"forkq {pid} restarts its children\nevery child is new\n")
    wait_until(lambda: not set(old) & set(forkq.children()), what="the end of the old children")
    wait_until(lambda: len(forkq.children()) == 3, what="the canary's end")
    jids = [push(redis_server, "Work", 0, queue=name) for name in ("default", "more", "other")]
    journal.wait("number-two", jids)
    assert forkq.alive
    assert not zombies(forkq)
    assert restart(forkq)[0] == 0  # the handed over tree can do it again
    assert forkq.stop() == 0
    forkq.assert_gone()
