"""Two trees on one Redis: one child of all leads, also after another is stopped or killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import psutil
import pytest
from redis import Redis

from tests.process.shared import json_log, measured, push, workers
from tests.support.server import Server
from tests.support.tree import ForkqTree, StartTree
from tests.support.waiting import PATIENCE, wait_until, within

LEASE = "forkq:leader"
ELSEWHERE = "vm2:7:eeeeeeeeeeee another-boot/pid:[1]/4242/1.00"

# Each child tells every few milliseconds whether it leads, and once that it has become the leader.
APP = """
import os, threading, time
import forkq

_DIARY = os.open(os.environ["FORKQ_TEST_DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def record(what):
    os.write(_DIARY, f"{what} {os.getpid()} {time.monotonic():.6f}\\n".encode())

def watch():
    while True:
        asked = time.monotonic()
        if forkq.is_leader():
            record(f"leads {asked:.6f}")
        time.sleep(0.005)

@forkq.on("startup")
def begin():
    threading.Thread(target=watch, daemon=True).start()

@forkq.on("leader")
def elected():
    record("elected")

@forkq.job(name="Noop")
def noop():
    pass
"""
AT_ONCE = 7.0  # at least so many seconds of a lease are left when its holder dies
_ONE_TERM = 0.5  # seconds of silence after which a child's next word begins a new term


@dataclass(frozen=True, slots=True)
class Term:
    """A stretch of time in which one child surely led: from the answer to its first question to
    the last question. The child may stand still between a question and its answer."""

    pid: int
    begin: float
    end: float


class LeaderJournal:
    """What the children of all trees have recorded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.env = {"FORKQ_TEST_DIARY": str(path)}

    def recorded(self, what: str) -> list[tuple[int, float]]:
        """Pid and time, in order."""
        return [(int(line[-2]), float(line[-1])) for line in self._lines(what)]

    def _lines(self, what: str) -> list[list[str]]:
        text = self._path.read_text() if self._path.exists() else ""
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if line[0] == what]

    def leader(self) -> int | None:
        """Who leads now: has just said so."""
        recorded = self.recorded("leads")
        pid, at = recorded[-1] if recorded else (0, 0.0)
        return pid if time.monotonic() - at < 0.1 else None

    def wait_leader(self, candidates: list[psutil.Process], deadline: float = PATIENCE) -> int:
        """Waits until one of these leads and has heard of it, which is a moment later; returns
        its pid."""
        pids = {process.pid for process in candidates}

        def found() -> int:
            leader, elected = self.leader(), self.recorded("elected")
            return leader if leader in pids and elected and elected[-1][0] == leader else 0

        return wait_until(
            found,
            deadline=deadline,
            what=f"a leader of {pids}",
        )

    def terms(self) -> list[Term]:
        """Who led from when to when."""
        terms = []
        lines = self._lines("leads")
        for pid in {pid for _, _, pid, _ in lines}:
            spans = [(float(asked), float(at)) for _, asked, each, at in lines if each == pid]
            breaks = [i for i, (a, b) in enumerate(pairwise(spans), 1) if b[0] - a[1] > _ONE_TERM]
            for first, last in pairwise([0, *breaks, len(spans)]):
                terms.append(Term(int(pid), spans[first][1], spans[last - 1][0]))
        return sorted(terms, key=lambda term: term.begin)

    def assert_never_two(self) -> None:
        """No two children led at the same time."""
        for one, other in combinations(self.terms(), 2):
            assert one.pid == other.pid or one.end < other.begin or other.end < one.begin


@pytest.fixture
def leader_journal(tmp_path: Path) -> Iterator[LeaderJournal]:
    """Checks at the end of every test that there were never two leaders at a time."""
    leader_journal = LeaderJournal(tmp_path / "leader_journal")
    yield leader_journal
    leader_journal.assert_never_two()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trees; the first one leads."""

    leading: ForkqTree
    other: ForkqTree
    leader: int


@pytest.fixture
def pair(
    redis: Redis, redis_server: Server, tree: StartTree, leader_journal: LeaderJournal
) -> Pair:
    first = tree(redis_server, app=APP, args=["-w", "2"], env=leader_journal.env)
    leader = leader_journal.wait_leader(workers(first))
    second = tree(redis_server, app=APP, args=["-w", "2"], env=leader_journal.env)
    return Pair(first, second, leader)


def clock(tree: ForkqTree) -> psutil.Process:
    [found] = tree.children("forkq clock")
    return found


def test_one_child_of_two_trees_leads_and_its_handlers_run_once(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    wait_until(lambda: len(leader_journal.recorded("leads")) > 100, what="half a second of leading")
    assert {pid for pid, _ in leader_journal.recorded("leads")} == {pair.leader}
    assert [pid for pid, _ in leader_journal.recorded("elected")] == [pair.leader]


def test_one_line_of_the_log_says_who_leads(
    redis: Redis, redis_server: Server, tree: StartTree, leader_journal: LeaderJournal
) -> None:
    """The clock's, which holds the lease; `forkq.is_leader` is true in a child of its tree."""
    forkq = tree(redis_server, app=APP, args=["--log-format", "json"], env=leader_journal.env)
    leader_journal.wait_leader(workers(forkq))
    assert forkq.stop() == 0
    said = [line["event"] for line in json_log(forkq) if "lead" in line["event"]]
    assert said == ["this clock leads", "this clock no longer leads"]


def test_when_the_leading_child_is_killed_another_child_of_its_tree_leads(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    [replacement] = [child for child in workers(pair.leading) if child.pid != pair.leader]
    killed = time.monotonic()
    psutil.Process(pair.leader).kill()
    leader_journal.wait_leader([replacement], deadline=AT_ONCE)
    measured(
        f"led again {1000 * (leader_journal.terms()[-1].begin - killed):.0f} ms after the kill"
    )
    assert [pid for pid, _ in leader_journal.recorded("elected")] == [pair.leader, replacement.pid]


def test_when_the_leading_clock_is_killed_there_is_a_leader_again_at_once(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    """Its successor sees that it is dead, and does not wait for its lease to run out."""
    killed = time.monotonic()
    clock(pair.leading).kill()
    wait_until(lambda: len(leader_journal.recorded("elected")) == 2, what="a second election")
    took = leader_journal.recorded("elected")[1][1] - killed
    measured(f"led again {1000 * took:.0f} ms after the kill")
    assert took < within(AT_ONCE)


def test_when_the_leading_clock_gets_term_another_leads_at_once(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    clock(pair.leading).terminate()
    wait_until(
        lambda: len(leader_journal.recorded("elected")) == 2,
        deadline=AT_ONCE,
        what="a second election",
    )


def test_when_the_leading_tree_stops_the_other_leads_at_once(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    stopped = time.monotonic()
    assert pair.leading.stop() == 0
    leader_journal.wait_leader(workers(pair.other))
    took = leader_journal.recorded("elected")[-1][1] - stopped
    measured(f"led again {1000 * took:.0f} ms after the order to stop")
    assert took < within(AT_ONCE)


def test_when_the_leading_tree_goes_quiet_the_other_leads(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    pair.leading.signal(signal.SIGTSTP)
    leader_journal.wait_leader(workers(pair.other), deadline=AT_ONCE)


def test_when_the_whole_leading_tree_is_killed_the_other_leads_within_15_seconds(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    """On the same host the death is seen, and it is a matter of a second."""
    processes = [psutil.Process(pair.leading.pid), *pair.leading.children()]
    killed = time.monotonic()
    for process in processes:
        process.kill()
    leader_journal.wait_leader(workers(pair.other), deadline=15)
    measured(f"led again {leader_journal.recorded('elected')[-1][1] - killed:.2f} s after the kill")


def test_a_leader_that_hangs_is_replaced_within_15_seconds(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    """Frozen, it is not dead; nor is one whose host was cut off. Its child's time runs out."""
    hung = clock(pair.leading)
    began = time.monotonic()
    hung.suspend()
    try:
        leader_journal.wait_leader(workers(pair.other), deadline=15)
    finally:
        hung.resume()
    measured(
        f"led again {leader_journal.recorded('elected')[-1][1] - began:.2f} s after the freeze"
    )


def test_the_lease_of_a_host_that_vanished_is_taken_when_it_has_run_out(
    redis: Redis, redis_server: Server, tree: StartTree, leader_journal: LeaderJournal
) -> None:
    runs_out = time.monotonic() + 3
    redis.set(LEASE, ELSEWHERE, px=3000)
    forkq = tree(redis_server, app=APP, env=leader_journal.env)
    leader_journal.wait_leader(workers(forkq))
    (_, elected) = leader_journal.recorded("elected")[0]
    assert runs_out - 0.5 < elected


def test_a_rolling_restart_hands_the_leadership_on(
    pair: Pair, leader_journal: LeaderJournal
) -> None:
    """To whomever: the old children end, and there is a leader afterwards."""
    old = {child.pid for child in workers(pair.leading)}
    pair.leading.signal(signal.SIGUSR2)
    wait_until(lambda: not old & {child.pid for child in workers(pair.leading)},
               deadline=60, what="the new children")  # fmt: skip
    leader_journal.wait_leader([*workers(pair.leading), *workers(pair.other)])


NASTY = (
    APP
    + """
@forkq.on("leader")
def leave():
    raise SystemExit(3)

@forkq.on("leader")
def stay():
    record("stays")
    while True:
        time.sleep(0.1)
"""
)


def test_a_leader_handler_that_exits_or_hangs_does_not_disturb_the_child(
    redis: Redis, redis_server: Server, tree: StartTree, leader_journal: LeaderJournal
) -> None:
    """It runs in a thread of its own, and SystemExit ends that handler alone."""
    forkq = tree(redis_server, app=NASTY, args=["-t", "60"], env=leader_journal.env)
    (child,) = workers(forkq)
    wait_until(lambda: leader_journal.recorded("stays"), what="the handler that stays")
    push(redis_server, "Noop")
    wait_until(lambda: redis.get("stat:processed") == b"1", deadline=60, what="a job")
    assert workers(forkq) == [child]
    stopped = time.monotonic()
    assert forkq.stop() == 0
    assert time.monotonic() - stopped < 60, "no handler is waited for"
