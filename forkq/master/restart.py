"""New code in a running tree: the restart (USR2), from the request to the last new child, and the
reload (USR1).

=========  ===============================================  =====================================
state      ends when                                        the master then
=========  ===============================================  =====================================
trying     a canary has failed                              goes on with the old children
trying     the canaries have proved the new code            executes itself, and hands over; tries
                                                            again if a request came meanwhile
replacing  every slot has its new child                     retires what is left of the old tree
replacing  a new child dies before it is ready              goes on with the children that it has
=========  ===============================================  =====================================

*Canaries* are the first children with new code, one for each capsule. The master starts them by
exec, in fresh interpreters that read the configuration again, and watches them before it replaces
any other child. Until the master executes itself it is untouched. After that, the next program of
the same process replaces the children.

A reload tries nothing: the master replaces every child, as ``forkq start --reload`` asks it after
each save. It has not imported the app, so a new child loads the code that is there now. The old one
ends with its last job. A new child that cannot boot changes nothing but the log. This takes as long
as one import.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ..runtime.pipe import Stop
from . import code_watch
from .child_handle import ChildHandle
from .children import Children
from .handover import FORMAT, ChildRecord, Fixed, MasterRecord, RestartReport, become, record_of
from .pidfile import Pidfile
from .relays import LeaderRelay
from .replacement import Replacement, Replacements
from .signals import Signals
from .slot import Slot
from .systemd import SystemdNotifier
from .unresponsive import Silence

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds between the end of one replacement and the next one, if no fact wakes the master.
_STEP: Final = 0.05
# Seconds that systemd waits at most for the next program, which may import the app.
_EXEC_LIMIT: Final = 300.0
_CALLED_OFF: Final = "rolling restart called off: the new child died; the old ones go on"
_MASTER: Final = "master"
_SUFFIX: Final = ".canary"
# Seconds that each must live after it was ready.
_WATCH: Final = 2.0
# Seconds after which one is trusted although its first job still runs.
_LONGEST_WATCH: Final = 10.0
# Seconds between two looks at one that has lived long enough, but whose first job still runs.
_CHECK: Final = 0.1


class Restart:
    """``hand_over`` executes the master's next program. It returns only if that cannot be done now:
    with the reason, or with "" if the master has something to do first: then no other replacement
    begins until the exec."""

    def __init__(
        self,
        children: Children,
        replacements: Replacements,
        fixed: Fixed,
        hand_over: Callable[[], str],
        log: FilteringBoundLogger,
    ) -> None:
        self._children = children
        self._fixed = fixed
        self._hand_over = hand_over
        self._log = log
        self._replacements = replacements
        self._canaries = Canaries(children)
        self._round = RollingRestart(children, replacements, log)
        self.requested = False
        self.report = RestartReport()

    @property
    def under_way(self) -> bool:
        """From the request until every child is new, or the old ones go on."""
        return self.requested or self.report.state in ("trying", "replacing")

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do (monotonic)."""
        if self._round.under_way:
            return time.monotonic() + _STEP
        return self._canaries.due

    def request(self) -> bool:
        """Asks for a restart. False if one is under way: then another one follows it."""
        if self.under_way:
            if not self.requested:
                self._log.info("rolling restart: one is under way; another one follows it")
            self.requested = True
            return False
        self.requested = True
        return True

    def take_over(self, record: MasterRecord) -> None:
        """In the master's next program: replaces the children that it has inherited."""
        self.report, self.requested = record.restart, record.again
        self._round.begin()

    def advance(self, *, quiet: bool) -> None:
        """Takes the next step, if its time has come. ``quiet``: new children fetch nothing."""
        if self.report.state == "trying":
            self._watch_canaries(quiet)
        elif self.report.state == "replacing":
            self._replace()
        elif self.requested and self._children.slots.were_ready:
            self._begin(quiet)

    def _begin(self, quiet: bool) -> None:
        self.requested = self._replacements.paused = False
        self.report = RestartReport(time.monotonic(), "trying")
        self._log.info("rolling restart: trying the new code in a child of its own")
        try:
            self._canaries.begin(self._fixed, quiet=quiet)
        except OSError as error:
            self._roll_back(_MASTER, f"cannot fork: {error}")

    def _watch_canaries(self, quiet: bool) -> None:
        failed, proved = self._canaries.failed, self._canaries.look()
        if failed is not None:
            self._roll_back(*failed)
        elif proved and self.requested:
            self._canaries.retire()
            self._begin(quiet)  # the code that is there now may be newer than the canaries'
        elif proved:
            self._execute()

    def _execute(self) -> None:
        self.report.state = "replacing"
        reason = self._hand_over()  # the next program goes on with ``take_over``
        self.report.state, self._replacements.paused = "trying", not reason
        if reason:
            self._roll_back(_MASTER, reason)

    def _replace(self) -> None:
        self._round.advance()
        if self._round.under_way:
            return
        self._retire_leftovers()
        self.report.state = "rolled back" if self._round.reason else "done"
        self.report.reason = self._round.reason
        if not self._round.reason:
            self._log.info("rolling restart: every child is new")

    def _retire_leftovers(self) -> None:
        """The canaries, and the children of slots that the new configuration does not have."""
        for child in self._children:
            is_leftover = child.slot not in self._children.slots
            if is_leftover and (is_canary(child) or not self._round.reason):
                child.send(Stop(None))

    def _roll_back(self, who: str, reason: str) -> None:
        self._canaries.retire()
        self._replacements.paused = False
        self.report.state, self.report.reason = "rolled back", f"{who}: {reason}"
        self._log.error(_CALLED_OFF, child=who, reason=reason)


