"""The restart of a running tree, from the request to the last new child.

=========  ===============================================  =====================================
state      ends when                                        the master then
=========  ===============================================  =====================================
trying     a canary has failed                              goes on with the old children
trying     the canaries have proved the new code            executes itself, and hands over; tries
                                                            again if a request came meanwhile
replacing  every slot has its new child                     retires what is left of the old tree
replacing  a new child dies before it is ready              goes on with the children that it has
=========  ===============================================  =====================================

Until the exec the old master is untouched. After it, the next program of the same process replaces
the children.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..runtime.pipe import Stop
from .canary import Canaries, is_canary
from .children import Children
from .handover import Fixed, MasterRecord, RestartReport, become, described
from .pidfile import Pidfile
from .relays import LeaderRelay
from .replacement import Replacement, Replacements
from .signals import Signals
from .slot import Slot
from .systemd import SystemdNotifier

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds between the end of one replacement and the next one, if no fact wakes the master.
_STEP: Final = 0.05
# Seconds that systemd waits at most for the next program, which may import the app.
_EXEC_LIMIT: Final = 300.0
_MASTER: Final = "master"


class Restart:
    """``hand_over`` executes the master's next program. It returns only if that cannot be done now:
    with the reason, or with "" if the master has something to do first."""

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
        """In the master's next program: replaces the children that it has adopted."""
        self.report, self.requested = record.restart, record.again
        self._round.begin()

    def advance(self, *, quiet: bool) -> None:
        """Takes the next step, if its time has come. ``quiet``: new children fetch nothing."""
        if self.report.state == "trying":
            self._watch_canaries(quiet)
        elif self.report.state == "replacing":
            self._replace()
        elif self.requested and self._children.were_ready:
            self._begin(quiet)

    def _begin(self, quiet: bool) -> None:
        self.requested = False
        self.report = RestartReport(time.monotonic(), "trying")
        self._log.info("rolling restart: trying the new code in a child of its own")
        try:
            self._canaries.begin(self._fixed, quiet=quiet)
        except OSError as error:
            self._roll_back(_MASTER, f"cannot fork: {error}")

    def _watch_canaries(self, quiet: bool) -> None:
        failed, proved = self._canaries.failed, self._canaries.have_proved
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
        self.report.state = "trying"
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
        self.report.state, self.report.reason = "rolled back", f"{who}: {reason}"
        self._log.error(
            "rolling restart called off: the new child died; the old ones go on",
            child=who,
            reason=reason,
        )


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
        self._waiting = [slot for slot in self._children.slots if slot.child is not None]
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
            if slot.child is not None:  # an empty slot gets a new child anyway
                self._replacements.end_pauses()  # the new code may boot
                self._current = self._replacements.begin(slot.child, "rolling restart")

    def _handle_outcome(self, ended: Replacement) -> None:
        self._current = None
        if ended.outcome == "called off":
            self._waiting = []
            self.reason = f"{ended.slot.name}: {ended.reason}"
            self._log.error(
                "rolling restart called off: the new child died; the old ones go on",
                child=ended.slot.name,
                reason=ended.reason,
            )


@dataclass(frozen=True, slots=True)
class Succession:
    """The master's exec: the process stays, with its pid, its children and its lock; the program is
    a new one (docs/decisions/013). The fields are what one program hands to the next."""

    fixed: Fixed
    pidfile: Pidfile
    children: Children
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
        """In the next program: adopts what the one before has left."""
        self.children.adopt(record.children)
        self.leader_relay.adopt(self.children.by_pid.get(record.leader))
        restart.take_over(record)
        self.notifier.back()

    def _record(self, restart: Restart, quiet: bool) -> MasterRecord:
        return MasterRecord(
            self.fixed,
            self.pidfile.descriptor(),
            described(self.children),
            self.leader_relay.leader_pid,
            quiet,
            restart.report,
            restart.requested,
        )
