"""What the master knows of its children: a slot for each child that must run, a handle for each
process."""

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
from ..runtime.assignment import STACKS_SIGNAL
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import (
    DumpStacks,
    Exiting,
    Fact,
    LeaseHeld,
    Order,
    Reader,
    Ready,
    Serves,
    State,
    Stop,
    Unbootable,
    send,
)
from ..wire.printable import printable

CLOCK: Final = "clock"
# A child that lived this long was healthy: the pauses after its death start anew.
_HEALTHY_AFTER: Final = 10.0
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_MOST_DOUBLINGS: Final = 10


@dataclass(slots=True, eq=False)
class Slot:
    """One child that must run. The master fills the slot again when its child has died.

    ``capsule`` is None for the clock. ``due`` (monotonic) is when the empty slot may be filled.
    ``reason``: why the last child did not boot. ``fork_error``: why the system refused the last
    fork; "" if it did not.
    """

    name: str
    capsule: Capsule | None
    child: ChildHandle | None = None
    boot_failures: int = 0
    fork_error: str = ""
    early_deaths: int = 0
    respawns: int = 0
    due: float = 0.0
    reason: str = ""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the configuration gives to this slot."""
        return self.capsule.queue_names if self.capsule else ()

    @property
    def ready(self) -> bool:
        """Whether the slot has a child that has booted."""
        return self.child is not None and self.child.was_ready

    @property
    def missing(self) -> str:
        """Why the slot has no ready child although the master has tried; "" if it has one, or if
        no try has failed."""
        if self.ready:
            return ""
        if self.fork_error:
            return f"{self.name} cannot be forked: {self.fork_error}"
        if self.boot_failures:
            return f"{self.name} cannot boot: {_last_line(self.reason)}"
        return ""

    def record_death(self, child: ChildHandle, how: str) -> None:
        """Empties the slot, and computes when it may be filled again."""
        self.child = None
        self.reason = child.reason or f"it died with {how} before it was ready"
        lived = time.monotonic() - child.born
        if child.was_ready:
            self.boot_failures = 0
            self.early_deaths = 0 if lived >= _HEALTHY_AFTER else self.early_deaths + 1
        else:
            self.boot_failures += not child.exited_cleanly  # else it was told to end
            self.early_deaths += 1
        self.respawns += 1
        self.due = time.monotonic() + self._pause()

    def _pause(self) -> float:
        """Zero after a long life; after short lives a growing pause with jitter."""
        if self.early_deaths == 0:
            return 0.0
        doublings = min(self.early_deaths - 1, _MOST_DOUBLINGS)  # 2.0 ** 1024 is an error
        ceiling = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**doublings)
        return ceiling * random.uniform(0.5, 1.0)


def _last_line(reason: str) -> str:
    """The error itself, without its traceback."""
    lines = reason.strip().splitlines()
    return printable(lines[-1].strip()) if lines else ""


@dataclass(slots=True, eq=False)
class ChildHandle:
    """One child process. Its pid cannot be reused before ``Children.reap`` has reaped it.

    ``reason``: why it cannot boot. ``how`` it ended. ``told_queues``: those that it serves, if they
    may be others than its slot's. ``rescued``: ``Rescue`` returns its leases. Monotonic times:
    ``pipe_closed_at``, when the child's end of the report pipe was closed; ``stop_ordered_at``,
    when the master first told it to stop; ``last_fact_at``, when its last fact arrived;
    ``silent_since``, the same moment for a child that the watchdog has found silent, else None;
    ``lease_held_until``, how long the clock holds the leader's lease.
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
    how: str = ""
    told_queues: tuple[str, ...] = ()
    busy: int = 0
    processed: int = 0
    failed: int = 0
    frozen: bool = False
    killed: bool = False
    rescued: bool = False
    exited_cleanly: bool = False
    pipe_closed_at: float | None = None
    stop_ordered_at: float | None = None
    stacks_requested_at: float | None = None
    lease_held_until: float = 0.0
    last_fact_at: float = field(default_factory=time.monotonic)
    silent_since: float | None = None

    @property
    def name(self) -> str:
        """As in logs and process titles: ``default.0``."""
        return self.slot.name

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues in which it may hold leases."""
        return self.told_queues or self.slot.queues

    def read_facts(self) -> None:
        """Reads what the child has reported since the last call."""
        for fact in self.report.read():
            self.last_fact_at = time.monotonic()
            self._apply(fact)
        if self.report.eof and self.pipe_closed_at is None:
            self.pipe_closed_at = time.monotonic()

    def _apply(self, fact: Fact) -> None:
        if isinstance(fact, Ready):
            self.was_ready, self.state = True, "running"
        elif isinstance(fact, Unbootable):
            self.reason, self.was_ready = fact.reason, False
        elif isinstance(fact, Exiting):
            self.exited_cleanly = True
        elif isinstance(fact, Serves):
            self.told_queues += (fact.queue,)
        elif isinstance(fact, LeaseHeld):
            self.lease_held_until = fact.until
        else:
            self.state = fact.state
            self.busy, self.processed, self.failed = fact.busy, fact.processed, fact.failed

    def left_nothing(self, code: int) -> bool:
        """Whether the child has returned its leases and counts. The exit code alone does not prove
        it: any job can call ``exit``."""
        return self.exited_cleanly and code == CLEAN

    def descriptors(self) -> Iterator[int]:
        """The master's descriptors for this child; children that are forked later close them."""
        yield self.control
        yield self.report.fd
        if self.pidfd is not None:
            yield self.pidfd

    def send(self, order: Order) -> None:
        """Sends an order. A child that cannot receive it is dying, and will be reaped."""
        if isinstance(order, Stop) and self.stop_ordered_at is None:
            self.stop_ordered_at = time.monotonic()
        send(self.control, order)

    def dump_stacks(self) -> None:
        """Makes the child log its stacks. A child that is silent or boots gets a signal, too,
        because it may not read orders."""
        self.send(DumpStacks())
        if self.silent_since is not None or not self.was_ready:
            self.signal_stacks()

    def signal_stacks(self) -> None:
        """Makes the child write its stacks to standard error, even while its interpreter hangs."""
        os.kill(self.pid, STACKS_SIGNAL)

    def process_state(self) -> str:
        """As the kernel sees it: ``stopped``, ``running``, ``sleeping``...; "" if it has ended."""
        with suppress(psutil.Error):
            return str(psutil.Process(self.pid).status())
        return ""

    def freeze(self) -> None:
        """SIGSTOP: none of its jobs can go on or finish."""
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def has_halted(self) -> bool:
        """Whether a frozen child has come to a halt (or has ended)."""
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def close(self) -> None:
        """Closes the master's descriptors for a dead child."""
        for fd in self.descriptors():
            os.close(fd)
