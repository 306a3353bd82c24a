"""Crash records: how a job's owner died, written into the job, and what becomes of the job.

Each job that was in progress in a dead process gets a crash record and is a suspect: it runs alone
from then on, until a run of it has ended. A crash counts against a job only if it happened in a
solo child. When too many have counted, the job runs no more. Called by recovery.py in the
master and in the clock; no Redis.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..errors import Crashed, InvalidJob, MalformedPayload
from ..wire.marks import (
    COUNTED_FOR,
    KEY,
    SUSPECT,
    counted,
    failure_in,
    is_suspect,
    mark_failed,
    marks_of,
)
from ..wire.payload import Payload, bounded, dumps, loads
from ..wire.printable import class_and_jid
from ..wire.times import now
from ..wire.validation import MOST_CRASHES
from .outage import growing_pause

# How many crashes a job survives that were counted against it: this number of them ends it.
DEADLY_CRASHES: Final = 3
_MOST_RECORDS: Final = 10
# A job that may run again after each crash is due after a pause: 0.5 s after its first crash alone,
# then longer each time, up to some minutes. It waits in the schedule, so it holds up no other job.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 300.0
_LONGEST_SEQUENCE: Final = 20  # digits
# What recover.lua understands; a number is when the job is due.
REQUEUE: Final = "requeue"
BURY: Final = "bury"
# The beginning of our own key where forkq wrote it: at the end of a large payload.
_KEY: Final = b',"forkq":{'
_CLASS: Final = rb'"class"\s*:\s*"([^"\\]{1,100})"'
_JID: Final = rb'"jid"\s*:\s*"([^"\\]{1,100})"'


@dataclass(frozen=True, slots=True)
class Crash:
    """How an owner died. ``rss`` is its peak memory in KiB; ``uptime`` in seconds; ``stack`` is the
    Python stack of the thread that crashed; ``jobs`` is how many jobs it had in progress;
    ``alone``: it was a solo child. In another child a job that has ended, or a thread of the app,
    may be the reason, even if one job only was in progress."""

    signal: int | None = None
    exit: int | None = None
    rss: int | None = None
    reason: str | None = None
    uptime: float | None = None
    stack: str | None = None
    jobs: int = 1
    alone: bool = False

    @property
    def text(self) -> str:
        """For people: the reason, the signal or the exit code."""
        code = f"signal {self.signal}" if self.signal else f"exit code {self.exit}"
        return self.reason or code

    def record(self) -> Payload:
        """As it stands in a payload: docs/wire.md, ``forkq``."""
        fields = {"signal": self.signal, "exit": self.exit, "rss": self.rss, "jobs": self.jobs}
        found = {"reason": self.reason, "uptime": self.uptime, "stack": self.stack}
        found |= {"alone": self.alone}
        known = {key: value for key, value in found.items() if value}
        return {"at": now(), **fields, "host": socket.gethostname(), **known}


@dataclass(frozen=True, slots=True)
class Lease:
    """A row of leases_of_owner.lua: ``how`` says what ``payload`` and ``end`` are; ``queue`` counts
    from 1."""

    queue: int
    name: bytes
    how: bytes
    payload: bytes
    end: bytes

    @property
    def sequence(self) -> int:
        """Which of its owner's leases it is, as it counts; 0 if another program made it."""
        digits = self.name.rpartition(b"/")[2]
        return int(digits) if digits.isdigit() and len(digits) < _LONGEST_SEQUENCE else 0

    @property
    def job(self) -> str:
        """Class and jid, for people."""
        if self.how == b"whole":
            return class_and_jid(self.payload)
        return _class_and_jid_in_ends(self)

    @property
    def must_be_read(self) -> bool:
        """Whether only the whole payload shows its marks."""
        return self.how == b"large" or (self.how == b"once" and _cut_end(self)[1] is None)

    @property
    def is_suspect(self) -> bool:
        """Whether the job runs alone. If its owner is no solo child, it has not begun there."""
        if self.how != b"whole":
            return is_suspect((_cut_end(self)[1] or {}).get(KEY))
        try:
            return is_suspect(loads(self.payload).get("forkq"))
        except MalformedPayload:
            return False


