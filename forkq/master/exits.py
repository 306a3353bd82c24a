"""How child processes end: what becomes of the jobs of a dead child, and what the log says of its
death."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import TimeLimit
from ..runtime.deadlines import Overdue
from ..runtime.exit_codes import CLEAN
from ..runtime.memory import OWN, ROOT, control_groups
from ..store.crash_record import ProcessDeath
from ..store.recovery import Recovered
from ..units import format_size
from ..values import replace
from ..wire.lease import is_solo, solo_identity
from ..wire.printable import last_line, signal_name
from .child_handle import ChildHandle
from .rescue import DeadChild, Rescue
from .slot import Slots

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many jobs in progress the line about a crash names.
_MOST_JOBS: Final = 10
_HINT_ALONE: Final = (
    "it ran alone, so this crash counts: the third one ends the job (or what its `crashes` says)"
)
_HINT_GROUP: Final = (
    "any of them may be the reason: they run again together, and in small groups after a second "
    "such death within 72 hours"
)
_HINT_HALF: Final = (
    "any of them may be the reason: they run again in groups of half as many, and this counts "
    "against none"
)
_RESCUE_WAIT: Final = 1.0  # seconds that the line about a death waits for the rescue
_OUT_OF_MEMORY: Final = "SIGKILL by the kernel: out of memory"
# Seconds. A large process takes a while to die. A kill that no death has claimed by then hit
# another process, such as a job's own subprocess.
_CLAIM_WITHIN: Final = 10.0


class ExitStatus(msgspec.Struct, frozen=True):
    """What ``wait4`` returned. ``code`` is the exit code, or minus the signal; ``rss`` is the peak
    memory in KiB; ``uptime`` in seconds; ``oom``: the kernel killed the process because memory ran
    out; ``stack``: what faulthandler wrote of the thread that crashed."""

    code: int
    rss: int
    uptime: float
    oom: bool = False
    stack: str = ""

    @property
    def text(self) -> str:
        """The death in words, such as ``exit code 1`` or ``SIGSEGV``."""
        if self.oom:
            return _OUT_OF_MEMORY
        if self.code >= 0:
            return f"exit code {self.code}"
        return signal_name(-self.code)

    @property
    def crash(self) -> ProcessDeath:
        """What the crash records of the child's jobs say of its death."""
        reason, uptime, stack = _OUT_OF_MEMORY if self.oom else None, self.uptime, self.stack
        code = self.code if self.code >= 0 else None
        number = -self.code if self.code < 0 else None
        return ProcessDeath(number, code, self.rss, reason, uptime, stack)


class RescuedChild(msgspec.Struct):
    """The rescue of a child: ``in_progress`` are its jobs at its death; None while the rescue is
    open. ``group``: how many ran together, if any of them may be the reason."""

    in_progress: list[str] | None = None
    group: int = 0


class Death(msgspec.Struct, frozen=True):
    """One child that the master has reaped. ``orderly``: it ended as it was told to.
    ``replaced``: its slot is empty, so another child follows it. ``goes_on``: the tree does, even
    if no child boots any more. ``rescued``: its rescue, if it has one. ``at``: when it was reaped
    (monotonic)."""

    child: ChildHandle
    status: ExitStatus
    orderly: bool
    replaced: bool
    goes_on: bool
    rescued: RescuedChild | None = None
    at: float = msgspec.field(default_factory=time.monotonic)

    @property
    def is_rescue_open(self) -> bool:
        """Whether it is not known yet which jobs were in progress."""
        return self.rescued is not None and self.rescued.in_progress is None

    @property
    def counted_as(self) -> str:
        """``restart|REASON`` or ``crash|REASON``, for the totals in Redis. "" for a child that was
        replaced before: the replacement is counted."""
        child, status = self.child, self.status
        if self.orderly or child.told.exiting is not None:
            return "restart|stopped" if self.replaced else ""
        if child.frozen and child.killed:
            return "restart|removed"
        if not child.was_ready:
            return "crash|boot"
        if status.oom:
            return "crash|oom"
        return f"crash|{status.text}" if status.code < 0 else "crash|exit"


