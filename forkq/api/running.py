"""The jobs that run now, and those that have reported nothing for long."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ..errors import MalformedPayload
from ..servers import Server, Servers, first_found
from ..store.find_job import Found
from ..values import replace
from ..wire.lease import RECORD_TTL, Progress, seconds_left
from ..wire.payload import bounded, loads, loads_head
from ..wire.times import seconds
from .door import OnServer
from .door import server as default_server
from .door import servers as all_servers
from .processes import ProcessSet, identities, processes, texts

# A record with fewer milliseconds left belongs to an owner that has missed two heartbeats.
_FRESH: Final = (RECORD_TTL - 30) * 1000
_SECOND_LOOK: Final = 0.2  # seconds
# How many payloads are read to find what has begun since the last heartbeats, and of which size, in
# bytes: the next heartbeat tells of the others.
_MOST_READ: Final = 1000
_LARGEST_READ: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job in progress, without its arguments: they are the users' data.

    ``job`` is the name of its class; ``identity`` and ``thread`` tell which process and thread run
    it. ``started_at`` is in epoch seconds (of a Ruby process: by the clock of its host),
    ``elapsed`` in seconds from then to now. ``progress`` is what it last reported: ``done`` of
    ``total`` (None: unknown), a ``note``, and ``at`` (epoch seconds).

    ``heartbeat`` is False if its process has sent none for 30 s: the process is stopped, hangs, has
    died, or cannot reach Redis. ``thread`` is empty if no heartbeat has told of the job yet: it has
    started after ``started_at``, which is when its process sent its last one, or when the job was
    enqueued.

    ``blocks`` is the place in the app's code at which it blocks the event loop of its process; ""
    if it did not at the last heartbeat.
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
    blocks: str = ""

    @property
    def seconds_left(self) -> float | None:
        """In how many seconds the job ends, if it goes on as fast as it has so far; None if it
        reports no ``total``, or too little is done."""
        found = self.progress
        if found is None:
            return None
        spent = found.before + found.at - self.started_at
        return seconds_left(found.done, found.total, spent)

    @property
    def silent_for(self) -> float:
        """Seconds since it last reported progress; if it never did, since it started."""
        if self.progress is None:
            return self.elapsed
        return max(0.0, self.elapsed - (self.progress.at - self.started_at))


class _Lease(NamedTuple):
    """One field of a queue's in-flight hash, and the identity that owns the lease."""

    queue: str
    field: bytes
    owner: str

    @property
    def sequence(self) -> int:
        """The sequence number of the lease, as its owner counts."""
        return int(_number(self.field.rpartition(b"/")[2]))


class _Owner(NamedTuple):
    """What the record of a process says: whether it was renewed in time, when (epoch seconds, 0:
    unknown), and how many jobs the process runs at most."""

    beats: bool
    beat: float
    concurrency: int


_Held: TypeAlias = "tuple[_Lease, _Owner]"


class _Work(msgspec.Struct):
    """The value of IDENTITY:work for one thread. Sidekiq 6 writes the payload as an object.
    ``lease`` is the sequence number of the job's lease; only forkq's children write it."""

    queue: str
    payload: str | dict[str, Any]
    run_at: float
    progress: Progress | None = None
    lease: int | None = None
    blocks: str = ""


def running(
    longer_than: float | timedelta | None = None, server: Server | None = None
) -> list[RunningJob]:
    """The jobs that run now, the longest first; with ``longer_than`` (seconds or a timedelta) only
    those that have run for longer.

    These are the jobs in each process's last heartbeat that still have their leases, and what it
    has begun since: of its leases those that two looks found (0.2 s apart), the oldest first, as
    many as it has threads. What it has leased ahead waits behind these, and is not running. A
    process of Sidekiq has no leases: its jobs are those of its last heartbeat. Of a process without
    a heartbeat every lease counts, since it may have begun any. A job that has just begun, with a
    payload above 256 KiB or beside 1,000 others, is listed from the next heartbeat on. Raises
    ServerUnavailable.
    """
    server = server or default_server()
    leases = _leases(server)
    owners = {lease.owner for lease in leases}
    at = server.now()
    jobs = _of_heartbeats(server, sorted({*identities(server), *owners}), leases, at)
    jobs = _with_leased(server, jobs, leases, at)
    floor = _in_seconds(longer_than)
    return sorted((job for job in jobs if job.elapsed > floor), key=lambda job: -job.elapsed)


def stuck(minutes: float = 10, server: Server | None = None) -> list[RunningJob]:
    """The running jobs that have reported no progress for ``minutes``, and those without a
    heartbeat; the longest silent first. For a job that never reports, its start counts. Raises
    ServerUnavailable."""
    silent = [j for j in running(server=server) if not j.heartbeat or j.silent_for > minutes * 60]
    return sorted(silent, key=lambda job: -job.silent_for)


