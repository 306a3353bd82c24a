"""A debugger in a job: ``breakpoint()`` with ``forkq start -c 1 --foreground``."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.process.shared import pass_time, push, wait_settled
from tests.support import bound
from tests.support.server import Server
from tests.support.tree import FORKQ, ForkqTree
from tests.support.waiting import wait_until

APP = """
import forkq

@forkq.job(name="Look", timeout=0.2, hard_timeout=0.4)
def look(secret: int) -> None:
    breakpoint()
    print("the job has seen", secret + 1, flush=True)
"""


class Terminal:
    """A pseudo-terminal with ``forkq start`` on it, and what it has shown."""

    def __init__(self, tree: ForkqTree) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            bound.command([*FORKQ, "start", *tree.args]),
            cwd=tree.cwd, env=tree.env, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:  # the last process has closed its end
                return
            self.shown += part.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait(self, pattern: str) -> None:
        wait_until(
            lambda: re.search(pattern, self.shown), what=f"{pattern!r} in:\n{self.shown[-3000:]}"
        )

    def close(self) -> None:
        self._reader.join(10)
        os.close(self._master)


@pytest.fixture
def tree(redis: Redis, redis_server: Server) -> Iterator[ForkqTree]:
    tree = ForkqTree(redis_server, app=APP, args=["-c", "1", "--foreground"])
    yield tree
    tree.close()


def test_the_prompt_is_usable_and_nothing_ends_the_job_or_writes_into_it(
    tree: ForkqTree, redis: Redis, redis_server: Server
) -> None:
    terminal = Terminal(tree)
    try:
        terminal.wait("ready ")
        push(redis_server, "Look", 41)
        terminal.wait(r"\(Pdb\) $")
        terminal.process.send_signal(signal.SIGHUP)  # the master logs a line
        pass_time(1.0)  # both time limits
        assert terminal.shown.endswith("(Pdb) ")
        terminal.type("secret\n")
        terminal.wait(r"41\r\n\(Pdb\) $")
        assert "hangup" not in terminal.shown
        terminal.type("c\n")
        terminal.wait("the job has seen 42")
        terminal.wait("hangup")
        wait_settled(redis)
        assert redis.zcard("retry") == 0
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(30) == 0
    finally:
        tree.close()
        terminal.process.wait(10)
        terminal.close()


def test_more_than_one_processor_is_refused(tree: ForkqTree) -> None:
    done = tree.run("start", *tree.args[:-3], "-c", "2", "--foreground")
    assert done.returncode == 2
    assert "there would be 2 processors: give -c 1" in done.stderr
