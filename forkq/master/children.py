"""The master's children: it forks them, reads their reports, reaps them and replaces them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Final

from ..config.config import Config
from ..runtime.pipe import Order
from .child_handle import ChildHandle
from .exits import Deaths
from .handover import ChildRecord, Fixed, revived
from .rescue import Rescue
from .signals import Signals
from .slot import Slot, Slots, slots_of
from .spawn import Spawner

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_FORK_PAUSE: Final = 1.0  # seconds until the next try when no process or descriptor is left


class Children:
    """``by_pid``: the processes that have not been reaped. ``slots``: which of them fill the slots;
    during a rolling restart some are in none. ``deaths``: what becomes of those that die."""

    def __init__(
        self,
        config: Config,
        rescue: Rescue,
        signals: Signals,
        own_descriptors: Callable[[], list[int]],
        log: FilteringBoundLogger,
    ) -> None:
        self.by_pid: dict[int, ChildHandle] = {}
        slots, never_gives_up = slots_of(config), config.development.reload
        self.slots = Slots(slots, config.boot_timeout, never_gives_up=never_gives_up)
        self.deaths = Deaths(self.slots, rescue, log)
        self._own_descriptors = own_descriptors
        self._log = log
        self._spawner = Spawner(config, self._descriptors, log)
        self._selector = DefaultSelector()
        self._selector.register(signals, EVENT_READ)

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(self.by_pid.values())

    def __contains__(self, child: ChildHandle) -> bool:
        """Whether it has not been reaped. Then its pid and descriptors may be another's."""
        return self.by_pid.get(child.pid) is child

    def wait(self, until: float) -> None:
        """Sleeps until ``until`` (monotonic), or until a signal, a fact or a death wakes it."""
        self._selector.select(max(0.0, until - time.monotonic()))

    def read_facts(self) -> None:
        """Reads what the children have reported."""
        for child in self:
            child.read_facts()
            if child.report.eof:
                self._unregister(child.report.fd)
        self.slots.note_ready(self._log)

    def reap(self) -> None:
        """Reaps the dead children: opens a rescue for their jobs, and empties their slots."""
        self.deaths.count_oom_kills()
        for child in list(self):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.read_facts()  # its last facts may have come since
                self.deaths.record(child, os.waitstatus_to_exitcode(status), usage.ru_maxrss)
                self._forget(child)
        if os.getpid() == 1:
            self._reap_orphans()

    def fill_slots(self, *, quiet: bool = False) -> None:
        """Forks a child for every empty slot that is due."""
        for slot in self.slots:
            if self.slots.child(slot) is None and time.monotonic() >= slot.due:
                self.fill(slot, quiet=quiet)

    def fill(self, slot: Slot, *, quiet: bool = False) -> None:
        """Forks a child for ``slot``. If the system refuses, the slot is due again later."""
        try:
            child = self.fork(slot, quiet=quiet)
        except OSError as error:
            slot.due = time.monotonic() + _FORK_PAUSE
            if not slot.fork_error:
                self._log.error("cannot fork; trying again", child=slot.name, error=str(error))
            slot.fork_error = str(error)
        else:
            slot.fork_error = ""
            self.slots.put(child)

    def fork(self, slot: Slot, *, quiet: bool = False, fresh: Fixed | None = None) -> ChildHandle:
        """Forks a child for ``slot``, without putting it there. Raises OSError. ``fresh``: it runs
        in a fresh interpreter, with the configuration read again and these values unchanged."""
        child = self._spawner.spawn(slot, quiet=quiet, fresh=fresh)
        self._add(child)
        return child

    def add(self, child: ChildHandle) -> None:
        """Takes a child that runs already, and fills its slot."""
        self._add(child)
        self.slots.put(child)

    def inherit(self, found: Iterable[ChildRecord]) -> None:
        """Takes over the children of the program that this master ran before."""
        slots = {slot.name: slot for slot in self.slots}
        for record in found:
            child = revived(record, slots)
            self._add(child)
            if record.in_slot:
                self.slots.put(child)
            if record.rescued:
                self.deaths.inherit(child)
        self.slots.were_ready = True

    def _add(self, child: ChildHandle) -> None:
        self.by_pid[child.pid] = child
        self._selector.register(child.report, EVENT_READ)
        if child.pidfd is not None:
            self._selector.register(child.pidfd, EVENT_READ)

    def send_all(self, order: Order) -> None:
        """Sends ``order`` to every child."""
        for child in self:
            child.send(order)

    def kill_all(self) -> None:
        """SIGKILL to every child."""
        for child in self:
            child.kill()

    def _forget(self, child: ChildHandle) -> None:
        del self.by_pid[child.pid]
        for fd in (child.report.fd, child.pidfd):
            self._unregister(fd)
        child.close()

    def _reap_orphans(self) -> None:
        """Reaps processes that jobs have left: as PID 1 of a container the master inherits them."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, options)) is not None:
                if found.si_pid in self.by_pid:
                    return  # a child that has just died: the next turn of the loop reaps it
                os.waitpid(found.si_pid, 0)

    def _unregister(self, fd: int | None) -> None:
        if fd is not None and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _descriptors(self) -> Iterator[int]:
        """What a new child must close: above all the other children's control pipes. While one
        process has them open, those children cannot see that the master is gone."""
        yield from self._own_descriptors()
        yield self._selector.fileno()
        for child in self:
            yield from child.descriptors()
