"""The master's view of its children: one slot per place to fill, one handle per process."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import psutil

from ..config.capsule import Capsule
from ..runtime.assignment import STACKS
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import (
    DumpStacks,
    Exiting,
    Fact,
    LeaseHeld,
    Order,
    Reader,
    Ready,
    State,
    Stop,
    Unbootable,
    send,
)

CLOCK: Final = "clock"
# A child that lived this long was well: its next death starts the backoff anew.
_WELL_AFTER: Final = 10.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_MOST_DOUBLINGS: Final = 10


@dataclass(slots=True, eq=False)
class Slot:
    """A place in the tree that is to be filled with a living child. No capsule: the clock's."""

    name: str
    capsule: Capsule | None
    child: ChildHandle | None = None
    boot_failures: int = 0
    fork_failed: bool = False
    early_deaths: int = 0
    respawns: int = 0
    due: float = 0.0
    reason: str = ""

    @property
    def queues(self) -> tuple[str, ...]:
        """Whose leases a child here may hold."""
        return self.capsule.queue_names if self.capsule else ()

    @property
    def degraded(self) -> bool:
        """Whether its last child could not boot, or none can be forked, and no other one is ready
        yet."""
        failed = self.boot_failures > 0 or self.fork_failed
        return failed and not (self.child is not None and self.child.was_ready)

    def died(self, child: ChildHandle, how: str) -> None:
        """Notes a death, and when the place may be filled again (monotonic)."""
        self.child = None
        self.reason = child.reason or f"it died with {how} before it was ready"
        lived = time.monotonic() - child.born
        if child.was_ready:
            self.boot_failures = 0
            self.early_deaths = 0 if lived >= _WELL_AFTER else self.early_deaths + 1
        else:
            self.boot_failures += not child.exited_cleanly  # else it was told to end
            self.early_deaths += 1
        self.respawns += 1
        self.due = time.monotonic() + self._pause()

    def _pause(self) -> float:
        """Nothing after a long life; else growing, with jitter."""
        if self.early_deaths == 0:
            return 0.0
        doublings = min(self.early_deaths - 1, _MOST_DOUBLINGS)  # 2.0 ** 1024 is an error
        ceiling = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**doublings)
        return ceiling * random.uniform(0.5, 1.0)


@dataclass(slots=True, eq=False)
class ChildHandle:
    """One child process. It stays unreaped until ``loop`` reaps it, so its pid cannot be reused.

    ``reason``: why it cannot boot. ``rescued``: its leases are in the care of ``Rescue``.
    ``left_at``: when its end of the report pipe was closed (monotonic). ``stop_told_at``: when it
    was first told to stop. ``heard_at`` (monotonic) is when its last fact arrived; ``silent_since``
    is that moment for a child that the watchdog calls silent, else None.
    """

    slot: Slot
    pid: int
    pidfd: int | None
    control: int
    report: Reader[Fact]
    identity: str
    born: float = field(default_factory=time.monotonic)
    state: State = "booting"
    was_ready: bool = False
    reason: str = ""
    busy: int = 0
    processed: int = 0
    failed: int = 0
    frozen: bool = False
    killed: bool = False
    rescued: bool = False
    exited_cleanly: bool = False
    left_at: float | None = None
    stop_told_at: float | None = None
    stacks_asked: bool = False
    leads_until: float = 0.0
    heard_at: float = field(default_factory=time.monotonic)
    silent_since: float | None = None

    @property
    def name(self) -> str:
        """As in logs and process titles: ``default.0``."""
        return self.slot.name

    def hear(self) -> None:
        """Takes in what the child reports."""
        for fact in self.report.read():
            self.heard_at = time.monotonic()
            if isinstance(fact, Ready):
                self.was_ready, self.state = True, "running"
            elif isinstance(fact, Unbootable):
                self.reason, self.was_ready = fact.reason, False
            elif isinstance(fact, Exiting):
                self.exited_cleanly = True
            elif isinstance(fact, LeaseHeld):
                self.leads_until = fact.until
            else:
                self.state = fact.state
                self.busy, self.processed, self.failed = fact.busy, fact.processed, fact.failed
        if self.report.eof and self.left_at is None:
            self.left_at = time.monotonic()

    def ended_well(self, code: int) -> bool:
        """Whether it has left nothing behind; ``code`` alone says nothing, any job can exit."""
        return self.exited_cleanly and code == CLEAN

    def descriptors(self) -> Iterator[int]:
        """Our ends, for the children that come after it to close."""
        yield self.control
        yield self.report.fd
        if self.pidfd is not None:
            yield self.pidfd

    def order(self, order: Order) -> None:
        """Tells the child. One that cannot be told is dying, and will be reaped."""
        if isinstance(order, Stop) and self.stop_told_at is None:
            self.stop_told_at = time.monotonic()
        send(self.control, order)

    def dump_stacks(self) -> None:
        """Has it log its stacks. One that does not obey orders, or not yet, is told by signal."""
        self.order(DumpStacks())
        if self.silent_since is not None or not self.was_ready:
            self.signal_stacks()

    def signal_stacks(self) -> None:
        """Has it write its stacks to standard error, whatever its interpreter does."""
        os.kill(self.pid, STACKS)

    def process_state(self) -> str:
        """As the kernel sees it: ``stopped``, ``running``, ``sleeping``...; "" if it has ended."""
        with suppress(psutil.Error):
            return str(psutil.Process(self.pid).status())
        return ""

    def freeze(self) -> None:
        """Stops it in its tracks, so that nothing it runs can finish or go on."""
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def has_halted(self) -> bool:
        """Whether a frozen child has really come to a halt (or has ended)."""
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def close(self) -> None:
        """Closes our ends, once it is dead."""
        for fd in self.descriptors():
            os.close(fd)
