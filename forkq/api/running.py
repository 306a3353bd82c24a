"""The jobs that run now, and those of which nothing has been heard for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from ..errors import MalformedPayload
from ..wire.lease import RECORD_TTL, Progress
from ..wire.payload import loads
from ..wire.times import seconds
from .processes import identities
from .query import ask, ask_leniently, keys, server_now, texts

# Milliseconds that a record has left when its owner has missed two heartbeats of ten seconds.
_FRESH: Final = (RECORD_TTL - 30) * 1000
_SECOND_LOOK: Final = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in the making; its arguments are other people's data, and not here.

    ``job`` is the name of its class, ``identity`` and ``thread`` who runs it, ``started_at`` epoch
    seconds (a Ruby process's by the clock of its host), ``elapsed`` seconds from then to now,
    ``progress`` what it last said of itself.

    ``heartbeat`` is False for a job in flight whose process sends none: it is stopped, it hangs, it
    has died, or it cannot reach Redis. Where nothing else is known of such a job, ``thread`` is
    empty, and ``started_at`` is when it was enqueued: it has begun since.
    """

    jid: str
    job: str
    queue: str
    identity: str
    thread: str
    started_at: float
    elapsed: float
    progress: Progress | None = None
    heartbeat: bool = True

    @property
    def silent_for(self) -> float:
        """Seconds since it last told of progress, or since it began."""
        if self.progress is None:
            return self.elapsed
        return max(0.0, self.elapsed - (self.progress.at - self.started_at))


class _Lease(NamedTuple):
    """One field of a queue's in-flight hash, and who holds it."""

    queue: str
    field: bytes
    owner: str


class _Work(msgspec.Struct):
    """What stands in IDENTITY:work for each thread. Sidekiq 6 writes the payload as an object."""

    queue: str
    payload: str | dict[str, Any]
    run_at: float
    progress: Progress | None = None


def running(longer_than: float | timedelta | None = None) -> list[RunningJob]:
    """What runs now, the longest first; only what has run for more than ``longer_than`` seconds.

    As of each process's last heartbeat; and every lease whose owner sends no heartbeat. Raises
    ServerUnavailable.
    """
    leases = _leases()
    owners = {lease.owner for lease in leases}
    names = sorted({*identities(), *owners})
    at = server_now()
    work = ask_leniently(*(("HGETALL", keys().work(name)) for name in names))
    jobs = [
        job
        for name, threads in zip(names, work, strict=True)
        for thread, raw in _pairs(threads)
        if (job := _running_job(name, thread, raw, at)) is not None
    ]
    jobs = _with_uncovered(jobs, leases, at)
    floor = _in_seconds(longer_than)
    return sorted((job for job in jobs if job.elapsed > floor), key=lambda job: -job.elapsed)


def stuck(minutes: float = 10) -> list[RunningJob]:
    """The running jobs that have told of no progress for ``minutes`` (nor begun since), and those
    without a heartbeat; those that are silent for longest first. A job that never tells of any
    counts from its beginning."""
    silent = [j for j in running() if not j.heartbeat or j.silent_for > minutes * 60]
    return sorted(silent, key=lambda job: -job.silent_for)


def _leases() -> list[_Lease]:
    """Every lease in flight, in all queues."""
    [names] = ask(("SMEMBERS", keys().queues))
    queues = texts(names)
    found = ask_leniently(*(("HKEYS", keys().inflight(queue)) for queue in queues))
    return [
        _Lease(queue, lease, lease.decode("utf-8", "replace").rpartition("/")[0])
        for queue, leases in zip(queues, found, strict=True)
        for lease in leases or ()
    ]


def _with_uncovered(jobs: list[RunningJob], leases: list[_Lease], at: float) -> list[RunningJob]:
    """``jobs``, and those that hold one of the ``leases`` while their owner sends no heartbeat."""
    uncovered = _uncovered(leases)
    if uncovered:
        # A child that starts writes its record, and one that ends gives its leases back.
        time.sleep(_SECOND_LOOK)
        uncovered = _uncovered(uncovered)
    payloads = ask_leniently(*(("HGET", keys().inflight(i.queue), i.field) for i in uncovered))
    leased = [
        _leased_job(lease, payload, at)
        for lease, payload in zip(uncovered, payloads, strict=True)
        if payload is not None
    ]
    silent = {(job.identity, job.jid) for job in leased}
    known = {(job.identity, job.jid) for job in jobs}
    return [
        *(replace(j, heartbeat=(j.identity, j.jid) not in silent) for j in jobs),
        *(job for job in leased if (job.identity, job.jid) not in known),
    ]


def _uncovered(leases: list[_Lease]) -> list[_Lease]:
    """Those whose owner's record is missing, or was not renewed for long."""
    owners = sorted({lease.owner for lease in leases})
    left = ask_leniently(*(("PTTL", keys().process(owner)) for owner in owners))
    # -1: a record that does not expire; None: another type, so no record.
    beating = {o for o, ms in zip(owners, left, strict=True) if ms == -1 or (ms or 0) > _FRESH}
    return [lease for lease in leases if lease.owner not in beating]


def _leased_job(lease: _Lease, payload: bytes, at: float) -> RunningJob:
    """A job of which no more is known than its payload and its lease."""
    try:
        job = loads(payload)
    except MalformedPayload:
        job = {}
    enqueued = job.get("enqueued_at")
    earliest = seconds(enqueued) if isinstance(enqueued, int | float) else at
    return RunningJob(
        jid=str(job.get("jid", "")),
        job=str(job.get("class", "")),
        queue=lease.queue,
        identity=lease.owner,
        thread="",
        started_at=earliest,
        elapsed=max(0.0, at - earliest),
        heartbeat=False,
    )


def _running_job(identity: str, thread: bytes, raw: bytes, at: float) -> RunningJob | None:
    """One thread's entry; None for what nobody can read, such as a payload that is no job."""
    try:
        work = msgspec.json.decode(raw, type=_Work)
        job = loads(work.payload.encode()) if isinstance(work.payload, str) else work.payload
    except (ValueError, MalformedPayload, RecursionError):
        return None
    started = seconds(work.run_at)
    return RunningJob(
        jid=str(job.get("jid", "")),
        job=str(job.get("class", "")),
        queue=work.queue,
        identity=identity,
        thread=thread.decode("utf-8", "replace"),
        started_at=started,
        elapsed=max(0.0, at - started),
        progress=work.progress,
    )


def _pairs(reply: Any) -> Iterator[tuple[bytes, bytes]]:
    """A hash as RESP3 gives it; nothing where there is none."""
    yield from (reply or {}).items()


def _in_seconds(length: float | timedelta | None) -> float:
    """-1 for no bound: what began in this very second is running too."""
    if length is None:
        return -1.0
    return length.total_seconds() if isinstance(length, timedelta) else length
