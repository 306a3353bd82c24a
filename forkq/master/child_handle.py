"""What the master knows of one child process."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..errors import TimeLimit
from ..runtime import deadlines, shared_files
from ..runtime.assignment import STACKS_SIGNAL
from ..runtime.deadlines import Overdue
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import (
    ClassesHeld,
    DumpStacks,
    Exiting,
    Fact,
    LeaseHeld,
    Order,
    PipeReader,
    Ready,
    Serves,
    State,
    Stop,
    SuspectsWait,
    Unbootable,
    send,
)
from ..store.recovery import Recovered
from .memory import Memory
from .slot import Slot

# A child's limits of jobs, age and memory are at least this part of those of the configuration.
_LEAST_PART: Final = 0.9


def _overdue_message(job: Overdue) -> str:
    place = f"; it was in {job.calls}" if job.calls else ""
    return f"the job went on beyond its hard_timeout, and was ended with its child{place}"


@dataclass(slots=True, eq=False)
class ChildHandle:
    """One child process. Its pid cannot be reused before ``Children.reap`` has reaped it.

    ``reason``: why it cannot boot; ``lasting``: the next one could not either. ``how`` it ended.
    ``told_queues``: those that it serves, on ``told_shard``, if they may be others than its
    slot's. ``rescued``: ``Rescue`` returns its
    leases. ``on_trial``: it tries new code, so its death says nothing of its jobs. ``crash_file``:
    where faulthandler writes; ``deadlines``: where it notes those of its jobs (deadlines.py).
    ``in_progress``: its jobs at its death, once the rescue has found them.
    ``suspected``: the capsules for which it, the clock, has found suspects; ``held_classes``: the
    classes that it has found held; None if it has not looked yet. ``runs_suspects``: it
    may have leases of a solo child, too. ``long_at``: when the suspect that it runs counts as one
    that runs for long (monotonic); 0 if it runs none. ``sole``: while it runs suspects, no other
    solo child of the tree does; ``wants_sole``: it has found a suspect that needs that.
    Monotonic times: ``pipe_closed_at``, when the child's end of the report pipe was closed;
    ``stop_ordered_at``, when the master first told it to stop; ``last_fact_at``, when its last
    fact arrived; ``silent_since``, the same moment for a child that the watchdog has found
    silent, else None; ``lease_held_until``, how long the clock holds the leader's lease;
    ``drain_by``, when the jobs of a child that retires are interrupted; ``memory_due``, when
    the master looks at its memory next; ``measured_at``, when it did last, with
    ``measuring_took`` processor seconds; ``redis_at``, when Redis last answered it.
    ``redis_lost``: why it has lost Redis, as far as it has noticed, "" if it has not;
    ``refused``: what Redis refuses to it, in words; ``gets_jobs``: that does not stop its jobs.
    ``cut_off_for``: for how many seconds Redis has answered others, but not this child; 0 if
    that is no matter (redis_contact.py). ``fail_overdue``: it is removed because of its jobs
    that are beyond their ``deadlines``. ``part_of_limits``: its own limits are this part of
    those of the configuration. ``begun``: which lease it had begun last at its last ``Beat``;
    ``leases``: how many it could not return, if it has told. ``reports``: it knows the order
    Report; ``reported_at``, when the last one was given that it has obeyed (fresh_counts.py).
    ``carries``: the counts of its slot (``Slot.ended``) that it sends; they go back to the slot if
    it dies before it is ready.
    """

    slot: Slot
    pid: int
    pidfd: int | None
    control: int
    report: PipeReader[Fact]
    identity: str
    born: float = field(default_factory=time.monotonic)
    state: State = "booting"
    was_ready: bool = False
    reason: str = ""
    lasting: bool = False
    how: str = ""
    told_queues: tuple[str, ...] = ()
    told_shard: str = ""
    busy: int = 0
    processed: int = 0
    failed: int = 0
    frozen: bool = False
    killed: bool = False
    rescued: bool = False
    exited_cleanly: bool = False
    begun: int = 0
    leases: int | None = None
    pipe_closed_at: float | None = None
    stop_ordered_at: float | None = None
    stacks_requested_at: float | None = None
    stacks_signalled: bool = False
    lease_held_until: float = 0.0
    on_trial: bool = False
    crash_file: int | None = None
    in_progress: list[str] | None = None
    suspected: tuple[str, ...] = ()
    held_classes: tuple[str, ...] | None = None
    runs_suspects: bool = False
    long_at: float = 0.0
    sole: bool = False
    wants_sole: bool = False
    last_fact_at: float = field(default_factory=time.monotonic)
    silent_since: float | None = None
    deadlines: int | None = None
    fail_overdue: bool = False
    ready_at: float = 0.0
    redis_at: float = 0.0
    redis_lost: str = ""
    refused: str = ""
    gets_jobs: bool = True
    reports: bool = False
    reported_at: float = 0.0
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
        return self.told_queues or self.slot.queues

    @property
    def shard(self) -> str:
        """Where these are; "" if the configuration has no shards."""
        return self.told_shard or self.slot.shard

    def read_facts(self) -> None:
        """Reads what the child has reported since the last call."""
        for fact in self.report.read():
            self.last_fact_at = time.monotonic()
            self._apply(fact)
        if self.report.eof and self.pipe_closed_at is None:
            self.pipe_closed_at = time.monotonic()

    def _apply(self, fact: Fact) -> None:
        if isinstance(fact, Ready):
            self.was_ready, self.state, self.ready_at = True, "running", time.monotonic()
            self.reports = fact.reports
        elif isinstance(fact, Unbootable):
            self.reason, self.lasting, self.was_ready = fact.reason, fact.lasting, False
        elif isinstance(fact, Exiting):
            self.exited_cleanly, self.leases = True, fact.leases
        elif isinstance(fact, Serves):
            self.told_queues += (fact.queue,)
            self.told_shard = fact.shard
        elif isinstance(fact, LeaseHeld):
            self.lease_held_until = fact.until
        elif isinstance(fact, SuspectsWait):
            self.suspected = fact.capsules
        elif isinstance(fact, ClassesHeld):
            self.held_classes = fact.names
        else:
            self.state = fact.state
            self.busy, self.processed, self.failed = fact.busy, fact.processed, fact.failed
            self.redis_at, self.redis_lost = fact.redis_at, fact.redis_lost
            self.begun, self.refused, self.gets_jobs = fact.begun, fact.refused, fact.gets_jobs
            self.reported_at, self.long_at = fact.asked_at, fact.long_at
            self.wants_sole = fact.wants_sole

    def left_nothing(self, code: int) -> bool:
        """Whether the child has returned its leases and counts. The exit code alone does not prove
        it: any job can call ``exit``."""
        return self.exited_cleanly and code == CLEAN

    def rescue_ended(self, recovered: Recovered) -> None:
        """Its jobs have gone back."""
        self.in_progress = [*(self.in_progress or ()), *recovered.in_progress]

    def crash_stack(self) -> str:
        """What faulthandler has written of the thread that crashed; "" if nothing."""
        return "" if self.crash_file is None else shared_files.stack_in(self.crash_file)

    @property
    def crashed_job(self) -> int | None:
        """The sequence number of the lease whose job ran in the thread that crashed; None if none
        did, or if it is unknown."""
        thread = None if self.crash_file is None else shared_files.thread_in(self.crash_file)
        if thread is None or self.deadlines is None:
            return None
        return deadlines.begun_in(self.deadlines, thread)

    @property
    def next_deadline(self) -> float | None:
        """When the next of its jobs is beyond its hard time limit (monotonic)."""
        if self.deadlines is None or self.frozen or self.killed:
            return None
        return deadlines.next_deadline(self.deadlines)

    def overdue(self, now: float) -> list[Overdue]:
        """Its jobs that go on beyond their hard time limits."""
        if self.deadlines is None or self.frozen or self.killed:
            return []
        return deadlines.overdue(self.deadlines, now)

    def failed_leases(self, *, suspects: bool = False) -> dict[int, TimeLimit]:
        """The leases, by sequence number, whose jobs have failed because they were overdue.
        ``suspects``: those of the suspects that this ordinary child runs, instead of its own."""
        if self.deadlines is None or not self.fail_overdue:
            return {}
        found = deadlines.overdue(self.deadlines, time.monotonic())
        failed = [job for job in found if job.suspect == suspects]
        return {job.sequence: TimeLimit(_overdue_message(job)) for job in failed}

    def run_times(self, *, suspects: bool = False) -> dict[int, float]:
        """For how many seconds the jobs of its leases, by sequence number, have run that it has
        begun last. ``suspects``: as in ``failed_leases``."""
        if self.deadlines is None:
            return {}
        return deadlines.run_times(self.deadlines, time.monotonic(), suspects=suspects)

    @property
    def running(self) -> int:
        """How many jobs it runs at least. A job that holds the interpreter's lock keeps the child
        from telling that it is ``busy``; which lease was begun last is known all the same."""
        return max(self.busy, int((self.last_begun or 0) > self.begun))

    @property
    def runs_for_long(self) -> bool:
        """Whether its suspect keeps no other one waiting any more: else a few that never end would
        keep all others waiting. One that holds the interpreter's lock may keep its child from
        telling when that is."""
        return 0.0 < self.long_at <= time.monotonic() or self.silent_since is not None

    @property
    def last_begun(self) -> int | None:
        """The highest sequence number of a lease whose job it has begun; None if that is unknown:
        a child of older code does not tell."""
        return None if self.deadlines is None else deadlines.last_begun(self.deadlines)

    def descriptors(self) -> Iterator[int]:
        """The master's descriptors for this child; children that are forked later close them."""
        yield self.control
        yield self.report.fd
        for fd in (self.pidfd, self.crash_file, self.deadlines):
            if fd is not None:
                yield fd

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
