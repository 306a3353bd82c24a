"""Deleted jobs are put back: for ten minutes Redis keeps those that were deleted with ``undo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..default_client import default
from ..errors import ForkqError
from ..store.scripts import JOBS_RESTORE
from .changes import source_key
from .outcome import OnProgress, Outcome
from .query import ask, keys


def undo(token: str, *, progress: OnProgress | None = None) -> Outcome:
    """Puts back the jobs that were deleted under ``token``, with their times: into their set, or
    to the end of their queue that is fetched next. A second call finds nothing to do.

    Raises ForkqError if Redis keeps nothing under this token: the ten minutes are over, or they
    were put back. Raises ServerUnavailable.
    """
    [kept] = ask(("HMGET", keys().undo(token), "from", "lists"))
    if None in kept:
        raise ForkqError(
            f"nothing is kept under {token!r}: the ten minutes are over, or it was put back"
        )
    location, _, queue = kept[0].decode().partition(" ")
    outcome = Outcome()
    for number in reversed(range(int(kept[1]))):
        count = _restored(keys().undo_list(token, number), location, queue)
        seen = outcome.seen + count
        outcome = replace(outcome, total=seen, seen=seen, matched=seen, done=outcome.done + count)
        if progress is not None:
            progress(outcome)
    ask(("DEL", keys().undo(token)))
    return outcome


def _restored(kept: str, location: Any, queue: str) -> int:
    names: Sequence[str] = (kept, source_key(location, queue), keys().queues)
    kind = "list" if location == "queued" else "set"
    with default().connection() as connection:
        return int(connection.script(JOBS_RESTORE, names, (kind, queue)))