def progress(jid: str, where: Server | Servers | None = None) -> Progress | None:
    """What the job with that id has last reported, at most about a second ago; None if it does not
    run now, or has reported nothing. Reads what the processes run, not the queues: a page may ask
    once a second. Raises ServerUnavailable."""

    def look(server: Server) -> Progress | None:
        names = [one.identity for one in processes(server) if one.busy]
        for raw in _threads(server, names).values():
            found = _decoded(raw)
            if found is not None and found[1].get("jid") == jid:
                return found[0].progress
        return None

    return first_found(where or all_servers(), look)


class WorkSet(OnServer):
    """The jobs in progress everywhere, the longest first, as ``running`` lists them: how long they
    run, their progress, and whether their process sends heartbeats. Raises ServerUnavailable."""

    __slots__ = ()

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(running(server=self.server))

    def __len__(self) -> int:
        return len(running(server=self.server))

    def find(self, jid: str) -> RunningJob | None:
        """The run of that job; None if it does not run."""
        return next((job for job in self if job.jid == jid), None)

    def of_queue(self, name: str) -> list[RunningJob]:
        """The jobs of one queue."""
        return [job for job in self if job.queue == name]

    def of_process(self, identity: str) -> list[RunningJob]:
        """The jobs of one process."""
        return [job for job in self if job.identity == identity]

    def dump_stack(self, jid: str) -> bool:
        """Has the process that runs the job log the stacks of its threads; the stacks do not come
        to Redis. Returns whether the job runs in a process that takes orders."""
        job = self.find(jid)
        return job is not None and ProcessSet(self.server).dump_stacks(job.identity) == 1


def in_sidekiq(server: Server, jid: str) -> Found | None:
    """The job, if it runs in a process of Sidekiq as of its last heartbeat: Sidekiq takes a job out
    of Redis when it begins, so it is nowhere else. Raises ServerUnavailable."""
    for owner, work, job in _in_sidekiq(server):
        if job.get("jid") == jid:
            return Found("running", work.queue, msgspec.json.encode(job), owner=owner)
    return None


def busy_in_sidekiq(server: Server) -> Counter[str]:
    """How many jobs of each queue run in processes of Sidekiq, as of their last heartbeats: they
    have no leases. Raises ServerUnavailable."""
    return Counter(work.queue for _, work, _ in _in_sidekiq(server))


def _in_sidekiq(server: Server) -> Iterator[tuple[str, _Work, dict[str, Any]]]:
    """The identity of its process, the record and the payload of each job that runs there."""
    owners = [one.identity for one in processes(server) if one.busy and not one.master]
    for (owner, _), raw in _threads(server, owners).items():
        if (found := _decoded(raw)) is not None:
            yield owner, *found


def _of_heartbeats(
    server: Server, names: list[str], leases: list[_Lease], at: float
) -> list[RunningJob]:
    """The jobs in the last heartbeats of the processes with these identities, without those that
    have ended since: their leases are gone."""
    held = {(lease.queue, lease.owner, lease.sequence) for lease in leases}
    jobs = (_running_job(*place, raw, at, held) for place, raw in _threads(server, names).items())
    return [job for job in jobs if job is not None]


def _threads(server: Server, names: list[str]) -> dict[tuple[str, bytes], bytes]:
    """What each thread of these processes runs, by identity and thread."""
    hashes = [(name, key) for name in names for key in server.keys.works(name)]
    found = server.ask_leniently(*(("HGETALL", key) for _, key in hashes))
    # A child of forkq writes both of its hashes, Sidekiq the one of its version.
    return {
        (name, thread): raw
        for (name, _), work in zip(hashes, found, strict=True)
        for thread, raw in _pairs(work)
    }


def _leases(server: Server) -> list[_Lease]:
    """Every lease in flight, in all queues; also in those that were deleted meanwhile."""
    pushed, fetched = server.ask_leniently(
        ("SMEMBERS", server.keys.queues), ("ZRANGE", server.keys.fetched, 0, -1), strict=1
    )
    queues = texts({*pushed, *(fetched or ())})
    found = server.ask_leniently(*(("HKEYS", server.keys.inflight(queue)) for queue in queues))
    return [
        _Lease(queue, lease, lease.decode("utf-8", "replace").rpartition("/")[0])
        for queue, leases in zip(queues, found, strict=True)
        for lease in leases or ()
    ]