@dataclass(frozen=True, slots=True)
class Move:
    """What recover.lua does with one lease: it keeps ``keep`` bytes of the payload (see there), and
    puts ``text`` after them."""

    lease: Lease
    verdict: str
    keep: int
    text: bytes

    @property
    def arguments(self) -> tuple[object, ...]:
        """The script's arguments for this lease, without the name."""
        return (self.lease.queue, self.lease.name, self.verdict, self.keep, self.text)

    @property
    def name(self) -> str:
        """Class and jid, for people."""
        return self.lease.job


def unchanged(lease: Lease) -> Move:
    """The move of a job that has not begun."""
    if lease.how == b"whole":
        return Move(lease, REQUEUE, 0, lease.payload)
    return Move(lease, REQUEUE, -1, lease.end[-1:])


def spliced(lease: Lease, crash: Crash) -> Move | None:
    """The move of a large job, whose payload stays in Redis: only its end is written, with the
    crash record. None if that cannot be done, or if the crash counts: then all options matter."""
    keep, end = _cut_end(lease)
    if end is None or crash.alone:
        return None
    _add(marks_of(end), crash, _MOST_RECORDS)
    return Move(lease, REQUEUE, keep, b"," + dumps(end)[1:])


def _cut_end(lease: Lease) -> tuple[int, Payload | None]:
    """How many bytes of a large payload stay (see recover.lua), and the keys after them, of which
    ``forkq`` is the first; None instead of the keys if the end of the payload does not show it."""
    if lease.how == b"bare":
        return -1, {}
    at = lease.end.rfind(_KEY) if lease.how == b"once" else -1
    if at < 0:
        return 0, None
    try:
        found = msgspec.json.decode(bounded(b"{" + lease.end[at + 1 :]), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MalformedPayload):
        return 0, None
    return at - len(lease.end), found


def _class_and_jid_in_ends(lease: Lease) -> str:
    """Class and jid of a large job, if they stand in its two ends."""
    found = [re.search(pattern, lease.payload + lease.end) for pattern in (_CLASS, _JID)]
    return " ".join(match[1].decode("utf-8", "replace") if match else "?" for match in found)


def stamped(payload: bytes, queue: str, crash: Crash) -> tuple[str, bytes]:
    """What to do with a job that was in progress when its owner crashed, and its new payload."""
    try:
        job = loads(payload)
        verdict = _judge(job, queue, crash)
        return verdict, dumps(job)
    except (MalformedPayload, InvalidJob):
        return REQUEUE, payload  # a processor will find that it is no job, and bury it


def _judge(job: Payload, queue: str, crash: Crash) -> str:
    """Writes the crash into ``job``. A job that must not run again goes back all the same: the
    child that fetches it buries it, since only a child can call the app's death handlers. If that
    child dies too, the job is buried here."""
    marks, budget = marks_of(job), _budget(job)
    has_failed = failure_in(marks) is not None
    count = counted(_add(marks, crash, max(budget, _MOST_RECORDS)))
    if crash.alone and job.get("on_crash") == REQUEUE:
        job["queue"] = queue
        return str(now() + growing_pause(count - 1, _FIRST_PAUSE, _LONGEST_PAUSE))
    if not crash.alone or count < budget:
        return REQUEUE
    times = f"{budget} time{'s' * (budget > 1)} within {COUNTED_FOR / 3600:.0f} hours"
    error = Crashed(f"its process died {times} while this job ran alone, last by {crash.text}")
    if has_failed:
        _write_error(job, queue, error)
        return BURY
    del marks[SUSPECT]
    mark_failed(marks, error)
    return REQUEUE


def _add(marks: dict[str, Any], crash: Crash, most: int) -> list[Any]:
    """Adds the crash record, and makes the job a suspect. Returns the records, the oldest first."""
    found = marks.get("crashes")
    crashes = [*(found if type(found) is list else ()), crash.record()][-most:]
    marks["crashes"] = crashes
    marks[SUSPECT] = True
    return crashes


def _budget(job: Payload) -> int:
    found = job.get("crashes")
    return min(found, MOST_CRASHES) if type(found) is int and found > 0 else DEADLY_CRASHES


def _write_error(job: Payload, queue: str, error: Crashed) -> None:
    job["queue"] = queue
    job["error_class"] = f"{Crashed.__module__}.{Crashed.__qualname__}"
    job["error_message"] = str(error)
    job.setdefault("failed_at", now())
