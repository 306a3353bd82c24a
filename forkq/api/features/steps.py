"""What a job remembers of its steps, for people: what stands in secrets is masked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ...errors import ForkqError, InvalidJob, WrongType
from ...features.steps.parts import RememberedStep, event_in, read_all, since_in
from ...servers import Server, Servers, first_found
from ...wire.marks import KEY, needs_in
from ..door import servers as all_servers
from ..entry import JobEntry
from ..find import entry
from ..job_sets import ScheduledSet
from ..masks import MASK, has_secrets, masked, parameters_of

_MOST_LOOKED_AT: Final = 10_000  # scheduled jobs


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


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that waits for a signal: for the ``event`` with its key, ``since`` then (epoch seconds;
    0: no signal wakes it, it goes on at its time-out), and ``until`` then at the latest."""

    jid: str
    job: str
    queue: str
    event: str
    since: float
    until: float
    shard: str


def waiting_jobs(
    where: Server | Iterable[Server] | None = None, most: int = 1000
) -> list[WaitingJob]:
    """The jobs that wait for signals, those first whose time-out comes first: at most ``most`` of
    each server, among the 10,000 scheduled jobs that are due first. Raises ServerUnavailable."""
    servers = where or all_servers()
    each = (servers,) if isinstance(servers, Server) else servers
    found = (one for server in each for one in _waiting_on(server, most))
    return sorted(found, key=lambda one: one.until)


def _waiting_on(server: Server, most: int) -> list[WaitingJob]:
    entries = [
        (job, event)
        for job in islice(ScheduledSet(server).scan(), _MOST_LOOKED_AT)
        if (event := event_in(needs_in(job.job.get(KEY))))
    ][:most]
    asked = [("HGET", server.keys.event(event), job.jid) for job, event in entries]
    since = server.ask_leniently(*asked) if asked else []
    return [
        WaitingJob(
            *(job.jid, job.name, job.queue, event),
            (since_in(raw) if raw else None) or 0.0,
            *(job.score, server.name),
        )
        for (job, event), raw in zip(entries, since, strict=True)
    ]