class RollingRestart:
    """Slot by slot the master replaces every child: under way from ``begin`` until the last slot
    has its new child. ``reason``: why it was called off before that; "" if it was not."""

    def __init__(
        self, children: Children, replacements: Replacements, log: FilteringBoundLogger
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._log = log
        self._waiting: list[Slot] = []
        self._current: Replacement | None = None
        self.reason = ""

    @property
    def under_way(self) -> bool:
        """Whether slots still wait for their new child."""
        return bool(self._waiting) or self._current is not None

    def begin(self) -> None:
        """Starts the replacement of every child that is in a slot now; a child that comes into an
        empty slot is new anyway."""
        self._log.info("rolling restart: new children first, old ones end in their own time")
        slots = self._children.slots
        self._waiting = [slot for slot in slots if slots.child(slot) is not None]
        self.reason = ""

    def advance(self) -> None:
        """Takes the next step, if its time has come."""
        if self._current is None:
            self._replace_next()
        elif self._current.outcome != "under way":
            self._handle_outcome(self._current)

    def _replace_next(self) -> None:
        while self._waiting and self._current is None:
            slot = self._waiting[0]
            if slot in self._replacements:
                return  # its new child may have older code: that one is replaced afterwards
            del self._waiting[0]
            child = self._children.slots.child(slot)
            if child is not None:  # an empty slot gets a new child anyway
                self._replacements.end_pauses()  # the new code may boot
                self._current = self._replacements.begin(child, "rolling restart")

    def _handle_outcome(self, ended: Replacement) -> None:
        self._current = None
        if ended.outcome == "called off":
            self._waiting = []
            self.reason = f"{ended.slot.name}: {ended.reason}"
            self._log.error(_CALLED_OFF, child=ended.slot.name, reason=ended.reason)


def is_canary(child: ChildHandle) -> bool:
    """Whether it is the canary of its capsule, by its name: that outlives the master's exec."""
    return child.name.endswith(_SUFFIX)


class Canaries:
    """Under watch from ``begin`` until ``retire``, or the next ``begin``."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._watched: list[_Canary] = []

    @property
    def due(self) -> float | None:
        """When ``look`` may find something else with no fact from a canary (monotonic)."""
        return min((one.due for one in self._watched if one.due is not None), default=None)

    def begin(self, fixed: Fixed, *, quiet: bool) -> None:
        """Starts them, with slots of their own beside the others. Raises OSError."""
        self._watched = []
        capsules = {
            slot.capsule.name: slot.capsule for slot in self._children.slots if slot.capsule
        }
        for name, capsule in capsules.items():
            slot = Slot(f"{name}{_SUFFIX}", capsule, on_trial=True)
            child = self._children.fork(slot, quiet=quiet, fresh=fixed)
            self._watched.append(_Canary(child))

    def retire(self) -> None:
        """Ends the watch, and each canary when its jobs have ended."""
        for one in self._watched:
            if one.child in self._children:
                one.child.send(Stop(None))
        self._watched = []

    @property
    def failed(self) -> tuple[str, str] | None:
        """The name of the first one that has failed, and why; None if there is none."""
        dead = [one for one in self._watched if one.child not in self._children]
        return next(((one.child.name, one.failure) for one in dead), None)

    def look(self) -> bool:
        """Notes what each has done since the last look. Returns whether each has lived long enough
        after it was ready, and has ended its first job if it has one."""
        if not self._watched or self.failed:
            return False
        for one in self._watched:
            one.look()
        return all(one.has_proved for one in self._watched)


class _Canary:
    """One of them."""

    def __init__(self, child: ChildHandle) -> None:
        self.child = child
        self._ready_at: float | None = None

    @property
    def due(self) -> float | None:
        if self._ready_at is None:
            return None
        return max(self._ready_at + _WATCH, time.monotonic() + _CHECK)

    def look(self) -> None:
        """Notes since when it is ready."""
        if self.child.was_ready and self._ready_at is None:
            self._ready_at = time.monotonic()

    @property
    def failure(self) -> str:
        """Why it has failed, if it is dead."""
        child = self.child
        if self._ready_at is None:
            return child.told.reason or f"it died with {child.how} before it was ready"
        how = "a job beyond its limit" if child.fail_overdue else child.how
        return f"it died with {how} {self._age():.1f} s after it was ready"

    @property
    def has_proved(self) -> bool:
        if self._ready_at is None:
            return False
        idle_or_done = self.child.beat.processed > 0 or not self.child.beat.busy
        return self._age() >= (_WATCH if idle_or_done else _LONGEST_WATCH)

    def _age(self) -> float:
        return time.monotonic() - (self._ready_at or 0.0)


class Reload:
    """``request`` is called at USR1, ``advance`` in each turn of the master's loop."""

    def __init__(
        self, children: Children, replacements: Replacements, log: FilteringBoundLogger
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._log = log
        self._changed_at = 0.0  # monotonic
        self._waiting: set[Slot] = set()

    def request(self) -> None:
        """The code has changed: every child that was forked before now is replaced once."""
        self._log.info("reload: the code has changed; each child is replaced")
        self._changed_at = time.monotonic()
        self._waiting = {slot for slot in self._children.slots if slot.capsule is not None}
        for slot in self._waiting:
            slot.boot_failures = 0  # the next failure is another one, and is logged

    def advance(self, *, quiet: bool) -> None:
        """Begins what can be begun. A replacement that is under way may have the older code, and a
        child that boots is replaced when it is ready."""
        if code_watch.keep_running():
            self._log.warning(
                "reload: the process that watched the code has ended; another one does"
            )
        for slot in list(self._waiting) if not quiet else ():
            child = self._children.slots.child(slot)
            if child is None:
                slot.due = 0.0
                self._waiting.discard(slot)
            elif child.born >= self._changed_at:
                self._waiting.discard(slot)
            elif child.was_ready and slot not in self._replacements:
                self._replacements.end_pauses()  # of a failure of the older code
                if self._replacements.begin(child, "reload"):
                    self._waiting.discard(slot)


class Succession(msgspec.Struct, frozen=True):
    """The master's exec: the process stays, with its pid, its children and its lock; the program is
    a new one (docs/decisions/013). The fields are what one program hands to the next."""

    fixed: Fixed
    pidfile: Pidfile
    children: Children
    silence: Silence
    leader_relay: LeaderRelay
    signals: Signals
    notifier: SystemdNotifier

    def execute(self, restart: Restart, *, quiet: bool) -> tuple[list[int], str]:
        """Executes the next program. Returns only if that failed: the signals that came before
        it, which must be obeyed first, or why it failed. Signals that come during the exec stay
        pending, for the next program."""
        numbers, reason = self.signals.block(), ""
        if not numbers:
            self.notifier.going_blind(_EXEC_LIMIT)
            reason = become(self._record(restart, quiet))
            self.notifier.back()
        self.signals.install()
        return numbers, reason

    def take_over(self, record: MasterRecord, restart: Restart) -> None:
        """In the next program: inherits what the one before has left."""
        self.children.inherit(record.children)
        for each in record.children:
            self.silence.inherit(self.children.by_pid[each.pid], each.silent_since)
        self.leader_relay.inherit(self.children.by_pid.get(record.leader))
        restart.take_over(record)
        self.notifier.back()

    def _record_of(self, child: ChildHandle) -> ChildRecord:
        return record_of(
            child,
            in_slot=self.children.slots.has(child),
            rescued=self.children.deaths.has_rescue(child),
            silent_since=self.silence.since(child),
        )

    def _record(self, restart: Restart, quiet: bool) -> MasterRecord:
        return MasterRecord(
            format=FORMAT,
            fixed=self.fixed,
            pidfile=self.pidfile.descriptor(),
            children=[self._record_of(child) for child in self.children],
            leader=self.leader_relay.leader_pid,
            quiet=quiet,
            restart=restart.report,
            again=restart.requested,
        )
