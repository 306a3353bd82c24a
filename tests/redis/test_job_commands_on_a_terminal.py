"""The question and the progress of ``forkq dead retry``, on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from tests.support.server import Server
from tests.support.waiting import within

# The second hides rich, as if it was not installed.
_RUN = "from forkq.cli.main import main; main()"
_PLAIN = f"import sys; sys.modules['rich'] = None; sys.modules['rich.progress'] = None; {_RUN}"


class Terminal:
    """A program on a terminal of its own, of 80 columns."""

    def __init__(self, program: str, *arguments: str, url: str) -> None:
        self.end, other = pty.openpty()
        environment = {**os.environ, "FORKQ_REDIS": url, "TERM": "xterm", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=other, stdout=other, stderr=other, env=environment,
        )  # fmt: skip
        os.close(other)
        self.shown = ""

    def read_until(self, text: str) -> None:
        """Reads until ``text`` is on the terminal."""
        deadline = time.monotonic() + within(30)
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.end], [], [], 1.0)[0]:
                self.shown += os.read(self.end, 65536).decode()

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def end_of_program(self) -> int:
        """Waits for the program's end. Returns its exit code."""
        return self.process.wait(within(30))


@pytest.fixture
def terminal(redis_server: Server) -> Iterator[Callable[..., Terminal]]:
    """Starts programs; ends them after the test."""
    started: list[Terminal] = []

    def start(*words: str) -> Terminal:
        started.append(Terminal(*words, url=redis_server.url))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        os.close(each.end)


@pytest.fixture
def dead(redis: Redis) -> int:
    """How many dead jobs there are: some batches."""
    jobs = [json.dumps({"class": "A", "args": [], "queue": "q", "jid": str(n)}) for n in range(900)]
    redis.zadd("dead", {job: 1700000000.0 + at for at, job in enumerate(jobs)})
    return len(jobs)


@pytest.mark.parametrize(("program", "progress"), [(_RUN, "━"), (_PLAIN, "\rretry: ")])
def test_a_question_and_progress(
    program: str, progress: str, dead: int, redis: Redis, terminal: Callable[..., Terminal]
) -> None:
    if program == _RUN:
        pytest.importorskip("rich", reason="rich is not installed: pip install 'forkq[cli]'")
    asked = terminal(program, "dead", "retry", "--all")
    asked.read_until("Retry 900 dead jobs? [y/N]: ")
    assert redis.zcard("dead") == dead
    asked.type("y\n")
    asked.read_until("900 dead jobs enqueued")
    assert progress in asked.shown
    assert asked.end_of_program() == 0
    assert redis.llen("queue:q") == dead


def test_the_question_before_a_kill_says_what_goes_for_good(
    dead: int, redis: Redis, terminal: Callable[..., Terminal]
) -> None:
    redis.zadd("forkq:dead:bounds", {"800 180": time.time()})
    redis.zadd("retry", {json.dumps({"class": "A", "args": [], "jid": str(n)}): n for n in (1, 2)})
    asked = terminal(_RUN, "retries", "kill", "--all")
    asked.read_until("Kill 2 retrying jobs? [y/N]: ")
    says = " ".join(asked.shown.split())
    assert "The dead set keeps 800 jobs: of 902, forkq deletes the oldest 102 for good" in says
    asked.type("n\n")
    assert asked.end_of_program() == 1
    assert redis.zcard("dead") == dead


def test_no_is_no(dead: int, redis: Redis, terminal: Callable[..., Terminal]) -> None:
    asked = terminal(_RUN, "dead", "delete", "0")
    asked.read_until("Delete 1 dead job? [y/N]: ")
    asked.type("\n")
    asked.read_until("nothing was changed")
    assert asked.end_of_program() == 1
    assert redis.zcard("dead") == dead
