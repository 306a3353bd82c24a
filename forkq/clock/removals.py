"""Ending jobs where they wait, for the tasks of the leader's clock that find them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from ..cron import history
from ..features.effects import Effect, jid_of, name_of, packed
from ..features.marked import EndOutcome
from ..store.connection import RedisConnection
from ..store.scripts import CRON_ENDED, JOBS_MOVE
from ..wire.keys import Keys
from ..wire.payload import KEY, Payload

_REMOVED: Final = 1  # the answer of jobs_move.lua for a job that was still there


class Removal(NamedTuple):
    """A job that ends: its payload, the job in it, and what must happen together with its end."""

    payload: bytes
    job: Payload
    effects: Sequence[Effect]


def remove(
    connection: RedisConnection,
    keys: Keys,
    source: str | bytes,
    place: Sequence[Any],
    outcome: EndOutcome | Literal[""],
    jobs: Sequence[Removal],
) -> int:
    """Ends these jobs with this outcome ("": they are replaced, and counted as that already).
    Returns how many were still there. ``source``: the key of the set or list in which they stand;
    ``place``: the arguments of jobs_move.lua that say where there."""
    names, arguments = keys.of_moves(source), list(place)
    for payload, job, effects in jobs:
        asked = packed(effects, names, keys.totals("ends"))
        arguments += (payload, f"0 {asked}", outcome, "", name_of(job))
    answers = connection.script(JOBS_MOVE, names, arguments)
    ended = [one.job for one, answer in zip(jobs, answers, strict=False) if answer == _REMOVED]
    _note_ticks(connection, keys, ended, outcome or "replaced")
    return len(ended)


def _note_ticks(
    connection: RedisConnection, keys: Keys, ended: Iterable[Payload], outcome: EndOutcome
) -> None:
    """Notes in the history of periodic jobs how those of these jobs ended that a tick has pushed.
    If the connection is lost meanwhile the history lacks a line, as it may lack that of a child."""
    for job in ended:
        marks, jid = job.get(KEY), jid_of(job)
        name = marks.get("cron") if isinstance(marks, dict) else None
        if type(name) is str and jid:
            line = history.line(outcome, jid=jid)
            arguments = (name, jid, line, history.KEEP, history.EXPIRES)
            connection.script(CRON_ENDED, (keys.cron_pending, keys.cron_runs(name)), arguments)
