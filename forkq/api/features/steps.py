"""What a job remembers of its steps, for people: what stands in secrets is masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ForkqError, InvalidJob, WrongType
from ...features.steps.parts import RememberedStep, read_all
from ...servers import Server, Servers, first_found
from ..door import servers as all_servers
from ..entry import JobEntry
from ..find import entry
from ..masks import MASK, has_secrets, masked, parameters_of


@dataclass(frozen=True, slots=True)
class JobStep:
    """One step that a job remembers. ``kind``: "step", "sleep" or "wait_for". ``at``: since when it
    is done, or goes on; ``until``: when a sleep, or a wait that goes on, is over (epoch seconds; 0:
    it is none). ``value``: what it has returned, or the data of its signal. ``problem``: why there
    is none, "" if there is one; ``timed_out``: no signal has come. ``event``: the event and the key
    for which a wait waits."""

    name: str
    kind: str
    at: float
    until: float
    value: Any
    problem: str
    timed_out: bool
    event: str = ""


def job_steps(jid: str, where: Server | Servers | None = None) -> list[JobStep]:
    """What a job remembers of its steps, in the order in which they were done; empty if it
    remembers none. The values of a job that has secret arguments, or is nowhere, are masked, and so
    are secrets in those of another one. Raises ServerUnavailable, and ForkqError for what is no
    memory of steps."""
    return first_found(where or all_servers(), lambda server: _on(server, jid)) or []


def steps_of(job: JobEntry) -> list[JobStep]:
    """``job_steps`` of a job that was found."""
    reply = _read(job.server, job.jid)
    return _steps(reply, job.server, job) if reply else []


def _on(server: Server, jid: str) -> list[JobStep] | None:
    reply = _read(server, jid)
    return _steps(reply, server, entry(jid, server)) if reply else None


def _read(server: Server, jid: str) -> dict[str, RememberedStep]:
    try:
        [reply] = server.ask(("HGETALL", server.keys.steps(jid)))
        return read_all(reply) if reply else {}
    except (InvalidJob, WrongType) as error:
        raise ForkqError(f"the steps of {jid} cannot be read: {error}") from None


def _steps(found: dict[str, RememberedStep], server: Server, job: JobEntry | None) -> list[JobStep]:
    hides = job is None or has_secrets(parameters_of(server, job.name))
    return [_step(name, one, hides=hides) for name, one in found.items()]


def _step(name: str, found: RememberedStep, *, hides: bool) -> JobStep:
    value = found.value if found.signal is None else found.signal.data
    if value is not None:
        value = MASK if hides else masked(value)
    known = (found.at, found.until, value, found.problem)
    return JobStep(name, found.kind, *known, found.timed_out, found.event)
