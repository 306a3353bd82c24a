"""Jobs that harm the process they run in: its fork, its descriptors, its exit code."""

from __future__ import annotations

import os
import sys

import psutil
import pytest
from redis import Redis

from tests.process.shared import (
    APP,
    Journal,
    counter,
    leased,
    payloads,
    push,
    push_many,
    wait_settled,
    wait_swept,
    waiting,
    workers,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

forking = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("raises", [False, True])
def test_the_copy_of_a_job_that_forks_takes_no_other_job(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, raises: bool
) -> None:
    """It would go on as a processor, on the same connection, with the same leases."""
    forkq = tree(redis_server, app=APP, args=["-c", "2"], env=journal.env)
    jids = push_many(redis_server, "Fork", [[raises]] * 20)
    jids += push_many(redis_server, "Quick", [[0.001]] * 200)
    wait_settled(redis)
    assert sorted(journal.lines("end")[i].jid for i in range(220)) == sorted(jids)
    assert len(journal.lines("end")) == 220
    assert {line.pid for line in journal.lines("end")} == {workers(forkq)[0].pid}
    assert payloads(redis, "retry") == []
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_a_job_may_end_a_process_of_its_own(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """SIGTERM to a job's forked process neither bounces off it nor stops the child."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    [child] = workers(forkq)
    jid = push(redis_server, "Pool")
    journal.wait("end", [jid])
    wait_settled(redis)
    assert workers(forkq) == [child]
    assert journal.lines("survived") == []
    assert forkq.stop() == 0


@pytest.mark.parametrize("code", [0, 75])
def test_an_exit_from_inside_a_job_is_a_crash_whatever_the_code(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, code: int
) -> None:
    """Such a job is buried when it has done it three times, and the tree goes on."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    wait_swept(redis, forkq)
    jid = push(redis_server, "Exit", code)
    [found] = wait_until(lambda: payloads(redis, "dead"), deadline=60, what="its burial")
    assert found["jid"] == jid
    assert [crash["exit"] for crash in found["forkq"]["crashes"]] == [code] * 4
    forkq.wait_log("its process died 3 times within 72 hours while this job ran alone")
    after = push(redis_server, "Quick", 0.001)
    journal.wait("end", [after])
    assert len(journal.lines("begin")) == 5
    assert forkq.stop() == 0


def test_many_jobs_that_end_their_child_at_once_do_not_look_like_an_app_that_cannot_boot(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """A child is ready before its first job can end it."""
    push_many(redis_server, "Exit", [[1]] * 4)
    forkq = tree(redis_server, app=APP, args=["-c", "4"], env=journal.env, ready=False)
    wait_until(lambda: len(payloads(redis, "dead")) == 4, deadline=60, what="four burials")
    assert "cannot boot" not in forkq.log_text()
    assert waiting(redis) == leased(redis) == []
    assert forkq.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the pipes in /proc: test on Linux")
def test_garbage_on_a_childs_pipes_harms_no_other_process(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    jid = push(redis_server, "Scribble")
    journal.wait("end", [jid])
    scribbler = journal.lines("end")[0].pid
    after = push_many(redis_server, "Quick", [[0.001]] * 50)
    journal.wait("end", after)
    assert forkq.alive
    assert counter(redis, "failed") == 0

    def is_replaced() -> bool:
        pids = [child.pid for child in workers(forkq)]
        return len(pids) == 2 and scribbler not in pids

    wait_until(is_replaced, what="a replacement of the child that cannot be heard")
    assert "replacing the child" in forkq.log_text()
    assert len(journal.lines("begin")) == len(journal.lines("end")) == 51
    assert forkq.stop() == 0


def test_the_neighbours_of_a_job_that_execs_run_again(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The process lives, so no sweep would take its leases: the master must."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "1"], env=journal.env)
    here = journal.path.parent
    neighbour = push(redis_server, "Gate", str(here / "open"))
    journal.wait("begin", [neighbour])
    jid = push(redis_server, "Exec", str(here / "done"))
    journal.wait("end", [jid])
    wait_until(lambda: len(journal.runs()[neighbour]) == 2, what="the neighbour's second run")
    (here / "open").touch()
    journal.wait("end", [neighbour])
    first = journal.runs()[neighbour][0].pid  # frozen before the second run, reaped after it
    wait_until(lambda: not psutil.pid_exists(first), what="the end of the other program")
    assert "a child has closed its pipes, but lives" in forkq.log_text()
    wait_settled(redis)
    assert forkq.stop() == 0
    forkq.assert_gone()


LINGER = """

@forkq.job(name="Linger")
def linger():
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(30)
        os._exit(0)
"""


def test_a_copy_that_a_job_has_forked_hides_no_exec(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """The copy lives on, and must not hold the child's end of the pipe."""
    app = APP.read_text() + LINGER
    forkq = tree(redis_server, app=app, args=["-c", "2", "-t", "1"], env=journal.env)
    push(redis_server, "Linger")
    wait_settled(redis)
    here = journal.path.parent
    neighbour = push(redis_server, "Gate", str(here / "open"))
    journal.wait("begin", [neighbour])
    copies = [process for child in workers(forkq) for process in child.children()]
    push(redis_server, "Exec", str(here / "done"))
    wait_until(lambda: len(journal.runs()[neighbour]) == 2, what="the neighbour's second run")
    (here / "open").touch()
    journal.wait("end", [neighbour])
    for copy in copies:
        copy.kill()
    wait_settled(redis)
    assert forkq.stop() == 0


def test_a_stop_ends_what_a_job_has_made_of_its_child(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal
) -> None:
    """Such a process reads no order; its jobs go back."""
    forkq = tree(redis_server, app=APP, args=["-c", "2", "-t", "0.2"], env=journal.env)
    neighbour = push(redis_server, "Nap", 60)
    journal.wait("begin", [neighbour])
    [child] = workers(forkq)
    push(redis_server, "Exec", str(journal.path.with_name("done")))
    wait_until(lambda: "sleep" in child.name(), what="the other program")
    assert forkq.stop() == 0
    forkq.assert_gone()
    assert leased(redis) == []
    assert neighbour in waiting(redis)


NO_OUTPUT = {
    "none": "None",
    "no flush": "object()",
    "raises": "type('Out', (), {'flush': lambda self: 1 / 0})()",
    "exits": "type('Out', (), {'flush': lambda self: sys.exit(1)})()",
    "blocks": "type('Out', (), {'flush': lambda self: time.sleep(60)})()",
}


@pytest.mark.parametrize("output", NO_OUTPUT.values(), ids=NO_OUTPUT)
@forking
def test_an_output_that_cannot_be_flushed_sends_no_child_into_the_masters_code(
    redis: Redis, redis_server: Server, tree: StartTree, journal: Journal, output: str
) -> None:
    """Neither a child nor a job's own fork runs a line beyond its end."""
    app = APP.read_text() + f"\n\nimport sys\nsys.stdout = {output}\n"
    forkq = tree(redis_server, app=app, args=["-c", "1"], env=journal.env)
    jid = push(redis_server, "Fork", False)
    journal.wait("end", [jid])
    wait_settled(redis)
    assert len(journal.lines("end")) == 1
    assert forkq.stop() == 0
    forkq.assert_gone()
    assert "Traceback" not in forkq.log_text()
    assert "child died" not in forkq.log_text()


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")),
        "<&- >&- 2>&-",
        ">/dev/full",
    ],
)
def test_a_tree_that_is_started_without_standard_streams_works(
    redis: Redis, redis_server: Server, journal: Journal, closed: str
) -> None:
    """Their numbers must not go to a pipe of the master's, into which jobs would print. Nor does a
    full disk keep an app from its import that prints there."""
    app = APP.read_text() + "\n\nimport sys\nprint('out'); print('err', file=sys.stderr)\n"
    forkq = ForkqTree(redis_server, app=app, args=["-w", "2", "-c", "1"], env=journal.env)
    forkq.wrapper = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    try:
        forkq.start().wait_ready()
        for process in [psutil.Process(forkq.pid), *forkq.children()]:
            streams = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]  # noqa: PTH115
            assert not [stream for stream in streams if stream.startswith(("pipe", "socket"))]
        jids = push_many(redis_server, "Quick", [[0.01]] * 4)
        journal.wait("end", jids)
        wait_settled(redis)
        assert forkq.stop() == 0
        forkq.assert_gone()
        assert "Traceback" not in forkq.log_text()
    finally:
        forkq.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_job_prints_is_in_the_log_although_its_process_is_killed(
    redis_server: Server, tree: StartTree, unbuffered: str
) -> None:
    """The log is no terminal here, as under systemd: Python would keep the lines in a buffer."""
    app = """
import os, signal, forkq

@forkq.job(name="LastWords")
def last_words(who):
    print("said by", who)
    os.kill(os.getpid(), signal.SIGKILL)

print("imported by", "the app")
"""
    forkq = tree(redis_server, app=app, env={"PYTHONUNBUFFERED": unbuffered})
    forkq.wait_log("imported by the app\n")
    push(redis_server, "LastWords", "a job")
    forkq.wait_log("said by a job\n")
