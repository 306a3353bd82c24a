"""A job that waits in a queue or in a set, and what can be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..store.find_job import Location
from ..wire.payload import Payload


@dataclass(frozen=True, slots=True)
class Crash:
    """How a process died that had the job in progress. ``why`` is the reason for people, ``at`` in
    epoch seconds (None: unknown), ``rss`` its peak memory in KiB, ``alone``: no other job ran in
    it, so this crash counts. ``stack`` is where the job was, if that is known."""

    why: str
    at: float | None = None
    host: str = ""
    rss: int | None = None
    alone: bool = False
    stack: str = ""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event in the life of a job, as its payload tells it: ``what`` is "pushed", "enqueued",
    "failed", "retried", "crashed", "due", "died" or "dies" (to come), ``at`` in epoch seconds."""

    at: float
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as it stood when it was read: ``raw`` are the very bytes, ``job`` is what they say (an
    empty dict if they are no job; then ``malformed`` says why).

    ``location`` is "queued", "scheduled", "retrying", "dead", or "running". ``queue`` is where it
    waits, or goes to when it is due or retried. ``score`` is its place in a set: when it is due, or
    when it died (epoch seconds); 0 in a queue. ``owner`` is the identity of the process that runs
    it, or "".

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

    @property
    def key(self) -> str:
        """A short name of this very member, for ``JobSet.get`` and for forms: it has letters,
        digits, points and dashes only, and no data of the job."""
        raise NotImplementedError

    @property
    def jid(self) -> str:
        """The id of the job; "" if it has none."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The class; of an ActiveJob the class that is wrapped. "" if it has none."""
        raise NotImplementedError

    @property
    def args(self) -> list[Any]:
        """The arguments, with "***" for each that is secret: all of them if the job has ``secret``
        set, else each value in an object under a key such as "password". Those of an ActiveJob are
        the arguments of the wrapped job. A payload that is no job has its text as only argument."""
        raise NotImplementedError

    @property
    def masked(self) -> bytes:
        """The payload with its secrets masked, to show."""
        raise NotImplementedError

    @property
    def error_class(self) -> str:
        """The class of its latest error; "" if it has not failed."""
        raise NotImplementedError

    @property
    def error_message(self) -> str:
        """The message of its latest error."""
        raise NotImplementedError

    @property
    def backtrace(self) -> list[str]:
        """The lines of its latest error's backtrace, innermost first, if the job keeps them
        (``backtrace=True``)."""
        raise NotImplementedError

    @property
    def crashes(self) -> tuple[Crash, ...]:
        """How processes died that had it in progress, the oldest first."""
        raise NotImplementedError

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What is known of its life, in order of time, with what is to come."""
        raise NotImplementedError

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        raise NotImplementedError

    @property
    def created_at(self) -> float | None:
        """When it was pushed, epoch seconds; None if it does not say."""
        raise NotImplementedError

    @property
    def enqueued_at(self) -> float | None:
        """When it last came to a queue, epoch seconds; None if it has not, or does not say."""
        raise NotImplementedError

    @property
    def failed_at(self) -> float | None:
        """When it first failed, epoch seconds; None if it has not."""
        raise NotImplementedError

    @property
    def last_failed_at(self) -> float | None:
        """When it last failed, epoch seconds; None if it has not."""
        raise NotImplementedError

    @property
    def since(self) -> float | None:
        """Since when it has been where it is, epoch seconds: its death, its last failure, its push
        to the schedule, or the moment it was enqueued. None if it does not say."""
        raise NotImplementedError

    @property
    def at(self) -> float | None:
        """When a scheduled or retrying job is due, epoch seconds; else None."""
        raise NotImplementedError

    @property
    def retry_count(self) -> int | None:
        """How many of its retries have failed: 0 after its first failure, None before."""
        raise NotImplementedError

    @property
    def retries(self) -> int | None:
        """How many retries it may have at most; None if time limits them (``retry_for``)."""
        raise NotImplementedError

    @property
    def dies_at(self) -> float | None:
        """When a retrying job dies if it goes on failing, epoch seconds: exact with ``retry_for``,
        else an estimate by the default delays, since a ``retry_in`` of its class is not known
        here. None if it is not retrying."""
        raise NotImplementedError

    def retry(self, *, fresh: bool = False) -> bool:
        """Sends a retrying, dead or scheduled job to its queue now.

        As in Sidekiq 7, the retry count goes down by one (never below 0), so that this run does not
        count; a dead job that fails again is dead again. ``fresh`` forgets its failures: then it
        has all its retries again. Raises MalformedPayload if the payload is no job.
        """
        raise NotImplementedError

    def add_to_queue(self) -> bool:
        """Sends a scheduled or retrying job to its queue now, as if it were due: its retry count
        stays. Raises MalformedPayload if the payload is no job."""
        raise NotImplementedError

    def kill(self) -> bool:
        """Moves it to the dead set, which is trimmed as at each death. A job that is no job is
        moved in the form that the dead set has for those."""
        raise NotImplementedError

    def delete(self) -> bool:
        """Deletes it. To be able to put it back, use ``delete_all(Filter(keys=...), undo=True)`` of
        its set or queue."""
        raise NotImplementedError

    def move(self, queue: str) -> bool:
        """Sends it to another queue: from a queue or the dead set at once, from the schedule or the
        retry set when it is due. Raises InvalidRule for a name that is not one queue's, and
        MalformedPayload if the payload is no job."""
        raise NotImplementedError

    def reschedule(self, at: float) -> bool:
        """Makes a scheduled or retrying job due at ``at``, epoch seconds."""
        raise NotImplementedError

    def edit(self, *, args: Sequence[Any]) -> JobEntry | None:
        """Replaces its arguments where it stands. Returns the new entry; None if the job has left.

        Its masked values cannot be told from the real ones afterwards, so pass all arguments.
        Raises InvalidJob for arguments that JSON cannot carry, MalformedPayload if the payload is
        no job.
        """
        raise NotImplementedError
