"""Crash records: how a job's owner died, written into the job, and what becomes of the job.

A job whose owner crashed carries a crash record from then on, and is buried when it has too many:
a job that kills its process must not kill one process after the other for ever. Called by
recovery.py in the master and in the clock; no Redis.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..errors import Crashed, InvalidJob, MalformedPayload
from ..wire.payload import Payload, bounded, dumps, loads
from ..wire.printable import class_and_jid
from ..wire.times import now, seconds

DEADLY_CRASHES: Final = 3
_WINDOW: Final = 72 * 3600.0
# What recover.lua understands.
REQUEUE: Final = "requeue"
BURY: Final = "bury"
# The beginning of our own key where forkq wrote it: at the end of a large payload.
_KEY: Final = b',"forkq":{'
_CLASS: Final = rb'"class"\s*:\s*"([^"\\]{1,100})"'
_JID: Final = rb'"jid"\s*:\s*"([^"\\]{1,100})"'


@dataclass(frozen=True, slots=True)
class Crash:
    """How an owner died. ``rss`` is its peak memory in KiB."""

    signal: int | None = None
    exit: int | None = None
    rss: int | None = None
    reason: str | None = None

    def record(self) -> Payload:
        """As it stands in a payload: docs/wire.md, ``forkq``."""
        fields = {"signal": self.signal, "exit": self.exit, "rss": self.rss}
        reason = {"reason": self.reason} if self.reason else {}
        return {"at": now(), **fields, "host": socket.gethostname(), **reason}


@dataclass(frozen=True, slots=True)
class Lease:
    """A row of leases_of_owner.lua: ``how`` says what ``payload`` and ``end`` are; ``queue`` counts
    from 1."""

    queue: int
    name: bytes
    how: bytes
    payload: bytes
    end: bytes


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
        return class_and_jid(self.text) if self.keep == 0 else _class_and_jid_in_ends(self.lease)


def spliced(lease: Lease, crash: Crash) -> Move | None:
    """The move of a large job, whose payload stays in Redis: only its end is written, with the
    crash record. None if that cannot be done, or if the job is to be buried: that writes more."""
    keep, tail = _cut_crash_records(lease)
    if tail is None:
        return None
    crashes = _crashes(tail)
    crashes.append(crash.record())
    if _recent(crashes) >= DEADLY_CRASHES:
        return None
    return Move(lease, REQUEUE, keep, b"," + dumps(tail)[1:])


def _cut_crash_records(lease: Lease) -> tuple[int, Payload | None]:
    """How many bytes of a large payload stay (see recover.lua), and the ``forkq`` key after them;
    None instead of the key if the end of the payload does not show it."""
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
    """What to do with a job that was in flight when its owner crashed, and its new payload."""
    try:
        job = loads(payload)
        crashes = _crashes(job)
        crashes.append(crash.record())
        if _recent(crashes) < DEADLY_CRASHES:
            return REQUEUE, dumps(job)
        _condemn(job, queue, crash)
        return BURY, dumps(job)
    except (MalformedPayload, InvalidJob):
        return REQUEUE, payload  # a processor will find that it is no job, and bury it


def _crashes(job: Payload) -> list[Any]:
    """The list of crash records in ``job``. Other values in its place are replaced by a list."""
    if type(job.get("forkq")) is not dict:
        job["forkq"] = {}
    if type(job["forkq"].get("crashes")) is not list:
        job["forkq"]["crashes"] = []
    crashes: list[Any] = job["forkq"]["crashes"]
    return crashes


def _recent(crashes: list[Any]) -> int:
    stamps = [crash.get("at") for crash in crashes if type(crash) is dict]
    since = now() - _WINDOW
    return len([at for at in stamps if isinstance(at, int | float) and seconds(at) > since])


def _condemn(job: Payload, queue: str, crash: Crash) -> None:
    code = f"signal {crash.signal}" if crash.signal else f"exit code {crash.exit}"
    end = crash.reason or code
    job["queue"] = queue
    job["error_class"] = f"{Crashed.__module__}.{Crashed.__qualname__}"
    job["error_message"] = (
        f"its process died {DEADLY_CRASHES} times within {_WINDOW / 3600:.0f} hours while this "
        f"job ran, last by {end}"
    )
    job.setdefault("failed_at", now())
