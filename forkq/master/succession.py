"""The master's exec: the process stays, with its pid, its children and its lock; the program is a
new one (docs/decisions/013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .adoption import described
from .children import Children
from .handover import Fixed, MasterRecord, become
from .leader_relay import LeaderRelay
from .pidfile import Pidfile
from .restart import Restart
from .signals import Signals
from .systemd import SystemdNotifier

# Seconds that systemd waits at most for the next program, which may import the app.
_LIMIT: Final = 300.0


@dataclass(frozen=True, slots=True)
class Succession:
    """What one program of the master hands to the next."""

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
            self.notifier.going_blind(_LIMIT)
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
