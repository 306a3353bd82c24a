"""The steps that a job remembers, as a table."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from ...api.features.steps import JobStep, WaitingJob
from ...units import format_moment
from ...wire.payload import encode
from ...wire.printable import cut, printable
from ...wire.times import now
from ..table import Cell, Column, Empty, Moment, Phrase, Sheet
from ..texts import name as shown

_LONGEST: Final = 200  # characters of a value


def as_object(step: JobStep) -> dict[str, Any]:
    """A step as programs get it."""
    return dataclasses.asdict(step)


def state_text(step: JobStep) -> str:
    """What has become of the step, or what it waits for."""
    if step.problem:
        return f"done; its value is not kept: {printable(cut(step.problem, _LONGEST))}"
    if step.timed_out:
        return "no signal has come"
    if step.until:
        return f"{_pause_text(step)} {format_moment(step.until)}"
    value = printable(cut(encode(step.value).decode(), _LONGEST))
    return f"signal: {value}" if step.kind == "wait_for" else f"returned {value}"


def _pause_text(step: JobStep) -> str:
    """Before the moment at which a pause ends."""
    if step.event:
        return f"waits for the signal {shown(step.event)}; times out"
    return "sleeps; is due" if step.until > now() else "slept; was due"


def _state(step: JobStep) -> Cell:
    return (Phrase(state_text(step), "bad" if step.problem else ""),)


STEPS: Final[Sheet[JobStep]] = Sheet(
    "Steps",
    (
        Column("name", "Step", lambda step: (Phrase(shown(step.name)),), whole=True),
        Column("kind", "Kind", lambda step: (Phrase(step.kind),)),
        Column("at", "Since", lambda step: (Moment(step.at),)),
        Column("state", "What became of it", _state),
    ),
    key=lambda step: step.name,
    empty=Empty("The job remembers no steps.", brief="no steps"),
    facts=as_object,
)


def _since(job: WaitingJob) -> Cell:
    return (Moment(job.since),) if job.since else (Phrase("no signal wakes it", "bad"),)


WAITING_JOBS: Final[Sheet[WaitingJob]] = Sheet(
    "Jobs that wait for signals",
    (
        Column("jid", "Job", lambda job: (Phrase(job.jid, kind="id"),), whole=True, brief="JID"),
        Column("job", "Job", lambda job: (Phrase(job.job),), least=12),
        Column("event", "Waits for", lambda job: (Phrase(job.event),), whole=True),
        Column("since", "Since", _since),
        Column("until", "Until", lambda job: (Moment(job.until),)),
    ),
    key=lambda job: f"{job.shard} {job.jid}",
    empty=Empty("No job waits for a signal.", brief="no job waits for a signal"),
    facts=dataclasses.asdict,
    command="forkq steps",
)
