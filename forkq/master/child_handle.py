"""What the master knows of one child process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from ..errors import TimeLimit
from ..runtime.assignment import STACKS_SIGNAL
from ..runtime.deadlines import Overdue
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import (
    Beat,
    DumpStacks,
    Exiting,
    Fact,
    LeaseHeld,
    Order,
    PipeReader,
    Ready,
    Serves,
    Stop,
    SuspectsWait,
    Unbootable,
    send,
)
from ..runtime.shared_files import SharedFiles
from ..store.recovery import Recovered
from .slot import Slot


def _overdue_message(job: Overdue) -> str:
    place = f"; it was in {job.calls}" if job.calls else ""
    return f"the job went on beyond its hard_timeout, and was ended with its child{place}"


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


@dataclass(slots=True, eq=False)
class ChildHandle:
    """One child process. Its pid cannot be reused before ``Children.reap`` has reaped it.

    ``told``: what it has told. ``how`` it ended. ``frozen``: it is stopped for its removal;
    ``killed``: the master has killed it. ``rescued``: ``Rescue`` returns its leases;
    ``in_progress``: its jobs at its death, once the rescue has found them. ``fail_overdue``: it is
    removed because of its jobs that are beyond their deadlines. ``on_trial``: it tries new code, so
    its death says nothing of its jobs. ``runs_suspects``: it may have leases of a solo child, too.
    ``sole``: while it runs suspects, no other solo child of the tree does. ``stop_ordered_at``:
    when the master first told it to stop; ``drain_by``: when its jobs are interrupted then
    (monotonic). ``carries``: the counts of its slot (``Slot.ended``) that it sends; they go back to
    the slot if it dies before it is ready.
    """

    slot: Slot
    pid: int
    pidfd: int | None
    control: int
    report: PipeReader[Fact]
    files: SharedFiles
    identity: str
    born: float = field(default_factory=time.monotonic)
    told: Told = field(default_factory=Told)
    how: str = ""
    frozen: bool = False
    killed: bool = False
    rescued: bool = False
    stop_ordered_at: float | None = None
    on_trial: bool = False
    in_progress: list[str] | None = None
    runs_suspects: bool = False
    sole: bool = False
    fail_overdue: bool = False
    drain_by: float | None = None
    carries: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As in logs and process titles: ``default.0``."""
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
        """Its state and its counts, as it has told them last."""
        return self.told.beat

    @property
    def was_ready(self) -> bool:
        """Whether it has booted."""
        return self.told.ready_at is not None

    def read_facts(self) -> None:
        """Reads what the child has reported since the last call."""
        for fact in self.report.read():
            self.told.note(fact)

    def left_nothing(self, code: int) -> bool:
        """Whether the child has returned its leases and counts. The exit code alone does not prove
        it: any job can call ``exit``."""
        return self.told.exiting is not None and code == CLEAN

    def rescue_ended(self, recovered: Recovered) -> None:
        """Its jobs have gone back."""
        self.in_progress = [*(self.in_progress or ()), *recovered.in_progress]

    def failed_leases(self, *, suspects: bool = False) -> dict[int, TimeLimit]:
        """The leases, by sequence number, whose jobs have failed because they were overdue.
        ``suspects``: those of the suspects that this ordinary child runs, instead of its own."""
        if not self.fail_overdue:
            return {}
        failed = [job for job in self.files.overdue(time.monotonic()) if job.suspect == suspects]
        return {job.sequence: TimeLimit(_overdue_message(job)) for job in failed}

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
        if isinstance(order, Stop):
            if self.stop_ordered_at is None:
                self.stop_ordered_at = time.monotonic()
            if order.deadline is not None:
                self.drain_by = order.deadline
        return send(self.control, order)

    def dump_stacks(self) -> None:
        """Makes the child log its stacks."""
        self.send(DumpStacks())

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
