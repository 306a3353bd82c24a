"""The log of a whole tree: a reader that stands still, an app with a log of its own, a web UI."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import PIPE_BUF
from typing import Any

import pytest
from redis import Redis

from forkq.runtime.assignment import STACKS_SIGNAL
from tests.process.shared import (
    APP,
    Journal,
    events,
    json_log,
    pass_time,
    push,
    push_many,
    wait_settled,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import NotInTime, wait_until

STRUCTLOG = """
    import logging, structlog, forkq

    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer()],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )

    @forkq.job(name="Talk")
    def talk():
        structlog.get_logger("app").warning("by structlog")
        logging.getLogger("app").info("by logging")
        raise ValueError("\x1b[2J")
"""


class Stalled:
    """The reading end of a tree's standard error, from which nothing is read until ``read``."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def read(self) -> bytes:
        """All that is there."""
        pieces = []
        with suppress(BlockingIOError):
            while piece := os.read(self._reader, 65536):
                pieces.append(piece)
        return b"".join(pieces)

    def fill(self) -> None:
        """Until not one byte fits in. Where ``select`` calls a pipe full, its last page may still
        take a few lines."""
        writer = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        for size in (PIPE_BUF, 1):
            with suppress(BlockingIOError):
                while True:
                    os.write(writer, b"\n" * size)
        os.close(writer)

    def close(self) -> None:
        os.close(self._reader)


@pytest.fixture
def stalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalled]:
    found = Stalled(tmp_path / "stderr")
    monkeypatch.setattr(
        ForkqTree, "wrapper", ["sh", "-c", f'exec "$@" 2>{tmp_path / "stderr"}', "sh"]
    )
    yield found
    found.close()


def run_jobs_without_reader(server: Server, stalled: Stalled, journal: Journal) -> None:
    """None of the lines of these jobs finds room."""
    stalled.fill()
    journal.wait("end", push_many(server, "Quick", [[0]] * 1500), deadline=60)


def test_a_stalled_reader_of_the_log_stops_neither_rescue_nor_respawn_nor_the_stop(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, stalled: Stalled
) -> None:
    """What was dropped meanwhile is counted, and logged when the reader is back."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "1"], env=journal.env)
    run_jobs_without_reader(redis_server, stalled, journal)
    running = push(redis_server, "Nap", 60)
    journal.wait("begin", [running])
    workers(forkq)[0].kill()
    wait_until(lambda: len(journal.runs()[running]) == 2, what="its second run")
    heard = b""

    def logs_the_counts() -> bool:
        nonlocal heard
        heard += stalled.read()
        told = [line for line in heard.splitlines() if b"log lines dropped" in line]
        pids = {pid for line in told for pid in re.findall(rb" pid=(\d+)", line)}
        return len(pids) >= 2

    def tell_of_drops() -> bool:
        """The master and the child, after a stretch without a reader. A child that comes to its
        lines only when the reader is back drops none."""
        run_jobs_without_reader(redis_server, stalled, journal)
        pass_time(1.5)  # longer than the new child waits for the reader
        with suppress(NotInTime):
            return wait_until(logs_the_counts, deadline=3, what="the counts")
        return False

    wait_until(tell_of_drops, deadline=60, what="the counts of both")
    workers(forkq)[0].kill()
    run_jobs_without_reader(redis_server, stalled, journal)  # the stop must not care
    forkq.stop(deadline=35)
    forkq.assert_gone()


def test_stacks_for_a_stalled_reader_of_the_log_stop_no_child(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, stalled: Stalled
) -> None:
    """A C handler writes them: it must not wait for room in the pipe either."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "90"], env=journal.env)
    run_jobs_without_reader(redis_server, stalled, journal)
    for _ in range(200):  # more than the pipe holds
        workers(forkq)[0].send_signal(STACKS_SIGNAL)
        pass_time(0.002)
    jids = push_many(redis_server, "Quick", [[0]] * 2)
    journal.wait("end", jids)
    forkq.stop(deadline=60)  # a child that stands still would use up its time-out
    forkq.assert_gone()


def test_an_app_with_structlog_of_its_own_has_each_line_once(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app=STRUCTLOG, args=["-c", "1", "-t", "1"])
    push(redis_server, "Talk")
    forkq.wait_log("failed")
    assert forkq.stop() == 0
    text = forkq.log_text()
    assert text.count("by structlog") == text.count("by logging") == 1
    assert "\x1b" not in text


