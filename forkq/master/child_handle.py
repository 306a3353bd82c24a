"""What the master knows of one child process."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

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
from .memory import Memory
from .slot import Slot

# A child's limits of jobs, age and memory are at least this part of those of the configuration.
_LEAST_PART: Final = 0.9


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

    ``told``: what it has told. ``how`` it ended. ``rescued``: ``Rescue`` returns its
    leases. ``on_trial``: it tries new code, so its death says nothing of its jobs.
    ``in_progress``: its jobs at its death, once the rescue has found them.
    ``runs_suspects``: it
    may have leases of a solo child, too. ``sole``: while it runs suspects, no other
    solo child of the tree does.
    Monotonic times: ``pipe_closed_at``, when the child's end of the report pipe was closed;
    ``stop_ordered_at``, when the master first told it to stop;
    ``silent_since``, ``told.heard_at`` of a child that the watchdog has found
    silent, else None;
    ``drain_by``, when the jobs of a child that retires are interrupted; ``memory_due``, when
    the master looks at its memory next; ``measured_at``, when it did last, with
    ``measuring_took`` processor seconds.
    ``cut_off_for``: for how many seconds Redis has answered others, but not this child; 0 if
    that is no matter (redis_contact.py). ``fail_overdue``: it is removed because of its jobs
    that are beyond their deadlines. ``part_of_limits``: its own limits are this part of
    those of the configuration.
    ``carries``: the counts of its slot (``Slot.ended``) that it sends; they go back to the slot if
    it dies before it is ready.
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
    pipe_closed_at: float | None = None
    stop_ordered_at: float | None = None
    stacks_requested_at: float | None = None
    stacks_signalled: bool = False
    on_trial: bool = False
    in_progress: list[str] | None = None
    runs_suspects: bool = False
    sole: bool = False
    silent_since: float | None = None
    fail_overdue: bool = False
    cut_off_for: float = 0.0
    drain_by: float | None = None
    carries: dict[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    memory_due: float = 0.0
    measured_at: float = float("-inf")
    measuring_took: float = 0.0
    part_of_limits: float = field(default_factory=lambda: random.uniform(_LEAST_PART, 1.0))

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
        if self.report.eof and self.pipe_closed_at is None:
            self.pipe_closed_at = time.monotonic()

    def left_nothing(self, code: int) -> bool:
        """Whether the child has returned its leases and counts. The exit code alone does not prove
        it: any job can call ``exit``."""
        return self.told.exiting is not None and code == CLEAN

    def rescue_ended(self, recovered: Recovered) -> None:
        """Its jobs have gone back."""
        self.in_progress = [*(self.in_progress or ()), *recovered.in_progress]

    @property
    def next_deadline(self) -> float | None:
        """When the next of its jobs is beyond its hard time limit (monotonic)."""
        return None if self.frozen or self.killed else self.files.next_deadline

    def overdue(self, now: float) -> list[Overdue]:
        """Its jobs that go on beyond their hard time limits."""
        return [] if self.frozen or self.killed else self.files.overdue(now)

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

    @property
    def runs_for_long(self) -> bool:
        """Whether its suspect keeps no other one waiting any more: else a few that never end would
        keep all others waiting. One that holds the interpreter's lock may keep its child from
        telling when that is."""
        return 0.0 < self.beat.long_at <= time.monotonic() or self.silent_since is not None

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
        if isinstance(order, Stop) and self.stop_ordered_at is None:
            self.stop_ordered_at = time.monotonic()
        return send(self.control, order)

    def retire(self) -> None:
        """Another child has its slot: it ends when its jobs have, or at ``drain_timeout``. For a
        silent one ``kill_silent_after`` is the only limit."""
        capsule = self.slot.capsule if self.silent_since is None else None
        limit = capsule.recycling.drain_timeout if capsule else 0
        self.drain_by = time.monotonic() + limit if limit else None
        self.send(Stop(self.drain_by))

    def dump_stacks(self) -> None:
        """Makes the child log its stacks. A silent child gets a signal, too, because it may not
        read orders."""
        self.send(DumpStacks())
        if self.silent_since is not None:
            self.signal_stacks()

    def signal_stacks(self) -> None:
        """Makes the child write its stacks to standard error, even while its interpreter hangs.

        For a child that does not read its orders: faulthandler reads the stacks of other threads
        while those may go on, and about one in two thousand of such reads ended with SIGSEGV."""
        self.stacks_signalled = True
        os.kill(self.pid, STACKS_SIGNAL)

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


def pidfd_of(pid: int) -> int | None:
    """A descriptor that wakes the selector when the child dies; None where only SIGCHLD does."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
