"""How far an iterable job has come, for people: a cursor that may be secret is masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ForkqError, InvalidJob, WrongType
from ...features.iterable.parts import Iteration, read
from ...servers import Server, Servers, first_found
from ...wire.lease import seconds_left
from ..door import servers as all_servers
from ..entry import JobEntry
from ..find import entry
from ..masks import MASK, has_secrets, masked, parameters_of


@dataclass(frozen=True, slots=True)
class JobIteration:
    """How far an iterable job had come when that was saved last: while it runs, at most five
    seconds ago. ``cursor`` is where it goes on, None: at the beginning; ``runs``: how many have
    begun, and ``seconds`` for how long they ran; ``items``: how many those of forkq have done.
    ``done`` of ``total`` is its progress, None if that is not known, as after a run of Sidekiq.
    ``cancelled``: whether it is to end."""

    cursor: Any
    runs: int
    seconds: float
    items: int
    done: float | None
    total: float | None
    cancelled: bool

    @property
    def seconds_left(self) -> float | None:
        """For how many seconds it has to run yet, as fast as before; None if that is not known."""
        return seconds_left(self.done, self.total, self.seconds)


def iteration(jid: str, where: Server | Servers | None = None) -> JobIteration | None:
    """How far an iterable job has come; None if it has no cursor: it has not run for five seconds,
    has ended, or is none. The cursor of a job that has secret arguments, or is nowhere, is masked.
    Raises ServerUnavailable, and ForkqError for what is no cursor."""

    def look(server: Server) -> JobIteration | None:
        found = _saved(server, jid)
        return None if found is None else _shown(found, server, entry(jid, server))

    return first_found(where or all_servers(), look)


def iteration_of(job: JobEntry) -> JobIteration | None:
    """``iteration`` of a job that was found."""
    found = _saved(job.server, job.jid)
    return None if found is None else _shown(found, job.server, job)


def _saved(server: Server, jid: str) -> Iteration | None:
    try:
        [reply] = server.ask(("HGETALL", server.keys.iteration(jid)))
        return read(reply) if reply else None
    except (InvalidJob, WrongType) as error:
        raise ForkqError(f"how far {jid} has come cannot be read: {error}") from None


def _shown(found: Iteration, server: Server, job: JobEntry | None) -> JobIteration:
    done, total = found.place or (None, None)
    hides = job is None or has_secrets(parameters_of(server, job.name))
    cursor = MASK if hides and found.cursor is not None else masked(found.cursor)
    known = (cursor, found.runs, found.seconds, found.items)
    return JobIteration(*known, done, total, cancelled=found.cancelled)
