"""Crash records: how a job's owner died, written into the job, and what becomes of the job.

Each job that was in progress in a dead child gets a crash record and is a suspect: it runs alone
from then on, until a run of it has ended. The death of a whole tree makes suspects only at the
second time. A crash counts against a job only if it happened in a solo child. When too many have
counted, the job runs no more. Called by recovery.py in the master and in the clock; no Redis.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import Crashed, ForkqError, InvalidJob, MalformedPayload
from ..features.effects import packed
from ..features.marked import effects
from ..units import plural
from ..wire.malformed import wrap_malformed
from ..wire.marks import (
    COUNTED_FOR,
    KEY,
    SUSPECT,
    counted,
    deaths_of_groups,
    deaths_of_trees,
    failure_in,
    is_suspect,
    mark_failed,
    marks_of,
)
from ..wire.options import MOST_CRASHES
from ..wire.payload import Payload, dumps, keys_at_end, keys_at_ends, loads_head
from ..wire.printable import class_and_jid, shown_name
from ..wire.times import has_failed, now, stamp_failure
from .held_classes import name_in
from .outage import growing_pause

if TYPE_CHECKING:
    from ..wire.keys import Keys

# How many crashes a job survives that were counted against it: this number of them ends it.
DEADLY_CRASHES: Final = 3
_MOST_RECORDS: Final = 10
# A job that may run again after each crash is due after a pause: 0.5 s after its first crash alone,
# then longer each time, up to some minutes. It waits in the schedule, so it holds up no other job.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 300.0
_LONGEST_SEQUENCE: Final = 20  # digits
# To be wrapped, a payload is decoded; the master and the clock decode no larger one. In bytes.
_LARGEST_WRAPPED: Final = 256 << 10
# How many deaths of whole trees make a job that was in progress in each a suspect.
_SUSPECT_TREES: Final = 2
# And how many deaths in which many jobs ran together, of which any may be the reason.
_SUSPECT_GROUPS: Final = 2
# Where recover.lua puts a job: to the head of its queue, to the head or the tail of the queue's
# suspects, or into the dead set. A number is when the job is due.
REQUEUE: Final = "requeue"
ISOLATE: Final = "isolate"
ISOLATE_LAST: Final = "isolate_last"
BURY: Final = "bury"


class ProcessDeath(msgspec.Struct, frozen=True):
    """How an owner died. ``rss`` is its peak memory in KiB; ``uptime`` in seconds; ``stack`` is the
    Python stack of the thread that crashed; ``jobs`` is how many jobs it had in progress;
    ``alone``: it was a solo child. In another child a job that has ended, or a thread of the app,
    may be the reason, even if one job only was in progress. ``of_tree``: its master died, too, or
    its host is lost. ``group``: how many ran together, of which any may be the reason; 0 if the
    death says of each that it may be. ``beside``: other jobs ran beside the suspect of a solo
    child, which an ordinary child was. ``ran``: for how many seconds the job had run; ``step``: the
    durable step that it did."""

    signal: int | None = None
    exit: int | None = None
    rss: int | None = None
    reason: str | None = None
    uptime: float | None = None
    stack: str | None = None
    jobs: int = 1
    alone: bool = False
    of_tree: bool = False
    group: int = 0
    beside: bool = False
    ran: float | None = None
    step: str | None = None

    @property
    def text(self) -> str:
        """The death in words: the reason, the signal or the exit code."""
        code = f"signal {self.signal}" if self.signal else f"exit code {self.exit}"
        return self.reason or code

    def record(self) -> Payload:
        """The crash record, as it stands in a payload: docs/wire.md, ``forkq``."""
        fields = {"signal": self.signal, "exit": self.exit, "rss": self.rss, "jobs": self.jobs}
        found = {"reason": self.reason, "uptime": self.uptime, "stack": self.stack}
        found["step"] = self.step
        found |= {"alone": self.alone, "tree": self.of_tree, "group": self.group}
        known = {key: value for key, value in found.items() if value}
        if self.ran is not None:
            known["ran"] = round(self.ran, 3)
        return {"at": now(), **fields, "host": socket.gethostname(), **known}


class Lease(msgspec.Struct, frozen=True):
    """A row of leases_of_owner.lua: ``how`` says what ``payload`` and ``end`` are; ``queue`` counts
    from 1."""

    queue: int
    name: bytes
    how: bytes
    payload: bytes
    end: bytes

    @property
    def sequence(self) -> int:
        """The sequence number of the lease, as its owner counts; 0 if another program made the
        lease."""
        digits = self.name.rpartition(b"/")[2]
        return int(digits) if digits.isdigit() and len(digits) < _LONGEST_SEQUENCE else 0

    @property
    def job(self) -> str:
        """Class and jid of the leased job, for people."""
        if self.how == b"whole":
            return class_and_jid(self.payload)
        return _class_and_jid_in_ends(self)

    @property
    def counted_as(self) -> str:
        """The class for which the death of its owner counts (held_classes.py); "" if that is not
        known."""
        if self.how == b"whole":
            try:
                return name_in(loads_head(self.payload))
            except MalformedPayload:
                return ""
        return name_in(keys_at_ends(self.payload, self.end, "wrapped", "class"))


class Move(msgspec.Struct, frozen=True):
    """What recover.lua does with one lease: it keeps ``keep`` bytes of the payload (see there), and
    puts ``text`` after them, in the place of what was ``read``: a payload that has changed since
    goes back as it is. ``buried``: the job that it buries, as far as its features need it."""

    lease: Lease
    verdict: str
    keep: int
    text: bytes
    read: bytes = b""
    buried: Payload | None = None

    def arguments(self, keys: Keys, names: list[str]) -> tuple[object, ...]:
        """The script's arguments for this lease, without the name. Adds the keys of its effects to
        ``names``, those of the call."""
        verdict = self.verdict
        if self.buried is not None:
            ended = packed(effects(keys, self.buried, "dead"), names, keys.totals("ends"))
            verdict = f"{verdict} {ended}".rstrip()
        return (self.lease.queue, self.lease.name, verdict, self.keep, self.text, self.read)

    @property
    def name(self) -> str:
        """Class and jid of the job that is moved, for people."""
        return self.lease.job


def unchanged(lease: Lease, where: str = REQUEUE) -> Move:
    """The move of a job that was not in progress, or of which the death says nothing."""
    end = lease.payload if lease.how == b"whole" else lease.end
    return Move(lease, where, *_kept_whole(end))


def spliced(lease: Lease, queue: str, crash: ProcessDeath) -> Move | None:
    """The move of a large job, whose payload stays in Redis: only its end is written, with the
    crash record. None if its end does not show where that belongs: then it must be read."""
    keep, end = _cut_end(lease)
    if end is None:
        return None
    where = _judge(end, _options_in_ends(lease), queue, crash)
    buried = None
    if where == BURY:
        named = keys_at_ends(lease.payload, lease.end, "jid", "class", "wrapped")
        buried = {**named, KEY: end.get(KEY)}
    return Move(lease, where, keep, b"," + dumps(end)[1:], lease.end[keep:], buried)


def _cut_end(lease: Lease) -> tuple[int, Payload | None]:
    """How many bytes of a large payload stay (see recover.lua), and the keys after them, of which
    ``forkq`` is the first; None instead of the keys if the end of the payload does not show it."""
    if lease.how == b"bare":
        return -1, {}
    found = keys_at_end(lease.end, b"forkq") if lease.how == b"ends" else None
    if found is None or lease.end[found[0] - 1 : found[0]] != b",":
        return 0, None
    at, keys = found
    return at - 1 - len(lease.end), keys


def _options_in_ends(lease: Lease) -> Payload:
    """The options of a large job that matter after a crash, if they stand in its two ends."""
    return keys_at_ends(lease.payload, lease.end, "crashes", "on_crash", "failed_at")


def _kept_whole(payload: bytes) -> tuple[int, bytes]:
    """How many bytes of an unchanged payload stay, and what follows them (see recover.lua)."""
    return -1, payload[-1:]


def _class_and_jid_in_ends(lease: Lease) -> str:
    """Class and jid of a large job, if they stand in its two ends."""
    found = keys_at_ends(lease.payload, lease.end, "class", "jid")
    return " ".join(shown_name(found.get(key, "?")) for key in ("class", "jid"))


def move_of(lease: Lease, payload: bytes, queue: str, crash: ProcessDeath) -> Move:
    """The move of a job that was in progress when its owner crashed."""
    where, keep, text = stamped(payload, queue, crash)
    buried = None
    if where == BURY:
        with suppress(MalformedPayload):
            buried = loads_head(payload)
    return Move(lease, where, keep, text, payload[keep:], buried)


def stamped(payload: bytes, queue: str, crash: ProcessDeath) -> tuple[str, int, bytes]:
    """What to do with a job that was in progress when its owner crashed: where it goes, how many
    bytes of it stay, and what follows them (see recover.lua)."""
    try:
        job = loads_head(payload)
        where = _judge(job, job, queue, crash)
        return where, 0, dumps(job)
    except (MalformedPayload, InvalidJob) as error:
        if not crash.alone:
            return ISOLATE, *_kept_whole(payload)
        return BURY, *_as_malformed(payload, queue, error)


def _as_malformed(payload: bytes, queue: str, error: ForkqError) -> tuple[int, bytes]:
    """The payload to bury of what is no job: a processor would have buried it, but died of it."""
    if len(payload) <= _LARGEST_WRAPPED and (text := wrap_malformed(payload, queue, error)):
        return 0, text
    return _kept_whole(payload)


def _judge(job: Payload, options: Payload, queue: str, crash: ProcessDeath) -> str:
    """Writes the crash into ``job``, and says where it goes. A job that must not run again goes to
    a solo child all the same, which settles it: only a child can call the app's death handlers. If
    that child dies too, the job is buried here."""
    marks = marks_of(job)
    budget, was_to_end = _budget(options, marks, crash), failure_in(marks) is not None
    crashes = _add(marks, crash, max(budget, _MOST_RECORDS))
    count = counted(crashes)
    if crash.alone and options.get("on_crash") == "requeue":
        job["queue"] = queue
        return str(now() + growing_pause(count - 1, _FIRST_PAUSE, _LONGEST_PAUSE))
    if not crash.alone:
        return ISOLATE if is_suspect(marks) else REQUEUE
    if count < budget:
        return ISOLATE_LAST
    times = f"{plural(count, 'time')} within {COUNTED_FOR / 3600:.0f} hours"
    error = Crashed(f"its process died {times} while this job ran alone, last by {crash.text}")
    if was_to_end:
        _write_error(job, options, queue, error)
        return BURY
    mark_failed(marks, error, crash.ran)
    return ISOLATE_LAST


def _add(marks: dict[str, Any], crash: ProcessDeath, most: int) -> list[Any]:
    """Adds the crash record, and makes the job a suspect, unless its whole tree died, or it ran
    together with others, and that says too little of it. Returns the records, the oldest first."""
    found = marks.get("crashes")
    crashes = [*(found if type(found) is list else ()), crash.record()][-most:]
    marks["crashes"] = crashes
    if crash.of_tree:
        is_suspect_now = deaths_of_trees(crashes) >= _SUSPECT_TREES
    else:
        is_suspect_now = not crash.group or deaths_of_groups(crashes) >= _SUSPECT_GROUPS
    if is_suspect_now:
        marks[SUSPECT] = True
    return crashes


def _budget(options: Payload, marks: Payload, crash: ProcessDeath) -> int:
    """How many crashes alone end the job: twice as many if whole trees died, of which it may be
    innocent."""
    found, crashes = options.get("crashes"), marks.get("crashes")
    budget = min(found, MOST_CRASHES) if type(found) is int and found > 0 else DEADLY_CRASHES
    of_trees = crash.of_tree or (type(crashes) is list and deaths_of_trees(crashes) > 0)
    return 2 * budget if of_trees else budget


def _write_error(job: Payload, options: Payload, queue: str, error: Crashed) -> None:
    job["queue"] = queue
    job["error_class"] = f"{Crashed.__module__}.{Crashed.__qualname__}"
    job["error_message"] = str(error)
    stamp_failure(job, again=has_failed(options))
