"""Deleted jobs are put back: for ten minutes Redis keeps those that were deleted with ``undo``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from ..default_client import default
from ..errors import ForkqError
from ..sharded_client import chosen, on
from ..store.scripts import JOBS_RESTORE
from .changes import source_key
from .outcome import OnProgress, Outcome
from .query import ask, keys
from .shards import first_found


def undo(token: str, *, progress: OnProgress | None = None) -> Outcome:
    """Puts back the jobs that were deleted under ``token``, with their times: into their set, or
    to the end of their queue that is fetched next, suspects among its suspects. A second call finds
    nothing to do.

    Raises ForkqError if Redis keeps nothing under this token: the ten minutes are over, or they
    were put back. Raises ServerUnavailable.
    """
    kept = first_found(lambda: _kept(token))
    if kept is None:
        raise ForkqError(
            f"nothing is kept under {token!r}: the ten minutes are over, or it was put back"
        )
    with on(kept.shard):
        return _put_back(token, kept, progress)


class _Kept(NamedTuple):
    """What was deleted under one token: on which shard, from where, and in how many lists."""

    shard: str
    place: str
    lists: int


def _kept(token: str) -> _Kept | None:
    [(place, lists)] = ask(("HMGET", keys().undo(token), "from", "lists"))
    return None if None in (place, lists) else _Kept(chosen(), place.decode(), int(lists))


def _put_back(token: str, kept: _Kept, progress: OnProgress | None) -> Outcome:
    location, _, queue = kept.place.partition(" ")
    outcome = Outcome()
    for number in reversed(range(kept.lists)):
        count = _restored(keys().undo_list(token, number), location, queue)
        seen = outcome.seen + count
        outcome = replace(outcome, total=seen, seen=seen, matched=seen, done=outcome.done + count)
        if progress is not None:
            progress(outcome)
    ask(("DEL", keys().undo(token)))
    return outcome


def _restored(kept: str, location: Any, queue: str) -> int:
    names = [kept, source_key(location, queue), keys().queues]
    kind = "set"
    if location == "queued":
        kind, names = "list", [*names, keys().suspects(queue), keys().suspected]
    with default().connection() as connection:
        return int(connection.script(JOBS_RESTORE, names, (kind, queue)))
