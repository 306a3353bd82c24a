"""The master's care for its children, with plain processes in their place."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from forkq.config.config import Config
from forkq.master import inspection, stop
from forkq.master.child_handle import ChildHandle, Slot
from forkq.master.children import Children
from forkq.master.inspection import Inspection
from forkq.master.rescue import DeadChild, Rescue
from forkq.master.signals import Signals
from forkq.master.stop import StopSequence
from forkq.runtime.pipe import Exiting, Fact, Reader, Ready, facts, send
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import wait_until


class Cases:
    """Stands for the rescue, and writes down what it is given."""

    under_way = False

    def __init__(self) -> None:
        self.taken: list[DeadChild] = []

    def take(self, case: DeadChild) -> None:
        """Takes a case."""
        self.taken.append(case)

    def work(self) -> bool:
        """All cases are closed."""
        return True

    def prepare(self) -> None:
        """Connects."""

    def hurry(self, until: float) -> None:
        """Waits for nothing."""


class Home:
    """A family whose children are processes that sleep; ``reports`` are the pipes on which the test
    speaks for them."""

    def __init__(self, tmp_path: Path) -> None:
        config = Config(pidfile=tmp_path / "pid", state_dir=tmp_path)
        self.log, self.cases, self._signals = RecordedLog(), Cases(), Signals()
        self.reports: dict[int, int] = {}
        self.refusal: OSError | None = None
        rescue = cast("Rescue", self.cases)
        self.family = Children(config, rescue, self._signals, list, self.log)
        self.family._spawner.spawn = self._spawn  # type: ignore[method-assign]
        self.inspection = Inspection(self.family, 0, self.log)
        self.stopping = StopSequence(self.family, rescue, self.log)

    def _spawn(self, slot: Slot, *, quiet: bool = False) -> ChildHandle:
        if self.refusal is not None:
            raise self.refusal
        control, report = os.open(os.devnull, os.O_WRONLY), os.pipe()
        pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
        self.reports[pid] = report[1]
        return ChildHandle(
            slot=slot,
            pid=pid,
            pidfd=None,
            control=control,
            report=Reader[Fact](report[0], facts),
            identity=f"here:{pid}:0",
        )

    def boot(self) -> ChildHandle:
        """Fills the places; all children are ready. Returns the one that runs jobs."""
        self.family.fill()
        for pid in self.family.children:
            send(self.reports[pid], Ready(f"here:{pid}:0"))
        self.family.hear()
        child = self.family.slots[0].child
        assert child is not None
        return child

    def bury(self, child: ChildHandle) -> None:
        """Waits for a death that has happened."""

        def reaped() -> bool:
            self.family.reap()
            return child.pid not in self.family.children

        wait_until(reaped, what="the reaping")
        self.family.tell_deaths()

    def close(self) -> None:
        """Kills all that is left."""
        for child in list(self.family.children.values()):
            child.kill()
            self.bury(child)
        for fd in (*self.reports.values(), *self._signals.descriptors()):
            if fd >= 0:
                os.close(fd)
        self.family._selector.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.close()


def test_a_frozen_child_that_is_killed_before_its_requeue_is_a_case_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it has a line of its own; no crash is noted, since the stop had begun with it."""
    monkeypatch.setattr(stop, "GRACE", 0.0)
    child = home.boot()
    home.stopping.begin(0)
    home.stopping.enforce()  # connects
    home.stopping.enforce()
    assert child.frozen
    os.kill(child.pid, signal.SIGKILL)
    home.bury(child)
    home.stopping._frozen_at = 0.0  # the others had time to halt
    home.stopping.enforce()
    mine = [case for case in home.cases.taken if case.identity == child.identity]
    assert [case.crash for case in mine] == [None]
    assert "frozen child killed from outside; its jobs go back" in home.log.events()
    assert len(home.cases.taken) == 2, "the clock is one, too"


def test_a_child_that_dies_before_it_is_ready_leaves_no_crash_record(home: Home) -> None:
    home.family.fill()
    child = home.family.slots[0].child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    home.bury(child)
    assert [case.crash for case in home.cases.taken] == [None]


def test_a_child_that_closes_its_pipes_and_lives_is_killed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once: an end that is under way looks the same."""
    child = home.boot()
    os.close(home.reports[child.pid])
    home.reports[child.pid] = -1

    def unheard() -> bool:  # the other child closes its copy of the pipe as it is started
        home.family.hear()
        return child.left_at is not None

    wait_until(unheard, what="the end of its pipe")
    home.inspection.enforce()
    assert home.log.events() == []
    monkeypatch.setattr(inspection, "_END", 0.0)
    home.inspection.enforce()
    assert "a child has closed its pipes, but lives; killing it" in home.log.events()
    home.bury(child)
    [case] = home.cases.taken
    assert case.crash is not None


def test_a_child_that_is_killed_after_it_left_leaves_no_crash_record(home: Home) -> None:
    child = home.boot()
    send(home.reports[child.pid], Exiting())
    os.kill(child.pid, signal.SIGKILL)
    home.bury(child)
    assert [case.crash for case in home.cases.taken] == [None]


def test_a_system_without_a_process_left_is_told_once(home: Home) -> None:
    """The place is tried every second, and the tree is degraded."""
    child = home.boot()
    home.refusal = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    os.kill(child.pid, signal.SIGKILL)
    home.bury(child)
    for _ in range(3):
        home.family.slots[0].due = 0.0
        home.family.fill()
    assert home.log.events().count("cannot fork; trying again") == 1
    assert home.family.degraded == ["default.0"]
    assert home.family.boot_failure is None
    home.refusal = None
    home.family.slots[0].due = 0.0
    home.boot()
    assert home.family.degraded == []


def test_the_pause_between_tries_never_grows_beyond_its_ceiling(home: Home) -> None:
    """Nor is there a number of tries at which it cannot be computed."""
    slot = home.family.slots[0]
    slot.early_deaths = 5000
    assert 5.0 <= slot._pause() <= 10.0
