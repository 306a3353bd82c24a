"""A job that waits in a queue or in a set, and what can be done with it."""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from ..errors import MalformedPayload
from ..servers import Server
from ..store.find_job import Found, Location
from ..values import replace
from ..wire.keys import new_secret
from ..wire.marks import KEY, is_suspect
from ..wire.parameters import JobParameters
from ..wire.payload import Payload, dumps, loads
from ..wire.times import now
from . import changes, readable_job
from .changes import Change
from .life import Crash, JobEvent, crash_of, dies_at, events, retries_of
from .masks import masked_text, parameters_of
from .readable_job import moment, text

# Seconds after which a process looks again which secret Redis has: it may have lost it.
SECRET_FOR: Final = 10.0


class Namer:
    """Makes names of jobs (``JobEntry.key``) with the secret of a deployment, which it never shows.

    The name of a job tells it from others with the same score, so it has a digest of the whole
    payload, and is in links and forms for people who may not see all of that payload. Without a
    secret, such a person could try which masked value gives this digest."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, raw: bytes) -> str:
        """The part of a name that depends on the payload."""
        return hashlib.blake2b(raw, digest_size=8, key=self._secret).hexdigest()

    def agree(self, server: Server) -> Namer:
        """Agrees with other processes on a secret. Returns the namer with the secret that is in
        Redis. If there is none, or Redis refuses, it returns this namer, whose secret it writes
        there if it may. Raises ServerUnavailable."""
        name = server.keys.secret
        with server.connection() as connection:
            [found] = connection.pipeline([("GET", name)])
            if found is None:
                own = ("SET", name, self._secret, "NX")
                _, found = connection.pipeline([own, ("GET", name)])
        # An error is no secret, nor is what another program may have written there.
        is_secret = isinstance(found, bytes) and len(found) == len(self._secret)
        return Namer(found) if is_secret else self


# The namer of each server, and until when its secret is taken for that of Redis.
_known: WeakKeyDictionary[Server, tuple[Namer, float]] = WeakKeyDictionary()


def agreed_namer(server: Server) -> Namer:
    """The namer on which all processes of this deployment, or of this shard, agree. Raises
    ServerUnavailable."""
    namer, until = _known.get(server, (None, 0.0))
    if namer is None or time.monotonic() >= until:
        namer = (namer or Namer(new_secret())).agree(server)
        _known[server] = namer, time.monotonic() + SECRET_FOR
    return namer


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as it stood when it was read: ``raw`` are the very bytes, ``job`` is what they say (an
    empty dict if they are no job; then ``malformed`` says why).

    ``location`` is "queued", "scheduled", "retrying", "dead", or "running". ``queue`` is where it
    waits, or goes to when it is due or retried. ``score`` orders it in a set: when it is due, or
    when it died (epoch seconds); 0 in a queue. ``owner`` is the identity of the process that runs
    it, or "". ``parameters`` are those of its class, as far as they are known. ``among_suspects``:
    it waits in the list of its queue's suspects. ``server`` is the Redis that it was read from and
    is acted on. ``namer`` makes its ``key``.

    Text is as the payload has it: escape it before you show it, or use
    ``forkq.wire.printable.printable``. ``args`` are masked where they are secret.

    Each action changes this very member in one atomic step: if two people act at once, one of them
    does it. It returns whether the job was still there. Raises ServerUnavailable.
    """

    raw: bytes
    location: Location
    queue: str = ""
    score: float = 0.0
    owner: str = ""
    job: Payload = field(default_factory=dict, repr=False, compare=False)
    malformed: str = field(default="", repr=False, compare=False)
    parameters: JobParameters | None = field(default=None, repr=False, compare=False)
    among_suspects: bool = False
    server: Server = field(kw_only=True, repr=False, compare=False)
    namer: Namer = field(kw_only=True, repr=False, compare=False)

    @property
    def suspect(self) -> bool:
        """Whether the job runs alone, in a solo child: a process may have died of it, or its class
        has killed several."""
        return self.among_suspects or is_suspect(self.job.get(KEY))

    @property
    def key(self) -> str:
        """A short name of this very member, for ``JobSet.get`` and for forms: it has letters and
        digits only. Besides ``score`` it tells nothing of the job: its digest is made with a secret
        of this deployment, so that no reader can find a masked value by trying."""
        return struct.pack(">d", self.score).hex() + self.namer.digest(self.raw)

    @property
    def jid(self) -> str:
        """The id of the job; "" if it has none."""
        return text(self.job.get("jid"))

    @property
    def name(self) -> str:
        """The class of the job; for an ActiveJob the class that is wrapped. "" if the payload has
        none."""
        return readable_job.name_of(self.job)

    @property
    def wrapper(self) -> str:
        """The class as the payload has it; for an ActiveJob, Rails' wrapper."""
        return text(self.job.get("class"))

    @property
    def args(self) -> list[Any]:
        """The arguments, with "***" for each that is secret: all of them if the job has ``secret``
        set; else each value in an object under a key such as "password", each argument for a
        parameter of such a name (children publish those names), and in text what has the form of a
        secret. Those of an ActiveJob are the arguments of the wrapped job. A payload that is no job
        has its text as only argument."""
        if self.malformed:
            text = self.raw.decode("utf-8", "replace")
            return [readable_job.masked_payload(text, self.parameters)]
        return readable_job.masked_args(self.job, self.parameters)

    @property
    def masked(self) -> bytes:
        """The payload with its secrets masked, to show."""
        if not self.malformed:
            return dumps(readable_job.masked_job(self.job, self.parameters))
        text = self.raw.decode("utf-8", "surrogateescape")
        return readable_job.masked_payload(text, self.parameters).encode("utf-8", "surrogateescape")

    @property
    def error_class(self) -> str:
        """The class of the job's latest error; "" if it has not failed."""
        return text(self.job.get("error_class"))

    @property
    def error_message(self) -> str:
        """The message of the job's latest error, with what has the form of a secret masked."""
        return masked_text(text(self.job.get("error_message")))

    @property
    def backtrace(self) -> list[str]:
        """The lines of the backtrace of the latest error, innermost first, if the job keeps them
        (``backtrace=True``)."""
        return readable_job.backtrace_of(self.job)

    @property
    def crashes(self) -> tuple[Crash, ...]:
        """How the processes died that had the job in progress, the oldest first."""
        return tuple(map(crash_of, readable_job.crashes_of(self.job)))

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """The known events in the job's life, in order of time, with what is to come."""
        return events(self.job, self.location, self.score)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the job."""
        found = self.job.get("tags")
        return tuple(map(text, found)) if type(found) is list else ()

    @property
    def created_at(self) -> float | None:
        """When the job was pushed, epoch seconds; None if its payload does not say."""
        return moment(self.job.get("created_at"))

    @property
    def enqueued_at(self) -> float | None:
        """When the job last came to a queue, epoch seconds; None if it has not, or its payload does
        not say."""
        return moment(self.job.get("enqueued_at"))

    @property
    def failed_at(self) -> float | None:
        """When the job first failed, epoch seconds; None if it has not."""
        return moment(self.job.get("failed_at"))

    @property
    def last_failed_at(self) -> float | None:
        """When the job last failed, epoch seconds; None if it has not."""
        return moment(self.job.get("retried_at")) or self.failed_at

    @property
    def since(self) -> float | None:
        """Since when the job has been where it is, epoch seconds: its death, its last failure, its
        push to the schedule, or the moment it was enqueued. None if it does not say."""
        if self.location == "dead":
            return moment(self.score)
        if self.location == "retrying":
            return self.last_failed_at
        return self.created_at if self.location == "scheduled" else self.enqueued_at

    @property
    def at(self) -> float | None:
        """When a scheduled or retrying job is due, epoch seconds; else None."""
        return moment(self.score) if self.location in ("scheduled", "retrying") else None

    @property
    def retry_count(self) -> int | None:
        """How many retries of the job have failed: 0 after its first failure, None before."""
        count = self.job.get("retry_count")
        return count if type(count) is int else None

    @property
    def retries(self) -> int | None:
        """How many retries the job may have at most; None if time limits them (``retry_for``)."""
        return retries_of(self.job)

    @property
    def dies_at(self) -> float | None:
        """When a retrying job dies if it goes on failing, epoch seconds: exact with ``retry_for``,
        else an estimate by the default delays, since a ``retry_in`` of its class is not known
        here. None if it is not retrying."""
        return dies_at(self.job, self.score) if self.location == "retrying" else None

    def retry(self, *, fresh: bool = False) -> bool:
        """Sends a retrying, dead or scheduled job to its queue now.

        As in Sidekiq 7, the retry count goes down by one (never below 0), so that this run does not
        count; a dead job that fails again is dead again. ``fresh`` forgets its failures: then it
        has all its retries again. It is not cancelled any more. Raises MalformedPayload if the
        payload is no job.
        """
        change = changes.retried(self.checked_job(), now(), fresh=fresh)
        changes.forget_cancellation(self.server, self.jid)
        return self._do(change)

    def add_to_queue(self) -> bool:
        """Sends a scheduled or retrying job to its queue now, as if it were due: its retry count
        stays. Raises MalformedPayload if the payload is no job."""
        return self._do(changes.enqueued(self.checked_job(), now()))

    def kill(self) -> bool:
        """Moves the job to the dead set. No other job leaves that set now: only a process that
        buries a job trims it (``DeadSet.bounds``). A job that is no job is moved in the form that
        the dead set has for those."""
        return self._do(changes.killed(self.raw, self.job, self.queue, self.malformed, now()))

    def delete(self) -> bool:
        """Deletes the job. To be able to restore it, use ``delete_all(Filter(keys=...),
        undo=True)`` of its set or queue."""
        return self._do(changes.DELETED)

    def move(self, queue: str) -> bool:
        """Sends the job to another queue: from a queue or the dead set at once, from the schedule
        or the retry set when it is due. Raises InvalidRule for a name that is not one queue's, and
        MalformedPayload if the payload is no job."""
        name = changes.checked_queue(queue)
        return self._do(changes.moved(self, name, now()))

    def reschedule(self, at: float) -> bool:
        """Makes a scheduled or retrying job due at ``at``, epoch seconds."""
        return self._do(changes.rescheduled(self.raw, at))

    def edit(self, *, args: Sequence[Any]) -> JobEntry | None:
        """Replaces the arguments of the job where it is. Returns the new entry; None if the job has
        left.

        Its masked values cannot be told from the real ones afterwards, so pass all arguments.
        Raises InvalidJob for arguments that JSON cannot carry, MalformedPayload if the payload is
        no job.
        """
        change = changes.edited(self.server, self.checked_job(), args)
        if not self._do(change):
            return None
        return replace(self, raw=change.payload, job=loads(change.payload))

    def checked_job(self) -> Payload:
        """The job in the payload. Raises MalformedPayload if there is none."""
        if self.malformed:
            raise MalformedPayload(f"this is no job that can run: {self.malformed}; delete it")
        return self.job

    def _do(self, change: Change) -> bool:
        """Makes the change to this job. Returns whether the job was still there."""
        if self.location == "running":
            return False
        [done] = changes.apply(
            self.server,
            self.location,
            self.queue,
            [(self.raw, change)],
            among_suspects=self.among_suspects,
        )
        if done == changes.REFUSED:
            raise changes.refusal(self.server, change)
        return done in (changes.DONE, changes.UNLOCKED)


def entry_of(
    server: Server,
    raw: bytes,
    location: Location,
    queue: str = "",
    score: float = 0.0,
    owner: str = "",
    *,
    among_suspects: bool = False,
) -> JobEntry:
    """The entry of these bytes. ``queue`` is the queue that has them, "" in a set. Asks Redis for
    the parameters of the class, if they are not known: raises ServerUnavailable."""
    try:
        job, malformed = loads(raw), ""
    except MalformedPayload as error:
        job, malformed = {}, str(error)
    name = readable_job.class_of(job, raw)
    return JobEntry(
        raw,
        location,
        queue or readable_job.queue_of(job),
        score,
        owner,
        job,
        malformed,
        parameters_of(server, name),
        among_suspects,
        server=server,
        namer=agreed_namer(server),
    )


def found_entry(server: Server, found: Found) -> JobEntry:
    """The entry of a job that a search has found."""
    queue = found.queue if found.location in ("queued", "running") else ""
    place = (found.location, queue, found.at, found.owner)
    return entry_of(server, found.payload, *place, among_suspects=found.among_suspects)


def score_in(key: str) -> float | None:
    """The score in a ``JobEntry.key``; None if that is no key."""
    try:
        [score] = struct.unpack(">d", bytes.fromhex(key[:16]))
    except (ValueError, struct.error):
        return None
    return None if math.isnan(score) else float(score)