def _with_leased(
    server: Server, jobs: list[RunningJob], leases: list[_Lease], at: float
) -> list[RunningJob]:
    """The jobs in ``jobs``, and those of which no heartbeat tells: the jobs that have begun since,
    and those of owners that send none."""
    known = {(job.identity, job.jid) for job in jobs}
    leased = _leased(server, leases, at)
    if any(not job.heartbeat or (job.identity, job.jid) not in known for job in leased):
        # Meanwhile short jobs end, what was leased ahead begins or goes back, a child that starts
        # writes its record, and one that ends returns its leases.
        time.sleep(_SECOND_LOOK)
        standing = set(_leases(server))
        leased = _leased(server, [lease for lease in leases if lease in standing], at)
    silent = {(job.identity, job.jid) for job in leased if not job.heartbeat}
    return [
        *(replace(j, heartbeat=(j.identity, j.jid) not in silent) for j in jobs),
        *(job for job in leased if (job.identity, job.jid) not in known),
    ]


def _leased(server: Server, leases: list[_Lease], at: float) -> list[RunningJob]:
    """The jobs of those ``leases`` whose owners have begun them, or send no heartbeat."""
    held = _readable(server, list(_begun(server, leases)))
    asked = (("HGET", server.keys.inflight(one.queue), one.field) for one, _ in held)
    payloads = server.ask_leniently(*asked)
    jobs = (
        _leased_job(*one, payload, at)
        for one, payload in zip(held, payloads, strict=True)
        if payload is not None
    )
    return [job for job in jobs if job is not None]


def _begun(server: Server, leases: list[_Lease]) -> Iterator[_Held]:
    """The leases whose jobs their owners have begun: a child begins its jobs in the order in which
    it leases them, each of its threads one."""
    owners = _owners(server, {lease.owner for lease in leases})
    of_owner: dict[str, list[_Lease]] = defaultdict(list)
    for lease in sorted(leases, key=lambda lease: lease.sequence):
        of_owner[lease.owner].append(lease)
    for identity, held in of_owner.items():
        owner = owners[identity]
        yield from ((one, owner) for one in held[: owner.concurrency if owner.beats else None])


def _owners(server: Server, identities: Iterable[str]) -> dict[str, _Owner]:
    """What the records of these owners say, by identity. Without a record, an owner sends no
    heartbeat."""
    names = sorted(identities)
    questions = (
        question
        for key in map(server.keys.process, names)
        for question in (("PTTL", key), ("HMGET", key, "beat", "concurrency"))
    )
    replies = server.ask_leniently(*questions)
    return {
        name: _owner(left, *(fields or (None, None)))
        for name, left, fields in zip(names, replies[::2], replies[1::2], strict=True)
    }


def _owner(left: Any, beat: Any, concurrency: Any) -> _Owner:
    """What one record says. It expires in ``left`` milliseconds; -1: it does not expire."""
    beats = left == -1 or (left or 0) > _FRESH
    return _Owner(beats, _number(beat), int(_number(concurrency)))


def _readable(server: Server, held: list[_Held]) -> list[_Held]:
    """The leases whose payloads are read. For owners that send heartbeats, large ones are not."""
    beating = [one for one in held if one[1].beats][:_MOST_READ]
    silent = [one for one in held if not one[1].beats]
    asked = (("HSTRLEN", server.keys.inflight(one.queue), one.field) for one, _ in beating)
    sizes = server.ask_leniently(*asked)
    small = (o for o, size in zip(beating, sizes, strict=True) if (size or 0) <= _LARGEST_READ)
    return [*small, *silent]


def _leased_job(lease: _Lease, owner: _Owner, payload: bytes, at: float) -> RunningJob | None:
    """A job of which only its payload, its lease and its owner are known; None if it cannot be
    read, and its owner, which lives, is about to bury it."""
    try:
        job = loads_head(payload)
    except MalformedPayload:
        if owner.beats:
            return None
        job = {}
    enqueued = job.get("enqueued_at")
    # A heartbeat that has come since the first look may tell of the job.
    beat = owner.beat if owner.beat < at else 0.0
    earliest = max(beat, seconds(enqueued) if isinstance(enqueued, int | float) else 0.0) or at
    return RunningJob(
        jid=str(job.get("jid", "")),
        job=str(job.get("class", "")),
        queue=lease.queue,
        identity=lease.owner,
        thread="",
        started_at=earliest,
        elapsed=max(0.0, at - earliest),
        heartbeat=owner.beats,
    )


def _running_job(
    identity: str, thread: bytes, raw: bytes, at: float, held: Collection[tuple[str, str, int]]
) -> RunningJob | None:
    """The job in one field of IDENTITY:work; None if it cannot be read, or if its lease is not
    among those that are ``held`` (queue, owner and sequence number)."""
    found = _decoded(raw)
    if found is None:
        return None
    work, job = found
    if work.lease is not None and (work.queue, identity, work.lease) not in held:
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
        blocks=work.blocks,
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


def _number(text: bytes | None) -> float:
    """The number in ``text``, which any program may have written; 0 if there is none."""
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0


def _in_seconds(length: float | timedelta | None) -> float:
    """A bound in seconds; -1 without one, so that a job that started in this second is included."""
    if length is None:
        return -1.0
    return length.total_seconds() if isinstance(length, timedelta) else length