class DeathLog:
    """Writes the one line about each child's end. The traceback of an app that cannot be loaded is
    logged at the first attempt of the first child that shows it, and not again."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._shown = ""
        self._deaths: list[Death] = []

    def add(self, death: Death) -> None:
        """Keeps a death for ``write``."""
        self._deaths.append(death)

    def write(self, wait: float) -> None:
        """Logs the deaths; one whose rescue is open waits so many seconds for its jobs."""
        deaths, self._deaths = self._deaths, []
        for death in deaths:
            if death.is_rescue_open and time.monotonic() < death.at + wait:
                self._deaths.append(death)
            else:
                self._write(death)

    def _write(self, death: Death) -> None:
        child, log = death.child, self._log
        if death.orderly:
            log.info("child ended", child=child.name, pid=child.pid)
        elif child.killed and (child.frozen or _was_stopped_in_boot(child)):
            log.info("child killed", child=child.name, pid=child.pid)
        elif child.frozen:
            log.warning("frozen child killed from outside; its jobs go back", child=child.name)
        elif child.told.exiting is not None:
            log.warning("child ended, redis did not take its jobs or counts", child=child.name)
        elif death.replaced and death.goes_on and not child.was_ready:
            self._failed_boot(child)
        elif child.told.reason:
            attempt, reason = child.slot.boot_failures, self._reason(child.told.reason)
            over = child.told.lasting or not death.replaced
            event = "child cannot boot" if over else "child cannot boot; trying again"
            log.error(event, child=child.name, attempt=attempt, reason=reason)
        else:
            log.error("child died", child=child.name, pid=child.pid, **_certificate(death))

    def _failed_boot(self, child: ChildHandle) -> None:
        """Logs the first failed boot of a slot; the master tries on without a further line."""
        if child.slot.boot_failures == 1:
            reason = self._reason(child.slot.reason)
            self._log.error(
                "child cannot boot; trying again, the others go on", child=child.name, reason=reason
            )

    def _reason(self, reason: str) -> str:
        """Why the boot failed: the whole text once, then its last line."""
        if reason == self._shown:
            return last_line(reason)
        self._shown = reason
        return reason


def _was_stopped_in_boot(child: ChildHandle) -> bool:
    return child.ordered.stop_at is not None and not child.was_ready


def _certificate(death: Death) -> dict[str, object]:
    """The fields of a log line: how the child died, and with which jobs and memory."""
    status, jobs = death.status, death.rescued.in_progress if death.rescued else None
    found: dict[str, object] = {
        "how": status.text,
        "peak": format_size(status.rss * 1024),
        "uptime": round(status.uptime, 1),
    }
    if jobs:
        more = len(jobs) - _MOST_JOBS
        found["in_progress"] = ", ".join(jobs[:_MOST_JOBS]) + (f" and {more} more" * (more > 0))
        alone = is_solo(death.child.identity)
        what = _HINT_ALONE if alone else "each runs again alone"
        if len(jobs) > 1 and (alone or (death.rescued and death.rescued.group > 1)):
            what = _HINT_HALF if alone else _HINT_GROUP
        found["hint"] = f"{what}; `forkq find JID` shows its crashes"
    if status.stack:
        found["stack"] = status.stack
    return found


class Deaths:
    """What the master does about each child that it reaps or freezes: it has its jobs rescued,
    counts how it has ended, empties its slot, and logs it."""

    def __init__(self, slots: Slots, rescue: Rescue, log: FilteringBoundLogger) -> None:
        self._slots = slots
        self._rescue = rescue
        self._log = DeathLog(log)
        self._oom = OomKills()
        self._rescued: dict[ChildHandle, RescuedChild] = {}
        self._suspects_of: set[str] = set()

    def count_oom_kills(self) -> None:
        """Called in each turn before the dead are reaped."""
        self._oom.update()

    def record(self, child: ChildHandle, code: int, rss: int) -> None:
        """Records the end of a child that has just been reaped, and whose last facts are read.
        ``code``: its exit code, or minus the signal; ``rss``: its peak memory in KiB."""
        oom = self._was_killed_by_oom(child, code)
        uptime = time.monotonic() - child.born
        status = ExitStatus(code, rss, uptime, oom, child.files.stack)
        child.how = status.text
        left_nothing = child.told.exiting is not None and code == CLEAN
        orderly = left_nothing or (child.report.garbled and code == CLEAN)
        death = Death(child, status, orderly, self._slots.has(child), self._slots.goes_on)
        # Before it is ready, it takes no job.
        is_counted = child.was_ready and not left_nothing and self._rescue_dead(death)
        self._slots.empty(child, status.text)
        if not child.was_ready:
            child.slot.ended.update(child.carries)  # it has sent none of them
        if death.counted_as and not is_counted:
            child.slot.ended[death.counted_as] += 1
        self._log.add(replace(death, rescued=self._rescued.pop(child, None)))

    def log(self, wait: float = _RESCUE_WAIT) -> None:
        """Logs which children were reaped, and which jobs they had in progress: the rescue finds
        that, for which a line waits a moment. Apart from ``record``, so that no line delays a
        rescue."""
        self._log.write(wait)

    def rescue(self, child: ChildHandle, crash: ProcessDeath | None, counted_as: str = "") -> bool:
        """Opens the rescue of a child that is dead or frozen. Returns False if one was opened for
        it before. ``counted_as``: how it has ended, for the totals."""
        if child in self._rescued:
            return False
        rescued = self._rescued[child] = RescuedChild(None if child.queues else [])
        told, exiting = child.told, child.told.exiting
        crash, begun = _of_units(child, crash)
        rescued.group = 0 if crash is None else crash.group
        dead = DeadChild(
            identity=child.identity,
            queues=child.queues,
            crash=crash,
            processed=told.beat.processed,
            failed=told.beat.failed,
            errors=_failed_leases(child, suspects=False) if crash is None else {},
            last_begun=child.files.last_begun,
            begun=begun,
            crashed=child.files.crashed_job,
            report=partial(self._note_rescue, child, rescued),
            shard=child.shard,
            leases=child.running if exiting is None else exiting.leases,
            counted_as=counted_as,
            ran=child.files.run_times(),
            steps=child.files.steps(),
        )
        self._rescue.add(dead)
        if child.ordered.runs_suspects:
            self._rescue_suspect(child, dead)
        return True

    def has_rescue(self, child: ChildHandle) -> bool:
        """Whether the rescue of a child that lives yet was opened."""
        return child in self._rescued

    def inherit(self, child: ChildHandle) -> None:
        """In the master's next program: the one before has rescued the child, which it has killed,
        but not reaped."""
        self._rescued[child] = RescuedChild([])

    def take_suspects(self) -> set[str]:
        """The capsules of which rescues have made suspects since the last call."""
        found, self._suspects_of = self._suspects_of, set()
        return found

    def _rescue_suspect(self, child: ChildHandle, dead: DeadChild) -> None:
        """Opens the rescue of the suspect that an ordinary child ran."""
        crash = dead.crash
        if crash is not None:  # beside other jobs its death says nothing of the suspect
            crash = replace(crash, beside=child.beat.busy > 1)
        alone = DeadChild(
            identity=solo_identity(child.identity),
            queues=dead.queues,
            crash=crash,
            errors=_failed_leases(child, suspects=True) if crash is None else {},
            report=dead.report,
            shard=dead.shard,
            ran=child.files.run_times(suspects=True),
            steps=child.files.steps(suspects=True),
        )
        self._rescue.add(alone)

    def _note_rescue(self, child: ChildHandle, rescued: RescuedChild, ended: Recovered) -> None:
        """Notes that the jobs of a dead child have gone back."""
        rescued.in_progress = [*(rescued.in_progress or ()), *ended.in_progress]
        rescued.group = len(rescued.in_progress) if rescued.group else 0
        makes_some = rescued.group <= 1 or is_solo(child.identity)
        if ended.in_progress and child.slot.capsule is not None and makes_some:
            self._suspects_of.add(child.slot.capsule.name)

    def _rescue_dead(self, death: Death) -> bool:
        """Opens the rescue of a child that was reaped. Returns whether that counts its end, too: at
        once, and not only when another child follows it."""
        child = death.child
        on_trial = child.slot.on_trial
        is_crash = child.told.exiting is None and not child.frozen and not on_trial
        counted_as = "" if on_trial or not child.queues else death.counted_as
        crash = death.status.crash if is_crash else None
        return self.rescue(child, crash, counted_as) and bool(counted_as)

    def _was_killed_by_oom(self, child: ChildHandle, code: int) -> bool:
        """Whether the kernel killed it, not the master."""
        killed_by_master = child.frozen or child.killed
        return code == -signal.SIGKILL and not killed_by_master and self._oom.claim()


def _of_units(
    child: ChildHandle, crash: ProcessDeath | None
) -> tuple[ProcessDeath | None, frozenset[int] | None]:
    """What the death of a child with an event loop says of its jobs, and the numbers of those of
    which it says it; None for these in another child.

    A child that has ended itself did so in one of its threads: the job whose step the loop did, and
    those of other threads, may be the reason, and no other. One that was killed, or in which a
    thread crashed that runs no job, says so little of each that many are a group."""
    begun = child.files.units_in_progress
    if begun is None or crash is None:
        return crash, begun
    at_work = child.files.units_at_work & begun
    knows_thread = crash.signal is None or child.files.crashed_job is not None
    if at_work and knows_thread:
        return replace(crash, beside=is_solo(child.identity) and len(begun) > 1), at_work
    # One that a solo child was about to begin may be the reason, too.
    return replace(crash, group=len(begun)), None if is_solo(child.identity) else begun


def _failed_leases(child: ChildHandle, *, suspects: bool) -> dict[int, TimeLimit]:
    """The leases, by sequence number, whose jobs have failed because they were overdue.
    ``suspects``: those of the suspects that this ordinary child runs, instead of its own."""
    if not child.fail_overdue:
        return {}
    failed = [job for job in child.files.overdue(time.monotonic()) if job.suspect == suspects]
    return {job.sequence: TimeLimit(_overdue_message(job)) for job in failed}


def _overdue_message(job: Overdue) -> str:
    place = f"; it was in {job.calls}" if job.calls else ""
    limit = "its cancellation" if job.cancelled else "its hard_timeout"
    if job.keeps_other:
        blocked = "the job blocked the event loop until another one had to be ended"
        return f"{blocked}, and was ended with its child{place}"
    return f"the job went on beyond {limit}, and was ended with its child{place}"


class OomKills:
    """Whether the kernel has killed a child because memory ran out. The counter of a control group
    includes the groups below it. It is the line ``oom_kill N`` of ``memory.events`` (version 2) or
    ``memory.oom_control`` (version 1). Call ``update`` often: an old kill must not be taken for the
    reason of a new death."""

    def __init__(self, counter: Path | None = None) -> None:
        self._counter = counter or _find_counter()
        self._count = self._read()
        self._unclaimed = 0
        self._counted_at = 0.0

    def update(self) -> None:
        """Reads how many kills were counted since the last call."""
        count = self._read()
        if count > self._count:
            self._unclaimed += count - self._count
            self._counted_at = time.monotonic()
        elif time.monotonic() - self._counted_at > _CLAIM_WITHIN:
            self._unclaimed = 0
        self._count = count

    def claim(self) -> bool:
        """Takes one of the kernel's kills as the cause of a death by SIGKILL: each explains one
        death. Returns False if there is none left."""
        self.update()
        found = self._unclaimed > 0
        self._unclaimed -= found
        return found

    def _read(self) -> int:
        """The count; 0 without a counter: not Linux, or no control group for memory."""
        if self._counter is None:
            return 0
        with suppress(OSError, ValueError):
            for line in self._counter.read_text().splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0


def _find_counter(own: Path = OWN, root: Path = ROOT) -> Path | None:
    """The file with the counter of this process's group."""
    with suppress(OSError):
        for version_2, mount, folder in control_groups("memory", own, root):
            name = "memory.events" if version_2 else "memory.oom_control"
            for candidate in (folder / name, mount / name):
                if candidate.exists():
                    return candidate
    return None