def test_ttin_from_a_web_ui_logs_the_stacks(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    jid = push(redis_server, "Nap", 60)
    journal.wait("begin", [jid])
    found: Any = wait_until(lambda: redis.smembers("processes"), what="its record")
    [identity] = found
    redis.lpush(identity + b"-signals", "TTIN")
    forkq.wait_log(f"event=stack.*Nap {jid}", deadline=60)


LINES = """
    import logging, os, forkq

    @forkq.middleware.server.append
    def around(job, call):
        logging.info("in the middleware")
        return call()

    @forkq.job(name="Fork")
    def fork():
        logging.getLogger("app").info("before the fork")
        pid = os.fork()
        if pid == 0:
            logging.getLogger("app").info("in the fork")
            return
        os.waitpid(pid, 0)

    @forkq.job(name="Fails")
    def fails():
        raise ValueError("no such picture")
"""


def test_each_line_is_written_once_with_its_job_also_beside_forks_and_at_the_stop(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app=LINES, args=["-c", "5", "--log-format", "json"])
    jids = push_many(redis_server, "Fork", [[]] * 40)
    failed = push(redis_server, "Fails")
    wait_until(lambda: redis.zcard("retry") == 1, what="the failure")
    wait_settled(redis)
    assert forkq.stop() == 0
    for event in ("in the middleware", "before the fork", "in the fork", "done"):
        lines = [line for line in events(forkq, event) if line["class"] == "Fork"]
        assert sorted(line["jid"] for line in lines) == sorted(jids)
        assert {(line["class"], line["queue"], line["attempt"]) for line in lines} == {
            ("Fork", "default", 1)
        }
    assert all(line["waited"] >= 0 and line["elapsed"] > 0 for line in events(forkq, "done"))
    (line,) = events(forkq, "failed")
    expected = {"jid": failed, "attempt": 1, "attempts": 26, "level": "warning"}
    error = {"error_class": "ValueError", "error": "no such picture"}
    assert line.items() >= {**expected, **error}.items()
    assert line["retry_in"] > 0
    frames = [text for text in line["exception"].splitlines() if text.startswith("  File ")]
    assert [frame.rpartition(" ")[2] for frame in frames] == ["around", "fails"]


GIVEN_UP = """
    import forkq

    @forkq.job(name="Hopeless", retry_in=lambda count, error, job: forkq.KILL)
    def hopeless():
        raise ValueError("no such picture")

    @forkq.job(name="Last")
    def last():
        raise ValueError("no such picture")
"""


def test_a_job_that_is_given_up_early_is_not_said_to_have_used_its_attempts(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    forkq = tree(redis_server, app=GIVEN_UP, args=["--log-format", "console"])
    hopeless = push(redis_server, "Hopeless")
    last = push(redis_server, "Last", retry=0)
    wait_until(lambda: redis.zcard("dead") == 2, what="both deaths")
    assert forkq.stop() == 0
    said = " ".join(forkq.log_text().split())
    assert f"given up: dead; jid {hopeless})" in said
    assert f"no more attempts: dead; jid {last})" in said


TALKATIVE = """
    import logging, forkq

    log = logging.getLogger("app")

    @forkq.job(name="Talk", retry=False)
    def talk(lines):
        for number in range(lines):
            log.info("line %d", number)
            print("printed", number)
        log.error("what matters")
        raise ValueError("the end")

    @forkq.job(name="Quiet")
    def quiet():
        pass
"""


def test_a_job_that_logs_in_a_loop_is_cut_short_and_told(
    redis: Redis, redis_server: Server, tree: StartTree
) -> None:
    """The lines that matter, its own and forkq's, are there. What is left out is told when the
    child ends, if not before."""
    config = '[log]\nformat = "json"\nmax_job_lines = 100\n'
    forkq = tree(redis_server, app=TALKATIVE, config=config)
    jid = push(redis_server, "Talk", 5000)
    push(redis_server, "Quiet")
    wait_settled(redis)
    assert forkq.stop() == 0
    lines = [line for line in json_log(forkq) if line.get("jid") == jid]
    assert sum(line["event"].startswith("line ") for line in lines) == 50
    assert forkq.log_text().count("printed ") == 50
    assert [line["event"] for line in lines if line["level"] != "info"] == [
        "what matters", "failed", "lines of a job left out"
    ]  # fmt: skip
    assert lines[-1]["lines"] == 2 * 5000 - 100
    assert len(events(forkq, "done")) == 1


def test_done_lines_can_be_sampled(redis: Redis, redis_server: Server, tree: StartTree) -> None:
    """The first of each class, and then each tenth; failures are all told."""
    config = '[log]\nformat = "json"\ndone_every = 10\n'
    forkq = tree(redis_server, app=TALKATIVE, config=config)
    push_many(redis_server, "Quiet", [[]] * 35)
    push_many(redis_server, "Talk", [[0]] * 5)
    wait_settled(redis)
    assert forkq.stop() == 0
    assert len(events(forkq, "done")) == 4
    assert len(events(forkq, "failed")) == 5
