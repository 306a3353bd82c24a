"""What the master knows of one child process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import msgspec

from ..runtime.assignment import STACKS_SIGNAL
from ..runtime.pipe import (
    Beat,
    Exiting,
    Fact,
    LeaseHeld,
    Order,
    PipeReader,
    Ready,
    RunSuspects,
    Serves,
    Stop,
    SuspectsWait,
    Unbootable,
    send,
)
from ..runtime.shared_files import SharedFiles
from .slot import Slot


class Told(msgspec.Struct):
    """What a child has told its master: of each kind the last fact, and each ``Serves``.

    ``heard_at``: when the last fact arrived; ``ready_at``: when it was ready, None before. A clock
    tells until when it holds the leader's lease (``leads_until``), for which capsules ``suspects``
    wait, and which ``held_classes`` there are: None if it has not looked yet. All times are
    monotonic. It is a struct because it goes to the master's next program (handover.py)."""

    heard_at: float = msgspec.field(default_factory=time.monotonic)
    beat: Beat = Beat(0, "booting", 0, 0)
    ready_at: float | None = None
    unbootable: Unbootable | None = None
    exiting: Exiting | None = None
    serves: tuple[Serves, ...] = ()
    leads_until: float = 0.0
    suspects: tuple[str, ...] = ()
    held_classes: tuple[str, ...] | None = None

    def note(self, fact: Fact) -> None:
        """Keeps one fact that has just arrived."""
        self.heard_at = time.monotonic()
        if isinstance(fact, Beat):
            self.beat = fact
        elif isinstance(fact, Ready):
            self.ready_at = self.heard_at
            self.beat = msgspec.structs.replace(self.beat, state="running")
        elif isinstance(fact, Unbootable):
            self.unbootable, self.ready_at = fact, None
        elif isinstance(fact, Exiting):
            self.exiting = fact
        elif isinstance(fact, Serves):
            self.serves += (fact,)
        elif isinstance(fact, LeaseHeld):
            self.leads_until = fact.until
        elif isinstance(fact, SuspectsWait):
            self.suspects = fact.capsules
        else:
            self.held_classes = fact.names

    @property
    def reason(self) -> str:
        """Why the child cannot boot; "" if it has not told."""
        return self.unbootable.reason if self.unbootable else ""

    @property
    def lasting(self) -> bool:
        """Whether the next child could not boot either."""
        return self.unbootable is not None and self.unbootable.lasting


class Ordered(msgspec.Struct):
    """What the master has ordered a child, as far as it must know later: ``stop_at``, when it first
    told it to stop; ``drain_by``, when the jobs of the child are interrupted then (monotonic);
    ``runs_suspects``: the child may have leases of a solo child, too. A struct, as ``Told`` is."""

    stop_at: float | None = None
    drain_by: float | None = None
    runs_suspects: bool = False

    def note(self, order: Order) -> None:
        """Keeps one order that is sent now."""
        if isinstance(order, RunSuspects):
            self.runs_suspects |= order.on
        elif isinstance(order, Stop):
            self.stop_at = time.monotonic() if self.stop_at is None else self.stop_at
            self.drain_by = self.drain_by if order.deadline is None else order.deadline


class ChildHandle(msgspec.Struct, eq=False):
    """One child process. Its pid cannot be reused before ``Children.reap`` has reaped it.

    ``told``: what it has told; ``ordered``: what it was told. ``how`` it ended. ``frozen``: it is
    stopped for its removal; ``killed``: the master has killed it. ``fail_overdue``: it is removed
    because of its jobs that are beyond their deadlines. ``carries``: the counts of its slot
    (``Slot.ended``) that it sends; they go back to the slot if it dies before it is ready.
    """

    slot: Slot
    pid: int
    pidfd: int | None
    control: int
    report: PipeReader[Fact]
    files: SharedFiles
    identity: str
    carries: dict[str, int] = msgspec.field(default_factory=dict)
    born: float = msgspec.field(default_factory=time.monotonic)
    told: Told = msgspec.field(default_factory=Told)
    ordered: Ordered = msgspec.field(default_factory=Ordered)
    how: str = ""
    frozen: bool = False
    killed: bool = False
    fail_overdue: bool = False

    @property
    def name(self) -> str:
        """The name of the child in logs and process titles: ``default.0``."""
        return self.slot.name

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues in which it may hold leases."""
        return tuple(each.queue for each in self.told.serves) or self.slot.queues

    @property
    def shard(self) -> str:
        """Where these are; "" if the configuration has no shards."""
        told = next((each.shard for each in self.told.serves), "")
        return told or self.slot.shard

    @property
    def beat(self) -> Beat:
        """The state and the counts that the child has told last."""
        return self.told.beat

    @property
    def was_ready(self) -> bool:
        """Whether it has booted."""
        return self.told.ready_at is not None

    def read_facts(self) -> None:
        """Reads what the child has reported since the last call."""
        for fact in self.report.read():
            self.told.note(fact)

    @property
    def running(self) -> int:
        """How many jobs it runs at least. A job that holds the interpreter's lock keeps the child
        from telling that it is ``busy``; which lease was begun last is known all the same."""
        return max(self.beat.busy, int((self.files.last_begun or 0) > self.beat.begun))

    def descriptors(self) -> Iterator[int]:
        """The master's descriptors for this child; children that are forked later close them."""
        yield self.control
        yield self.report.fd
        yield from self.files
        if self.pidfd is not None:
            yield self.pidfd

    def send(self, order: Order) -> bool:
        """Sends an order. Returns False to a child that is dying, and will be reaped, and to one
        that does not read its orders."""
        self.ordered.note(order)
        return send(self.control, order)

    def signal_stacks(self) -> None:
        """Makes the child write its stacks to standard error, even while its interpreter hangs.

        For a child that does not read its orders: faulthandler reads the stacks of other threads
        while those may go on, and about one in two thousand of such reads ended with SIGSEGV."""
        os.kill(self.pid, STACKS_SIGNAL)

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def close(self) -> None:
        """Closes the master's descriptors for a dead child."""
        for fd in self.descriptors():
            os.close(fd)


def pidfd_of(pid: int) -> int | None:
    """A descriptor that wakes the selector when the child dies; None where only SIGCHLD does."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
