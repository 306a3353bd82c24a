"""The master's children: it forks them, reads their reports, reaps them and replaces them."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, Final

from ..config.config import Config
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import Order
from ..store.crash_record import ProcessDeath
from ..store.recovery import Recovered
from ..wire.lease import solo_identity
from .child_handle import ChildHandle
from .exits import Death, DeathLog, ExitStatus, OomKills
from .handover import ChildRecord, Fixed, revived
from .rescue import DeadChild, Rescue
from .signals import Signals
from .slot import Slot, slots_of
from .spawn import Spawner

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_FORK_PAUSE: Final = 1.0  # seconds until the next try when no process or descriptor is left
_RESCUE_WAIT: Final = 1.0  # seconds that the line about a death waits for the rescue


class Children:
    """``slots``: the children that must run; ``solo_slots``: those for the suspects that wait;
    isolation.py fills them. ``by_pid``: the processes that have not been reaped; during a rolling
    restart some of them are in no slot. ``were_ready``: all slots have been filled with ready
    children at least once."""

    def __init__(
        self,
        config: Config,
        rescue: Rescue,
        signals: Signals,
        own_descriptors: Callable[[], list[int]],
        log: FilteringBoundLogger,
    ) -> None:
        self.slots = list(slots_of(config))
        self.solo_slots: list[Slot] = []
        self.by_pid: dict[int, ChildHandle] = {}
        self.were_ready = False
        self._rescued: set[str] = set()
        self._never_gives_up = config.reload
        self._boot_until = time.monotonic() + (config.boot_timeout or math.inf)
        self._own_descriptors = own_descriptors
        self._death_log = DeathLog(log)
        self._oom = OomKills()
        self._rescue = rescue
        self._log = log
        self._spawner = Spawner(config, self._descriptors, log)
        self._selector = DefaultSelector()
        self._selector.register(signals, EVENT_READ)

    def __iter__(self) -> Iterator[ChildHandle]:
        return iter(self.by_pid.values())

    def __contains__(self, child: ChildHandle) -> bool:
        """Whether it has not been reaped. Then its pid and descriptors may be another's."""
        return self.by_pid.get(child.pid) is child

    # What the loop does with all of them

    def wait(self, until: float) -> None:
        """Sleeps until ``until`` (monotonic), or until a signal, a fact or a death wakes it."""
        self._selector.select(max(0.0, until - time.monotonic()))

    def read_facts(self) -> None:
        """Reads what the children have reported."""
        for child in self:
            child.read_facts()
            if child.report.eof:
                self._unregister(child.report.fd)
        for slot in self.slots:
            if slot.ready and slot.boot_failures:
                self._log.info("child is ready again", child=slot.name, failed=slot.boot_failures)
                slot.boot_failures = 0
        self.were_ready = self.were_ready or self.all_ready

    def reap(self) -> None:
        """Reaps the dead children: opens a rescue for their jobs, and empties their slots."""
        self._oom.update()
        for child in list(self):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._handle_exit(child, os.waitstatus_to_exitcode(status), usage.ru_maxrss)
        if os.getpid() == 1:
            self._reap_orphans()

    def log_deaths(self, wait: float = _RESCUE_WAIT) -> None:
        """Logs which children were reaped, and which jobs they had in progress: the rescue finds
        that, for which a line waits a moment. Apart from ``reap``, so that no line delays a
        rescue."""
        self._death_log.write(wait)

    def fill_slots(self, *, quiet: bool = False) -> None:
        """Forks a child for every empty slot that is due."""
        for slot in self.slots:
            if slot.child is None and time.monotonic() >= slot.due:
                self.fill(slot, quiet=quiet)

    def fill(self, slot: Slot, *, quiet: bool = False) -> None:
        """Forks a child for ``slot``. If the system refuses, the slot is due again later."""
        try:
            slot.child = self.fork(slot, quiet=quiet)
        except OSError as error:
            slot.due = time.monotonic() + _FORK_PAUSE
            if not slot.fork_error:
                self._log.error("cannot fork; trying again", child=slot.name, error=str(error))
            slot.fork_error = str(error)
        else:
            slot.fork_error = ""

    def fork(self, slot: Slot, *, quiet: bool = False, fresh: Fixed | None = None) -> ChildHandle:
        """Forks a child for ``slot``, without putting it there. Raises OSError. ``fresh``: it runs
        in a fresh interpreter, with the configuration read again and these values unchanged."""
        child = self._spawner.spawn(slot, quiet=quiet, fresh=fresh)
        child.on_trial = fresh is not None
        self._add(child)
        return child

    def inherit(self, found: Iterable[ChildRecord]) -> None:
        """Takes over the children of the program that this master ran before."""
        slots = {slot.name: slot for slot in self.slots}
        for record in found:
            self._add(revived(record, slots))
        self.were_ready = True

    def _add(self, child: ChildHandle) -> None:
        self.by_pid[child.pid] = child
        self._selector.register(child.report, EVENT_READ)
        if child.pidfd is not None:
            self._selector.register(child.pidfd, EVENT_READ)

    def rescue(self, child: ChildHandle, crash: ProcessDeath | None, counted_as: str = "") -> bool:
        """Opens the rescue of a child that is dead or frozen. Returns False if one was opened for
        it before. ``counted_as``: how it has ended, for the totals."""
        if child.rescued:
            return False
        child.rescued = True
        failed = child.failed_leases() if crash is None else {}
        counts, begun = (child.beat.processed, child.beat.failed), child.files.last_begun
        report = partial(self._rescue_ended, child)
        what = (child.identity, child.queues, crash, *counts, failed, begun)
        exiting = child.told.exiting
        leases = child.running if exiting is None else exiting.leases
        where = (report, child.shard, leases, counted_as)
        dead = DeadChild(*what, child.files.crashed_job, *where, ran=child.files.run_times())
        self._rescue.add(dead)
        if child.runs_suspects:
            self._rescue_suspect(child, crash, dead)
        return True

    def _rescue_suspect(
        self, child: ChildHandle, crash: ProcessDeath | None, dead: DeadChild
    ) -> None:
        """Opens the rescue of the suspect that an ordinary child ran."""
        if crash is not None:  # beside other jobs its death says nothing of the suspect
            crash = replace(crash, beside=child.beat.busy > 1)
        failed = child.failed_leases(suspects=True) if crash is None else {}
        ran = child.files.run_times(suspects=True)
        alone = DeadChild(solo_identity(child.identity), child.queues, crash, errors=failed)
        self._rescue.add(replace(alone, report=dead.report, shard=dead.shard, ran=ran))

    def take_rescued(self) -> set[str]:
        """The capsules of which rescues have made suspects since the last call."""
        rescued, self._rescued = self._rescued, set()
        return rescued

    def _rescue_ended(self, child: ChildHandle, recovered: Recovered) -> None:
        child.rescue_ended(recovered)
        if recovered.in_progress and child.slot.capsule is not None:
            self._rescued.add(child.slot.capsule.name)

    def end_pauses(self) -> None:
        """Makes every empty slot due: there may be new code that boots."""
        for slot in self.slots:
            slot.due = 0.0

    def send_all(self, order: Order) -> None:
        """Sends ``order`` to every child."""
        for child in self:
            child.send(order)

    def kill_all(self) -> None:
        """SIGKILL to every child."""
        for child in self:
            child.kill()

    # What the loop asks

    @property
    def all_ready(self) -> bool:
        """Whether every slot has a child that has booted."""
        return all(slot.ready for slot in self.slots)

    @property
    def due(self) -> float | None:
        """When the next empty slot is due (monotonic)."""
        return min((slot.due for slot in self.slots if slot.child is None), default=None)

    @property
    def unfilled(self) -> list[str]:
        """The slots that stay empty although the master has tried: no child boots or is forked."""
        return [slot.name for slot in self._all_slots() if slot.missing]

    @property
    def missing(self) -> list[str]:
        """Why slots have no ready child although the master has tried, one line each."""
        return [slot.missing for slot in self._all_slots() if slot.missing]

    @property
    def boot_failure(self) -> dict[str, Any] | None:
        """Which child cannot boot, and why: one that could not at the next try either, or that has
        failed until ``boot_timeout``. None if there is none, or if the tree was ready before: such
        a tree goes on with the children that it has."""
        if self._goes_on():
            return None
        is_late = time.monotonic() >= self._boot_until
        for slot in self.slots:
            if slot.boot_failures and slot.child is None and (slot.lasting or is_late):
                return {"child": slot.name, "attempts": slot.boot_failures, "reason": slot.error}
        return None

    @property
    def cannot_ever_boot(self) -> bool:
        """Whether a child has failed to boot in a way that only a change of the app or of the
        configuration can mend."""
        return any(slot.lasting for slot in self.slots)

    def _goes_on(self) -> bool:
        """Whether a child that cannot boot leaves the tree running."""
        return self.were_ready or self._never_gives_up

    def _all_slots(self) -> list[Slot]:
        return [*self.slots, *self.solo_slots]

    # One child

    def _handle_exit(self, child: ChildHandle, code: int, rss: int) -> None:
        child.read_facts()  # its last facts may have come since
        oom = self._was_killed_by_oom(child, code)
        uptime = time.monotonic() - child.born
        status = ExitStatus(code, rss, uptime, oom, child.files.stack)
        child.how = status.text
        left_nothing, was_in_slot = child.left_nothing(code), child.slot.child is child
        orderly = left_nothing or (child.report.garbled and code == CLEAN)
        death = Death(child, status, orderly, was_in_slot, self._goes_on())
        # Before it is ready, it takes no job.
        is_counted = child.was_ready and not left_nothing and self._rescue_dead(death)
        if was_in_slot:
            child.slot.record_death(child, status.text)
        if not child.was_ready:
            child.slot.ended.update(child.carries)  # it has sent none of them
        self._forget(child)
        if death.counted_as and not is_counted:
            child.slot.ended[death.counted_as] += 1
        self._death_log.add(death)

    def _rescue_dead(self, death: Death) -> bool:
        """Opens the rescue of a child that was reaped. Returns whether that counts its end, too: at
        once, and not only when another child follows it."""
        child = death.child
        by_itself = child.told.exiting is None and not child.frozen
        is_crash = by_itself and not child.on_trial
        counted_as = "" if child.on_trial or not child.queues else death.counted_as
        crash = death.status.crash if is_crash else None
        return self.rescue(child, crash, counted_as) and bool(counted_as)

    def _was_killed_by_oom(self, child: ChildHandle, code: int) -> bool:
        """Whether the kernel killed it, not the master."""
        killed_by_master = child.frozen or child.killed
        return code == -signal.SIGKILL and not killed_by_master and self._oom.claim()

    def _forget(self, child: ChildHandle) -> None:
        del self.by_pid[child.pid]
        for fd in (child.report.fd, child.pidfd):
            self._unregister(fd)
        child.close()

    def _reap_orphans(self) -> None:
        """As PID 1 of a container the master inherits the processes that jobs have left."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, options)) is not None:
                if found.si_pid in self.by_pid:
                    return  # a child that has just died: the next turn of the loop reaps it
                os.waitpid(found.si_pid, 0)

    # Descriptors

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
