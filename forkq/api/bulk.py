"""Acting on many jobs of a set or a queue, in short steps."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ..errors import InvalidJob, MalformedPayload
from .changes import DELETED, DONE, GONE, REFUSED, Change, Kept, apply, killed
from .entry import JobEntry
from .filters import Filter
from .outcome import OnProgress, Outcome
from .pages import Pages
from .query import server_now

# Removing from the middle of a list, Redis reads all entries from the end on: so many at most in
# one step.
_MOST_READ: Final = 20_000

# What to do with a job. Raises MalformedPayload or InvalidJob if that cannot be done with it.
Decide: TypeAlias = "Callable[[JobEntry], Change]"


@dataclass(frozen=True, slots=True)
class Orders:
    """How an action is to be done; the arguments are those of ``JobSet.delete_all``."""

    where: Filter
    dry_run: bool = False
    most: int | None = None
    progress: OnProgress | None = None
    undo: bool = False
    # Jobs of this queue are left out.
    not_in: str | None = None


def act(pages: Pages, total: int, decide: Decide, orders: Orders) -> Outcome:
    """Does what ``decide`` says with each job that is meant. A job that comes to the set or the
    queue meanwhile, such as one that was retried and has failed again, is left out."""
    begun = server_now()
    token = secrets.token_hex(8) if orders.undo and not orders.dry_run else ""
    outcome, number = Outcome(total=total, undo=token), 0
    while page := pages.next():
        old = [entry for entry in page if (entry.since or 0.0) <= begun]
        meant = [entry for entry in old if _is_meant(entry, orders, begun)]
        if orders.most is not None:
            meant = meant[: orders.most - outcome.matched]
        outcome = replace(
            outcome, seen=outcome.seen + len(page), matched=outcome.matched + len(meant)
        )
        if not orders.dry_run:
            for part in _parts(pages, meant):
                kept = Kept(token, number) if token else None
                outcome = _do(pages, part, decide, outcome, kept)
                number += 1
        if orders.progress is not None:
            orders.progress(outcome)
        if outcome.matched == orders.most or not (
            old or pages.location in ("scheduled", "retrying")
        ):
            break
    return outcome if outcome.done else replace(outcome, undo="")


def _is_meant(entry: JobEntry, orders: Orders, begun: float) -> bool:
    return entry.queue != orders.not_in and orders.where.matches(entry, begun)


def _parts(pages: Pages, entries: list[JobEntry]) -> Iterator[list[JobEntry]]:
    """The entries in steps that do not delay the server's other clients."""
    size = max(1, _MOST_READ // (pages.depth + 1))
    for start in range(0, len(entries), size):
        yield entries[start : start + size]


def _do(
    pages: Pages, entries: list[JobEntry], decide: Decide, outcome: Outcome, kept: Kept | None
) -> Outcome:
    """One step; the outcome with it."""
    made = [(entry.raw, change) for entry in entries if (change := _decided(decide, entry))]
    results = apply(pages.location, pages.queue, made, kept) if made else []
    done = results.count(DONE)
    pages.removed({raw for (raw, _), result in zip(made, results, strict=True) if result == DONE})
    refused = len(entries) - len(made) + results.count(REFUSED)
    return replace(
        outcome,
        done=outcome.done + done,
        gone=outcome.gone + results.count(GONE),
        refused=outcome.refused + refused,
    )


def _decided(decide: Decide, entry: JobEntry) -> Change | None:
    try:
        return decide(entry)
    except (MalformedPayload, InvalidJob):
        return None


def delete(entry: JobEntry) -> Change:
    """Deletes the job."""
    return DELETED


def kill(entry: JobEntry) -> Change:
    """Moves the job to the dead set."""
    return killed(entry.raw, entry.queue, entry.malformed)
