"""The master's children: forking them, hearing them, burying them, filling their places."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..config.config import Config
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import Order, Stop
from ..store.crash_record import Crash
from .child_handle import CLOCK, ChildHandle, Slot
from .oom import OomKills
from .rescue import DeadChild, Rescue
from .signals import Signals
from .spawn import Spawner

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_BOOT_ATTEMPTS: Final = 3
# Seconds until the next try when the system has no process or descriptor left.
_FORK_PAUSE: Final = 1.0
_OUT_OF_MEMORY: Final = "SIGKILL by the kernel: out of memory"


class _Death(NamedTuple):
    """A child that has died, ``how`` ("" if in good order), and whether its place is free now."""

    child: ChildHandle
    how: str
    in_place: bool


class Children:
    """``slots`` are the places to fill, ``children`` the living by pid (old ones that retire
    during a rolling restart are among them, but in no slot). ``was_ready``: all places were filled
    with ready children once."""

    def __init__(
        self,
        config: Config,
        rescue: Rescue,
        signals: Signals,
        ours: Callable[[], list[int]],
        log: FilteringBoundLogger,
    ) -> None:
        self.slots = list(_slots(config))
        self.children: dict[int, ChildHandle] = {}
        self.was_ready = False
        self._ours = ours
        self._deaths: list[_Death] = []
        self._oom = OomKills()
        self._rescue = rescue
        self._log = log
        self._spawner = Spawner(config, self._descriptors, log)
        self._selector = DefaultSelector()
        self._selector.register(signals, EVENT_READ)

    def wait(self, until: float) -> None:
        """Sleeps until ``until`` (monotonic), or a signal, a fact or a death."""
        self._selector.select(max(0.0, until - time.monotonic()))

    def hear(self) -> None:
        """Takes in what the children report."""
        for child in self.children.values():
            child.hear()
            if child.report.eof:
                self._ignore(child.report.fd)
            elif child.report.garbled:
                self._retire_garbled(child)
        for slot in self.slots:
            if slot.boot_failures and not slot.degraded:
                self._log.info("child is ready again", child=slot.name, failed=slot.boot_failures)
                slot.boot_failures = 0
        self.was_ready = self.was_ready or self.all_ready

    def reap(self) -> None:
        """Buries the dead: their jobs are rescued, their places are free."""
        self._oom.look()
        for child in list(self.children.values()):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._bury(child, os.waitstatus_to_exitcode(status), usage.ru_maxrss)
        if os.getpid() == 1:
            self._reap_strangers()

    def fill(self, *, quiet: bool = False) -> None:
        """Forks a child for every free place whose time has come."""
        for slot in self.slots:
            if slot.child is None and time.monotonic() >= slot.due:
                self._fill(slot, quiet)

    def fork(self, slot: Slot, *, quiet: bool = False) -> ChildHandle:
        """Forks a child for ``slot``, without putting it there. Raises OSError."""
        child = self._spawner.spawn(slot, quiet=quiet)
        self.children[child.pid] = child
        self._selector.register(child.report, EVENT_READ)
        if child.pidfd is not None:
            self._selector.register(child.pidfd, EVENT_READ)
        return child

    def begin_generation(self) -> None:
        """Children forked from now on have newer code than those that live."""
        self._spawner.begin_generation()

    def rescue(self, child: ChildHandle, crash: Crash | None) -> None:
        """Has the jobs of ``child``, which is dead or frozen, given back; once."""
        if not child.rescued:
            child.rescued = True
            self._rescue.take(
                DeadChild(child.identity, child.slot.queues, crash, child.processed, child.failed)
            )

    def fill_now(self) -> None:
        """Ends all pauses: there may be new code that boots."""
        for slot in self.slots:
            slot.due = 0.0

    def order(self, order: Order) -> None:
        """Tells every child."""
        for child in self.children.values():
            child.order(order)

    def kill(self) -> None:
        """SIGKILL to every child."""
        for child in self.children.values():
            child.kill()

    @property
    def names(self) -> list[str]:
        """Of the living."""
        return [child.name for child in self.children.values()]

    @property
    def silent(self) -> list[str]:
        """The names of those that send nothing any more."""
        return [child.name for child in self.children.values() if child.silent_since is not None]

    @property
    def busy(self) -> int:
        """How many jobs are performed now."""
        return sum(child.busy for child in self.children.values())

    @property
    def due(self) -> float | None:
        """When the next free place is to be filled (monotonic)."""
        return min((slot.due for slot in self.slots if slot.child is None), default=None)

    @property
    def degraded(self) -> list[str]:
        """The places of a tree that was ready which stay empty, because their children cannot
        boot."""
        return [slot.name for slot in self.slots if self.was_ready and slot.degraded]

    @property
    def boot_failure(self) -> dict[str, Any] | None:
        """Which child cannot boot however often it is tried, and why; None if all can, or could:
        a tree that was ready goes on with the children that it has."""
        for slot in self.slots:
            if slot.boot_failures >= _BOOT_ATTEMPTS and not self.was_ready:
                return {"child": slot.name, "attempts": slot.boot_failures, "reason": slot.reason}
        return None

    def summary(self) -> str:
        """One line: how many children, how busy."""
        workers = [(c, c.slot.capsule) for c in self.children.values() if c.slot.capsule]
        places = sum(capsule.concurrency for _, capsule in workers)
        note = f", silent: {' '.join(self.silent)}" if self.silent else ""
        return f"{len(workers)} children [{self.busy} of {places} busy]{note}"

    def _fill(self, slot: Slot, quiet: bool) -> None:
        try:
            slot.child = self.fork(slot, quiet=quiet)
        except OSError as error:
            slot.due = time.monotonic() + _FORK_PAUSE
            if not slot.fork_failed:
                self._log.error("cannot fork; trying again", child=slot.name, error=str(error))
            slot.fork_failed = True
        else:
            slot.fork_failed = False

    def _bury(self, child: ChildHandle, code: int, rss: int) -> None:
        """``code`` is the exit code, or minus the signal; ``rss`` the peak in KiB."""
        child.hear()  # its last words may have come since
        del self.children[child.pid]
        for fd in (child.report.fd, child.pidfd):
            self._ignore(fd)
        child.close()
        oom = code == -signal.SIGKILL and not (child.frozen or child.killed) and self._oom.claim()
        how = _OUT_OF_MEMORY if oom else _how(code)
        well = child.ended_well(code)
        if not well:
            blameless = child.exited_cleanly or child.frozen or not child.was_ready
            self.rescue(child, None if blameless else _crash(code, rss, oom=oom))
        in_place = child.slot.child is child
        if in_place:
            child.slot.died(child, how)
        orderly = well or (child.report.garbled and code == CLEAN)
        self._deaths.append(_Death(child, "" if orderly else how, in_place))

    def tell_deaths(self) -> None:
        """Logs which children have died since. Apart from ``reap``, so that no line delays a
        rescue."""
        deaths, self._deaths = self._deaths, []
        for death in deaths:
            self._log_death(death.child, death.how, death.in_place)

    def _reap_strangers(self) -> None:
        """As PID 1 of a container we inherit what jobs have left behind; init would reap it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, options)) is not None:
                if found.si_pid in self.children:
                    return  # ours, died just now: the next round buries it with honours
                os.waitpid(found.si_pid, 0)

    def _log_death(self, child: ChildHandle, how: str, in_place: bool) -> None:
        """``how`` it died; nothing if it ended in good order."""
        if not how:
            self._log.info("child ended", child=child.name, pid=child.pid)
        elif child.frozen and child.killed:
            self._log.info("child killed", child=child.name, pid=child.pid)
        elif child.frozen:
            self._log.warning(
                "frozen child killed from outside; its jobs go back", child=child.name
            )
        elif child.exited_cleanly:
            self._log.warning(
                "child ended, redis did not take its jobs or counts", child=child.name
            )
        elif in_place and self.was_ready and not child.was_ready:
            self._log_failed_boot(child.slot)
        elif child.reason:  # told whole when the last attempt has failed
            self._log.error("child cannot boot", child=child.name, attempt=child.slot.boot_failures)
        else:
            self._log.error("child died", child=child.name, pid=child.pid, how=how)

    def _log_failed_boot(self, slot: Slot) -> None:
        """One line, however often it is tried."""
        if slot.boot_failures == 1:
            self._log.error(
                "child cannot boot; trying again, the others go on",
                child=slot.name,
                reason=slot.reason,
            )

    @property
    def all_ready(self) -> bool:
        """Whether every place is filled with a child that has booted."""
        return all(slot.child is not None and slot.child.was_ready for slot in self.slots)

    def _retire_garbled(self, child: ChildHandle) -> None:
        """A job has written into the pipe: what the child reports is lost. It ends in its own time,
        and another one takes its place."""
        if child.slot.child is child and child.was_ready:
            self._log.error(
                "a job has written into its child's pipe; replacing the child",
                child=child.name,
                pid=child.pid,
            )
            child.order(Stop(None))
            child.state = "retiring"
            child.slot.died(child, "")

    def _ignore(self, fd: int | None) -> None:
        if fd is not None and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _descriptors(self) -> Iterator[int]:
        """What a new child must close: above all the other children's control pipes, or they would
        never see that we are gone."""
        yield from self._ours()
        yield self._selector.fileno()
        for child in self.children.values():
            yield from child.descriptors()


def _slots(config: Config) -> Iterator[Slot]:
    for capsule in config.capsules:
        for number in range(capsule.workers):
            yield Slot(f"{capsule.name}.{number}", capsule)
    yield Slot(CLOCK, None)


def _crash(code: int, rss: int, *, oom: bool) -> Crash:
    """How a child died, for its jobs' records."""
    if code >= 0:
        return Crash(exit=code, rss=rss)
    return Crash(signal=-code, rss=rss, reason=_OUT_OF_MEMORY if oom else None)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
