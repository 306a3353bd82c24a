"""The master's children: forking them, hearing them, burying them, filling their places."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final

from ..config import Config
from ..exits import CLEAN
from ..pipe import Order
from ..recovery import Crash
from .handle import CLOCK, Child, Slot
from .oom import OomKills
from .rescue import Case, Rescue
from .signals import Signals
from .spawn import Spawner

_BOOT_ATTEMPTS: Final = 3
# Seconds until the next try when the system has no process or descriptor left.
_FORK_PAUSE: Final = 1.0
_OUT_OF_MEMORY: Final = "SIGKILL by the kernel: out of memory"


class Family:
    """``slots`` are the places to fill, ``children`` the living by pid (old ones that retire
    during a rolling restart are among them, but in no slot)."""

    def __init__(
        self,
        config: Config,
        rescue: Rescue,
        signals: Signals,
        ours: Callable[[], list[int]],
        log: Any,
    ) -> None:
        self.slots = list(_slots(config))
        self.children: dict[int, Child] = {}
        self._ours = ours
        self._deaths: list[tuple[Child, str]] = []
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
                try:
                    slot.child = self.fork(slot, quiet=quiet)
                except OSError as error:
                    slot.due = time.monotonic() + _FORK_PAUSE
                    self._log.error("cannot fork; trying again", child=slot.name, error=str(error))

    def fork(self, slot: Slot, *, quiet: bool = False) -> Child:
        """Forks a child for ``slot``, without putting it there. Raises OSError."""
        child = self._spawner.spawn(slot, quiet=quiet)
        self.children[child.pid] = child
        self._selector.register(child.report, EVENT_READ)
        if child.pidfd is not None:
            self._selector.register(child.pidfd, EVENT_READ)
        return child

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
    def busy(self) -> int:
        """How many jobs are performed now."""
        return sum(child.busy for child in self.children.values())

    @property
    def all_ready(self) -> bool:
        """Whether every place is filled with a child that has booted."""
        return all(slot.child is not None and slot.child.was_ready for slot in self.slots)

    @property
    def due(self) -> float | None:
        """When the next free place is to be filled (monotonic)."""
        return min((slot.due for slot in self.slots if slot.child is None), default=None)

    @property
    def hopeless(self) -> dict[str, Any] | None:
        """Which child cannot boot however often it is tried, and why; None if all can."""
        for slot in self.slots:
            if slot.boot_failures >= _BOOT_ATTEMPTS:
                return {"child": slot.name, "attempts": slot.boot_failures, "reason": slot.reason}
        return None

    def summary(self) -> str:
        """One line: how many children, how busy."""
        workers = [(c, c.slot.capsule) for c in self.children.values() if c.slot.capsule]
        places = sum(capsule.concurrency for _, capsule in workers)
        return f"{len(workers)} children [{self.busy} of {places} busy]"

    def _bury(self, child: Child, code: int, rss: int) -> None:
        """``code`` is the exit code, or minus the signal; ``rss`` the peak in KiB."""
        child.hear()  # its last words may have come since
        del self.children[child.pid]
        for fd in (child.report.fd, child.pidfd):
            self._ignore(fd)
        child.close()
        well = child.said_goodbye and code == CLEAN
        oom = code == -signal.SIGKILL and not child.frozen and self._oom.claim()
        how = _OUT_OF_MEMORY if oom else _how(code)
        if not well and not child.frozen:
            crash = None if child.said_goodbye else _crash(code, rss, oom=oom)
            self._rescue.take(
                Case(child.identity, child.slot.queues, crash, child.processed, child.failed)
            )
        if child.slot.child is child:
            child.slot.died(child, how)
        self._deaths.append((child, "" if well else how))

    def tell_deaths(self) -> None:
        """Logs who has died since. Apart from ``reap``, so that no line delays a rescue."""
        deaths, self._deaths = self._deaths, []
        for child, how in deaths:
            self._log_death(child, how)

    def _reap_strangers(self) -> None:
        """As PID 1 of a container we inherit what jobs have left behind; init would reap it."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, options)) is not None:
                if found.si_pid in self.children:
                    return  # ours, died just now: the next round buries it with honours
                os.waitpid(found.si_pid, 0)

    def _log_death(self, child: Child, how: str) -> None:
        """``how`` it died; nothing if it ended in good order."""
        if not how:
            self._log.info("child ended", child=child.name, pid=child.pid)
        elif child.frozen:
            self._log.info("child killed", child=child.name, pid=child.pid)
        elif child.said_goodbye:
            self._log.warning(
                "child ended, redis did not take its jobs or counts", child=child.name
            )
        elif child.reason:  # told whole when the last attempt has failed
            self._log.error("child cannot boot", child=child.name, attempt=child.slot.boot_failures)
        else:
            self._log.error("child died", child=child.name, pid=child.pid, how=how)

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
