"""One run of one job in this child: what the processor knows of it, and tells the observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from .. import registry
from ..features.marked import keeps_end
from ..features.results.parts import (
    FAILED,
    LONGEST_MESSAGE,
    RETURNED,
    Failure,
    returned,
)
from ..registry import JobSpec
from ..wire.lease import UnitOfWork
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload
from ..wire.printable import class_name, message

if TYPE_CHECKING:
    from .failure.memory import JobMemory
    from .time_limits import TimedJob


class JobRun:
    """Created by the processor, or the event loop, for each unit (``JobWay.new_run``).

    ``memory``: what its job remembers, and its later runs have.
    ``consumer``: who occupies the place of the unit after its end (``Leases.occupy``).
    ``job``: the payload as loaded; None if it is malformed.
    ``shown_class``, ``jid``, ``marks`` (the payload's ``forkq``): copied before middleware or the
    job can change them.
    ``counted_as``: the class in the statistics; empty until a registered job is found.
    ``performing``: set while the job's own code runs; then its own hooks decide what a failure
    leads to.
    ``elapsed``: seconds from the take to the end of the job.
    ``problems``: errors in the app's own hooks, each with a line on what it changes.
    ``settled``: acknowledged, retried, buried, or left to the stop.
    ``time_limit``: when the job must have ended; None if it has no limit.
    ``returned``: what a marked job has returned, unless it is None; other jobs have none.
    ``leased``: the LeasedPayload of a job that may gain a need while it runs.
    ``unused_steps`` returns those that it remembers and has not come to, if it has come to one.
    """

    __slots__ = (
        "consumer",
        "counted_as",
        "elapsed",
        "jid",
        "job",
        "leased",
        "marks",
        "performing",
        "problems",
        "returned",
        "settled",
        "shown_class",
        "time_limit",
        "unit",
        "unused_steps",
    )

    memory: ClassVar[JobMemory]
    returned: Any
    leased: object
    unused_steps: Callable[[], list[str]]

    def __init__(self, unit: UnitOfWork, consumer: object = None) -> None:
        self.unit = unit
        self.consumer = consumer
        self.job: Payload | None = None
        self.shown_class: object = None
        self.jid: object = None
        self.marks: object = None
        self.counted_as = ""
        self.performing: JobSpec | None = None
        self.elapsed = 0.0
        self.problems: tuple[tuple[BaseException, str], ...] = ()
        self.settled = False
        self.time_limit: TimedJob | None = None

    def loaded(self, job: Payload) -> None:
        """Notes the job that the unit's payload contains."""
        self.job = job
        self.shown_class = job.get("wrapped") or job["class"]
        self.jid = job.get("jid")
        self.marks = job.get(KEY)
        if self.marks is not None and needs_in(self.marks):
            self._mark()

    def marked_again(self, job: Payload, payload: bytes) -> None:
        """Notes the new marks of the job, which runs, and its payload with them."""
        self.marks = job[KEY]
        self.unit.payload = payload
        self._mark()

    def step_store(self) -> Any:
        """Where the steps of the job are remembered."""
        return self.memory.steps(self)

    def note_returned(self) -> None:
        """Has the end of a job that is done know what the job has returned, if that is kept."""
        marked = self.unit.marked
        if marked is not None and keeps_end(needs_in(self.marks)):
            value = getattr(self, "returned", None)
            reader = registry.reader_of(str(self.shown_class))
            marked[RETURNED] = returned(value) if reader is None else reader.kept(value)

    def note_failed(self, error: BaseException) -> None:
        """Has the end of a job that has failed know with which ``error``."""
        marked = self.unit.marked
        if marked is not None and keeps_end(needs_in(self.marks)):
            said = message(error, LONGEST_MESSAGE)
            marked[FAILED] = Failure(class_name(type(error)), said)

    def _mark(self) -> None:
        """Notes what the features of the job must know at its end."""
        self.unit.marked = {
            "class": self.shown_class,
            "jid": self.jid,
            "queue": self.unit.queue_name,
            KEY: self.marks,
        }

    def note_heard(self, *, heard: bool) -> None:
        """Notes whether the coroutine was told of its TimeLimit: it may have ended before that."""
        if self.time_limit is not None and not heard:
            self.time_limit.raised = False

    def add_problem(self, error: BaseException, meaning: str) -> None:
        """An error in the app's own hook or payload; logged once the job is settled."""
        self.problems += ((error, meaning),)
