"""What each signal to the master does, as the table of docs/signals.md says."""

from __future__ import annotations

import os
import re
import signal
import time

import psutil
from redis import Redis

from forkq.runtime.exit_codes import INTERRUPTED
from tests.process.shared import (
    APP,
    Journal,
    events,
    leased,
    pass_time,
    push,
    push_many,
    title,
    wait_events,
    wait_settled,
    waiting,
    workers,
    zombies,
)
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import wait_until

TIMEOUT = 25  # seconds that a stop gives running jobs by default

VERSIONED = """
    import os, time, forkq

    JOURNAL = os.open(os.environ["FORKQ_TEST_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    VERSION = "{version}"
    {more}

    def record(event):
        jid = forkq.current_job().jid
        os.write(JOURNAL, f"{{event}} {{jid}} {{os.getpid()}} {{time.monotonic()}}\\n".encode())

    @forkq.job(name="Versioned")
    def versioned(seconds):
        record("begin")
        time.sleep(seconds)
        record("end")
        record(VERSION)
"""


def test_int_stops_and_a_second_one_changes_nothing(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """A running job has until the time-out, even after a second Ctrl-C. Each phase is logged."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    forkq.signal(signal.SIGINT)
    forkq.wait_log("waiting for running jobs.*jobs=1.*default.0.*the third Ctrl-C kills")
    forkq.wait_log(f"the stop waits for these jobs.*Gate {jid}")
    forkq.signal(signal.SIGINT)
    forkq.wait_log("waiting for running jobs.*jobs=1.*one more Ctrl-C kills")
    forkq.signal(signal.SIGTERM)
    door.touch()
    assert forkq.wait() == 0
    assert journal.jids("end") == {jid}
    assert forkq.log_text().count("event=stopping") == 1
    forkq.assert_gone(deadline=0.2)


def test_quit_stops_as_term_does(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Images say STOPSIGNAL SIGQUIT. Without a handler the kernel would keep it from PID 1 of a
    container; elsewhere it would end the master at once, and at a terminal the children, too."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    os.killpg(forkq.pid, signal.SIGQUIT)  # as the terminal does
    forkq.wait_log("waiting for running jobs")
    door.touch()
    assert forkq.wait() == 0
    assert journal.jids("end") == {jid}
    forkq.assert_gone(deadline=0.2)


def test_a_third_int_kills_at_once_and_the_leases_stay(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The next start recovers them."""
    forkq = tree(redis_server, app=APP, args=["-c", "2"], env=journal.env)
    wait_until(lambda: redis.scard("processes") == 1, what="its record")
    jids = [push(redis_server, "Nap", 60), push(redis_server, "Stubborn")]
    journal.wait("begin", jids)
    began = time.monotonic()
    for count in range(3):
        forkq.signal(signal.SIGINT)
        if count == 0:
            forkq.wait_log("stopping")
        if count == 1:  # two of the same kind may become one, unless the first was taken
            wait_until(lambda: psutil.Process(forkq.pid).status() == "sleeping", what="its rest")
    assert forkq.wait() == INTERRUPTED
    assert time.monotonic() - began < TIMEOUT
    forkq.assert_gone(deadline=0.2)
    assert sorted(leased(redis)) == sorted(jids)
    forkq.start()
    wait_until(lambda: len(journal.lines("begin")) == 4, what="both jobs again")


def test_ctrl_c_at_the_terminal_reaches_children_through_the_master_only(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The terminal signals the whole process group; a child must ignore it."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    assert {os.getpgid(child.pid) for child in forkq.children()} == {forkq.pid}
    for number in (signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT, signal.SIGINT):
        os.killpg(forkq.pid, number)
    door.touch()
    assert forkq.wait() == 0
    assert journal.jids("end") == {jid}
    assert "KeyboardInterrupt" not in forkq.log_text()


def test_tstp_is_quiet_until_term(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Running jobs end, no new one begins, the children stay. A replacement is quiet, too."""
    forkq = tree(redis_server, app=APP, args=["-w", "2", "-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    running = push_many(redis_server, "Gate", [[str(door)]] * 2)
    journal.wait("begin", running)
    forkq.signal(signal.SIGTSTP)
    wait_until(lambda: all("quiet" in title(c) for c in workers(forkq)), what="quiet titles")
    master = psutil.Process(forkq.pid)
    wait_until(lambda: "(quiet)" in title(master), what="the master's quiet title")
    behind = push_many(redis_server, "Quick", [[0.001]] * 3)
    door.touch()
    journal.wait("end", running)
    wait_until(lambda: leased(redis) == [], what="the acknowledgements")
    old = workers(forkq)
    old[0].kill()
    wait_until(lambda: len(workers(forkq)) == 2 and old[0] not in workers(forkq), what="a new one")
    wait_until(lambda: all("quiet" in title(c) for c in workers(forkq)), what="quiet titles")
    pass_time(0.3)
    assert waiting(redis) == behind
    assert forkq.status()["state"] == "quiet"
    forkq.signal(signal.SIGTSTP)
    assert forkq.stop() == 0
    assert waiting(redis) == behind
    assert len(journal.lines("begin")) == 2


def test_a_rolling_restart_of_a_quiet_tree_stays_quiet(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Only a stop ends the quiet state."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "1"], env=journal.env)
    forkq.signal(signal.SIGTSTP)
    wait_until(lambda: "quiet" in title(workers(forkq)[0]), what="its quiet")
    old = workers(forkq)[0]
    assert "the tree stays quiet" in forkq.run("restart", "--wait").stdout
    wait_until(lambda: not psutil.pid_exists(old.pid), what="the old child's end")
    jid = push(redis_server, "Quick", 0.001)
    pass_time(0.3)
    assert waiting(redis) == [jid]
    assert forkq.stop() == 0


def test_ttin_logs_every_stack_with_its_job(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """One line per thread of the app, with class and jid, never the arguments; the idle processors
    in one line, forkq's own threads in one. Nothing else happens."""
    args = ["-w", "2", "-c", "1", "--log-format", "json"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    door = journal.path.with_name("open-sesame")
    jids = push_many(redis_server, "Gate", [[str(door)]] * 2)
    journal.wait("begin", jids)
    forkq.signal(signal.SIGTTIN)
    for jid in jids:
        forkq.wait_log(f"Gate {jid}")
    own = wait_events(forkq, "forkq's own threads", 3)
    stacks = events(forkq, "stack")
    assert {line["job"] for line in stacks} == {f"Gate {jid}" for jid in jids}
    assert all(re.match(r'  File ".*jobs.py", line \d+, in gate', s["stack"]) for s in stacks)
    assert sum("_turn (" in line["calls"] for line in own) == 1  # the clock's
    assert not events(forkq, "idle processors")
    assert "sesame" not in forkq.log_text()
    door.touch()
    wait_settled(redis)
    assert forkq.stop() == 0


def test_hup_is_harmless(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """A closed terminal, or a logrotate that sends HUP, ends neither the master nor a child."""
    forkq = tree(redis_server, app=APP, args=["-c", "1"], env=journal.env)
    door = journal.path.with_name("open")
    jid = push(redis_server, "Gate", str(door))
    journal.wait("begin", [jid])
    before = forkq.children()
    os.killpg(forkq.pid, signal.SIGHUP)
    forkq.wait_log("hangup")
    door.touch()
    journal.wait("end", [jid])
    assert forkq.children() == before
    assert forkq.stop() == 0


def test_usr2_loads_new_code_under_load_and_loses_nothing(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """New children start first, the old ones end when their jobs have. No job is interrupted or
    repeated."""
    app = VERSIONED.format(version="one", more="")
    args = ["-w", "2", "-c", "2", "-t", "1", "--log-level", "info"]
    forkq = tree(redis_server, app=app, args=args, env=journal.env)
    jids = push_many(redis_server, "Versioned", [[0.004]] * 1200)
    wait_until(lambda: len(journal.lines("end")) > 100, what="100 jobs")
    old = forkq.children()
    deploy(forkq, VERSIONED.format(version="number-two", more=""))
    fewest = 2

    def restart_is_over() -> bool:
        nonlocal fewest
        jids.append(push(redis_server, "Versioned", 0.004))
        known = [c for c in forkq.status().get("children", []) if c["concurrency"]]
        fewest = min(fewest, sum(c["state"] == "running" for c in known) if known else fewest)
        return "every child is new" in forkq.log_text()

    wait_until(restart_is_over, what="the rolling restart", deadline=60)
    assert fewest == 2, "a new child must be ready before the old one goes"
    wait_settled(redis, deadline=20)
    assert journal.jids("end") == set(jids)
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert journal.jids("one")
    assert journal.jids("number-two")
    wait_until(lambda: len(forkq.children()) == 3, what="the old ones to go")
    assert not set(old) & set(forkq.children())
    assert not zombies(forkq)
    assert forkq.stop() == 0
    forkq.assert_gone()


def test_usr2_leaves_an_old_child_all_the_time_its_job_needs(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """It may be longer than the time-out. A TERM meanwhile stops old and new by one deadline."""
    forkq = tree(redis_server, app=APP, args=["-c", "1", "-t", "0.3"], env=journal.env)
    door = journal.path.with_name("open")
    first = push(redis_server, "Gate", str(door))
    journal.wait("begin", [first])
    (old,) = workers(forkq)
    forkq.signal(signal.SIGUSR2)
    wait_until(lambda: "retiring" in title(old), what="its retirement")
    second = push(redis_server, "Quick", 0.001)
    journal.wait("end", [second])
    pass_time(0.5)
    assert old.is_running()
    wait_until(lambda: leased(redis) == [first], what="the acknowledgement of the second")
    assert forkq.stop() == 0
    forkq.assert_gone(deadline=0.2)
    assert waiting(redis) == [first]


def test_usr2_with_code_that_cannot_boot_keeps_the_old_children(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """The log has the reason. A later rolling restart, with good code, works."""
    app = VERSIONED.format(version="one", more="")
    forkq = tree(redis_server, app=app, args=["-w", "2", "-c", "1"], env=journal.env)
    old = workers(forkq)
    deploy(forkq, VERSIONED.format(version="bad", more="raise RuntimeError('no such luck')"))
    forkq.wait_log("rolling restart called off.*no such luck")
    wait_until(lambda: workers(forkq) == old, what="the old children alone")
    jid = push(redis_server, "Versioned", 0)
    journal.wait("one", [jid])
    deploy(forkq, VERSIONED.format(version="number-three", more=""))
    forkq.wait_log("every child is new")
    wait_until(lambda: not set(old) & set(forkq.children()), what="the old ones to go")
    jid = push(redis_server, "Versioned", 0)
    journal.wait("number-three", [jid])
    assert forkq.stop() == 0


def test_a_storm_of_signals_does_no_harm(
    redis_server: Server, redis: Redis, tree: StartTree, journal: Journal
) -> None:
    """Handlers only enqueue: under hundreds of signals no job is lost or repeated."""
    args = ["-w", "2", "-c", "2", "--log-level", "error"]
    forkq = tree(redis_server, app=APP, args=args, env=journal.env)
    jids = push_many(redis_server, "Quick", [[0.002]] * 500)

    def storm() -> bool:
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE) * 10:
            forkq.signal(number)
        return len(journal.lines("end")) == 500

    wait_until(storm, deadline=30, every=0.05, what="the jobs' end")
    wait_settled(redis)
    assert journal.jids("end") == set(jids)
    assert all(len(runs) == 1 for runs in journal.runs().values())
    assert forkq.stop() == 0
    forkq.assert_gone()


def deploy(tree: ForkqTree, app: str) -> None:
    """Deploys new code, and sends USR2 to the master."""
    text = "\n".join(line.removeprefix("    ") for line in app.splitlines())
    (tree.cwd / "jobs.py").write_text(text)
    tree.signal(signal.SIGUSR2)
