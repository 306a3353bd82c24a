"""The jobs that run now, and those that have reported nothing for long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from ..errors import MalformedPayload
from ..store.find_job import Found
from ..wire.lease import RECORD_TTL, Progress
from ..wire.payload import bounded, loads, loads_head
from ..wire.times import seconds
from .processes import identities, processes
from .query import ask, ask_leniently, keys, server_now, texts

# A record with fewer milliseconds left belongs to an owner that has missed two heartbeats.
_FRESH: Final = (RECORD_TTL - 30) * 1000
_SECOND_LOOK: Final = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in progress, without its arguments: they are the users' data.

    ``job`` is the name of its class; ``identity`` and ``thread`` tell which process and thread run
    it. ``started_at`` is in epoch seconds (of a Ruby process: by the clock of its host),
    ``elapsed`` in seconds from then to now. ``progress`` is what it last reported: ``done`` of
    ``total`` (None: unknown), a ``note``, and ``at`` (epoch seconds).

    ``heartbeat`` is False if its process sends none: the process is stopped, hangs, has died, or
    cannot reach Redis. If nothing else is known of such a job, ``thread`` is empty, and
    ``started_at`` is when it was enqueued; it has started later.
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
        """Seconds since it last reported progress; if it never did, since it started."""
        if self.progress is None:
            return self.elapsed
        return max(0.0, self.elapsed - (self.progress.at - self.started_at))


class _Lease(NamedTuple):
    """One field of a queue's in-flight hash, and the identity that holds it."""

    queue: str
    field: bytes
    owner: str


class _Work(msgspec.Struct):
    """The value of IDENTITY:work for one thread. Sidekiq 6 writes the payload as an object."""

    queue: str
    payload: str | dict[str, Any]
    run_at: float
    progress: Progress | None = None


def running(longer_than: float | timedelta | None = None) -> list[RunningJob]:
    """The jobs that run now, the longest first; with ``longer_than`` (seconds or a timedelta) only
    those that have run for longer.

    These are the jobs in each process's last heartbeat, and those of every lease whose owner sends
    no heartbeat. Raises ServerUnavailable.
    """
    leases = _leases()
    owners = {lease.owner for lease in leases}
    at = server_now()
    jobs = _reported(sorted({*identities(), *owners}), at)
    jobs = _with_silent(jobs, leases, at)
    floor = _in_seconds(longer_than)
    return sorted((job for job in jobs if job.elapsed > floor), key=lambda job: -job.elapsed)


def stuck(minutes: float = 10) -> list[RunningJob]:
    """The running jobs that have reported no progress for ``minutes``, and those without a
    heartbeat; the longest silent first. For a job that never reports, its start counts. Raises
    ServerUnavailable."""
    silent = [j for j in running() if not j.heartbeat or j.silent_for > minutes * 60]
    return sorted(silent, key=lambda job: -job.silent_for)


def in_sidekiq(jid: str) -> Found | None:
    """The job, if it runs in a process of Sidekiq as of its last heartbeat: Sidekiq takes a job out
    of Redis when it begins, so it stands nowhere else. Raises ServerUnavailable."""
    owners = [process.identity for process in processes() if not process.master]
    for (owner, _), raw in _threads(owners).items():
        if (found := _decoded(raw)) is not None and found[1].get("jid") == jid:
            work, job = found
            return Found("running", work.queue, msgspec.json.encode(job), owner=owner)
    return None


def _reported(names: list[str], at: float) -> list[RunningJob]:
    """The jobs in the last heartbeats of the processes with these identities."""
    jobs = (_running_job(*place, raw, at) for place, raw in _threads(names).items())
    return [job for job in jobs if job is not None]


def _threads(names: list[str]) -> dict[tuple[str, bytes], bytes]:
    """What each thread of these processes runs, by identity and thread."""
    hashes = [(name, key) for name in names for key in keys().works(name)]
    found = ask_leniently(*(("HGETALL", key) for _, key in hashes))
    # A child of forkq writes both of its hashes, Sidekiq the one of its version.
    return {
        (name, thread): raw
        for (name, _), work in zip(hashes, found, strict=True)
        for thread, raw in _pairs(work)
    }


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


def _with_silent(jobs: list[RunningJob], leases: list[_Lease], at: float) -> list[RunningJob]:
    """``jobs``, and the jobs of those ``leases`` whose owner sends no heartbeat."""
    silent_leases = _without_heartbeat(leases)
    if silent_leases:
        # Meanwhile a child that starts writes its record, and one that ends returns its leases.
        time.sleep(_SECOND_LOOK)
        silent_leases = _without_heartbeat(silent_leases)
    payloads = ask_leniently(*(("HGET", keys().inflight(i.queue), i.field) for i in silent_leases))
    leased = [
        _leased_job(lease, payload, at)
        for lease, payload in zip(silent_leases, payloads, strict=True)
        if payload is not None
    ]
    silent = {(job.identity, job.jid) for job in leased}
    known = {(job.identity, job.jid) for job in jobs}
    return [
        *(replace(j, heartbeat=(j.identity, j.jid) not in silent) for j in jobs),
        *(job for job in leased if (job.identity, job.jid) not in known),
    ]


def _without_heartbeat(leases: list[_Lease]) -> list[_Lease]:
    """Those whose owner's record is missing, or was not renewed in time."""
    owners = sorted({lease.owner for lease in leases})
    left = ask_leniently(*(("PTTL", keys().process(owner)) for owner in owners))
    # -1: a record that does not expire; None: a key of another type.
    beating = {o for o, ms in zip(owners, left, strict=True) if ms == -1 or (ms or 0) > _FRESH}
    return [lease for lease in leases if lease.owner not in beating]


def _leased_job(lease: _Lease, payload: bytes, at: float) -> RunningJob:
    """A job of which only its payload and its lease are known."""
    try:
        job = loads_head(payload)
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
    """The job in one field of IDENTITY:work; None if it cannot be read."""
    found = _decoded(raw)
    if found is None:
        return None
    work, job = found
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


def _decoded(raw: bytes) -> tuple[_Work, dict[str, Any]] | None:
    """One field of IDENTITY:work, and the payload in it; None if one cannot be read, such as a
    payload that is not a job."""
    try:
        work = msgspec.json.decode(bounded(raw), type=_Work)
        return work, loads(work.payload.encode()) if isinstance(work.payload, str) else work.payload
    except (ValueError, MalformedPayload, RecursionError):
        return None


def _pairs(reply: Any) -> Iterator[tuple[bytes, bytes]]:
    """The fields of a hash as RESP3 returns it; none if the reply is None."""
    yield from (reply or {}).items()


def _in_seconds(length: float | timedelta | None) -> float:
    """-1 without a bound, so that a job that started in this second is included."""
    if length is None:
        return -1.0
    return length.total_seconds() if isinstance(length, timedelta) else length
