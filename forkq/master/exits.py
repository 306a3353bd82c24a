"""How a child process ended: in words for the log, and as a crash record for its jobs."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..store.crash_record import Crash
from .child_handle import ChildHandle

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_OUT_OF_MEMORY: Final = "SIGKILL by the kernel: out of memory"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """What ``wait4`` returned. ``code`` is the exit code, or minus the signal; ``rss`` is the peak
    memory in KiB; ``oom``: the kernel killed the process because memory ran out."""

    code: int
    rss: int
    oom: bool = False

    @property
    def text(self) -> str:
        """Such as ``exit code 1`` or ``SIGSEGV``."""
        if self.oom:
            return _OUT_OF_MEMORY
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    @property
    def crash(self) -> Crash:
        """For the crash records of the child's jobs."""
        if self.code >= 0:
            return Crash(exit=self.code, rss=self.rss)
        return Crash(signal=-self.code, rss=self.rss, reason=_OUT_OF_MEMORY if self.oom else None)


@dataclass(frozen=True, slots=True)
class Death:
    """One child that the master has reaped. ``orderly``: it ended as it was told to.
    ``replaced``: its slot is empty, so another child follows it. ``tree_was_ready``: all slots
    had been filled with ready children before."""

    child: ChildHandle
    status: ExitStatus
    orderly: bool
    replaced: bool
    tree_was_ready: bool


def log_death(death: Death, log: FilteringBoundLogger) -> None:
    """Writes the one line about a child's end."""
    child = death.child
    if death.orderly:
        log.info("child ended", child=child.name, pid=child.pid)
    elif child.frozen and child.killed:
        log.info("child killed", child=child.name, pid=child.pid)
    elif child.frozen:
        log.warning("frozen child killed from outside; its jobs go back", child=child.name)
    elif child.exited_cleanly:
        log.warning("child ended, redis did not take its jobs or counts", child=child.name)
    elif death.replaced and death.tree_was_ready and not child.was_ready:
        _log_failed_boot(child, log)
    elif child.reason:  # the whole reason is logged when the last attempt has failed
        log.error("child cannot boot", child=child.name, attempt=child.slot.boot_failures)
    else:
        log.error("child died", child=child.name, pid=child.pid, how=death.status.text)


def _log_failed_boot(child: ChildHandle, log: FilteringBoundLogger) -> None:
    """Logs the first failed boot of a slot; the master tries on without a further line."""
    if child.slot.boot_failures == 1:
        log.error(
            "child cannot boot; trying again, the others go on",
            child=child.name,
            reason=child.slot.reason,
        )
