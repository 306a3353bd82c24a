"""Acting on many jobs of a set or a queue, in short steps, and putting back what was deleted so."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import ForkqError, InvalidJob, MalformedPayload, ServerUnavailable
from ..servers import Server, Servers, first_found
from ..store.scripts import JOBS_RESTORE
from ..wire.times import now
from .changes import (
    DELETED,
    DONE,
    GONE,
    REFUSED,
    UNDO_TIME,
    Change,
    Kept,
    apply,
    killed,
    source_key,
)
from .door import servers as all_servers
from .entry import JobEntry
from .filters import Filter
from .pages import ListPages, Pages

# Removing from the middle of a list, Redis reads all entries from the end on: so many at most in
# one step. Entries whose places are known are removed together: Redis reads once, and walks from
# the end to each, over many entries at a time.
_MOST_READ: Final = 20_000
_MOST_WALKED: Final = 2_000_000
_FEWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action on many jobs has done so far; at its end, what it did in all.

    ``total`` jobs were there when it began, and ``seen`` of them have been looked at. ``matched``
    of those passed the filter: ``done`` were acted on, ``gone`` had already left (another person,
    or a clock, was faster), ``refused`` could not be acted on because their payload is no job that
    can run. A dry run only counts ``matched``.

    ``undo`` is the token for ``undo``, if the deleted jobs can be put back; else "". If Redis is
    lost meanwhile, ServerUnavailable has the Outcome so far, with the token.
    """

    total: int = 0
    seen: int = 0
    matched: int = 0
    done: int = 0
    gone: int = 0
    refused: int = 0
    undo: str = ""


# Called after each batch with what was done so far.
OnProgress: TypeAlias = "Callable[[Outcome], object]"

# What to do with a job, at that epoch second. Raises MalformedPayload or InvalidJob if that cannot
# be done with it.
Decide: TypeAlias = "Callable[[JobEntry, float], Change]"


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


def act(pages: Pages, decide: Decide, orders: Orders) -> Outcome:
    """Does what ``decide`` says with each job that is meant, of those that are there when it
    begins. Raises ServerUnavailable, with the outcome so far."""
    action = _Action(pages, decide, orders)
    try:
        while not action.is_over and (page := pages.next()):
            action.take(page)
    except ServerUnavailable as error:
        error.outcome = action.outcome
        raise
    return action.outcome if action.outcome.done else replace(action.outcome, undo="")


class _Action:
    """One action on the jobs of ``pages``."""

    def __init__(self, pages: Pages, decide: Decide, orders: Orders) -> None:
        self._pages, self._decide, self._orders = pages, decide, orders
        self._begun = pages.server.now()
        self._token = secrets.token_hex(8) if orders.undo else ""
        self._steps = 0
        self._moments: set[float] = set()
        self.outcome = Outcome(total=pages.end_at_last())

    @property
    def is_over(self) -> bool:
        """Whether it has acted on as many jobs as it may."""
        return self.outcome.matched == self._orders.most

    def take(self, page: list[JobEntry]) -> None:
        """Acts on those of a page that are meant."""
        left = None if self._orders.most is None else self._orders.most - self.outcome.matched
        meant = [entry for entry in page if self._means(entry)][:left]
        self._add(seen=len(page), matched=len(meant))
        if not self._orders.dry_run:
            for part in _parts(self._pages, meant):
                self._change(part)
        if self._orders.progress is not None:
            self._orders.progress(self.outcome)

    def _means(self, entry: JobEntry) -> bool:
        """Not a job that this action has sent to its queue, and that has failed meanwhile."""
        return (
            entry.enqueued_at not in self._moments
            and entry.queue != self._orders.not_in
            and self._orders.where.matches(entry, self._begun)
        )

    def _change(self, entries: list[JobEntry]) -> None:
        """One step. What is deleted can be put back from before the step is sent on: its reply may
        be lost."""
        moment = now()
        self._moments.add(moment)
        made = [(e.raw, change) for e in entries if (change := self._decided(e, moment))]
        self._add(refused=len(entries) - len(made))
        if not made:
            return
        self.outcome = replace(self.outcome, undo=self._token)
        kept = Kept(self._token, self._steps) if self._token else None
        self._steps += 1
        pages = self._pages
        near = pages.near if isinstance(pages, ListPages) else (0, 0)
        alone = entries[0].among_suspects
        place = (pages.server, pages.location, pages.queue)
        results = apply(*place, made, kept, near, among_suspects=alone)
        self._count(results)
        pairs = zip(made, results, strict=True)
        pages.removed({raw for (raw, _), result in pairs if result == DONE})

    def _decided(self, entry: JobEntry, moment: float) -> Change | None:
        try:
            return self._decide(entry, moment)
        except (MalformedPayload, InvalidJob):
            return None

    def _count(self, results: list[int]) -> None:
        done, gone, refused = map(results.count, (DONE, GONE, REFUSED))
        self._add(done=done, gone=gone, refused=refused)

    def _add(self, **more: int) -> None:
        sums = {name: getattr(self.outcome, name) + count for name, count in more.items()}
        self.outcome = replace(self.outcome, **sums)


def _parts(pages: Pages, entries: list[JobEntry]) -> Iterator[list[JobEntry]]:
    """The entries in steps that do not delay the server's other clients; each step is about one
    list."""
    if isinstance(pages, ListPages):
        size = max(_FEWEST, _MOST_WALKED // (pages.depth + 1))
    else:
        size = max(1, _MOST_READ // (pages.depth + 1))
    for _, group in groupby(entries, key=lambda entry: entry.among_suspects):
        of_one = list(group)
        for start in range(0, len(of_one), size):
            yield of_one[start : start + size]


def delete(entry: JobEntry, moment: float) -> Change:
    """Deletes the job."""
    return DELETED


def kill(entry: JobEntry, moment: float) -> Change:
    """Moves the job to the dead set."""
    return killed(entry.raw, entry.job, entry.queue, entry.malformed, moment)


def undo(
    token: str, *, progress: OnProgress | None = None, where: Server | Servers | None = None
) -> Outcome:
    """Puts back the jobs that were deleted under ``token``, with their times: into their set, or
    to the end of their queue that is fetched next, suspects among its suspects. A second call finds
    nothing to do.

    Raises ForkqError if Redis keeps nothing under this token: the time is over, or they
    were put back. Raises ServerUnavailable.
    """
    kept = first_found(where or all_servers(), lambda server: _kept(server, token))
    if kept is None:
        raise ForkqError(
            f"nothing is kept under {token!r}: the {UNDO_TIME} are over, or it was put back"
        )
    return _restore(token, kept, progress)


class _Deleted(NamedTuple):
    """What was deleted under one token; Redis keeps it for a while: which one, from where,
    and in how many lists."""

    server: Server
    place: str
    lists: int


def _kept(server: Server, token: str) -> _Deleted | None:
    [(place, lists)] = server.ask(("HMGET", server.keys.undo(token), "from", "lists"))
    return None if None in (place, lists) else _Deleted(server, place.decode(), int(lists))


def _restore(token: str, kept: _Deleted, progress: OnProgress | None) -> Outcome:
    location, _, queue = kept.place.partition(" ")
    names, outcome = kept.server.keys, Outcome()
    for number in reversed(range(kept.lists)):
        count = _restore_list(kept.server, names.undo_list(token, number), location, queue)
        seen = outcome.seen + count
        outcome = replace(outcome, total=seen, seen=seen, matched=seen, done=outcome.done + count)
        if progress is not None:
            progress(outcome)
    kept.server.ask(("DEL", names.undo(token)))
    return outcome


def _restore_list(server: Server, kept: str, location: Any, queue: str) -> int:
    keys = server.keys
    names = [kept, source_key(keys, location, queue), keys.queues]
    kind = "set"
    if location == "queued":
        kind, names = "list", [*names, keys.suspects(queue), keys.suspected]
    return int(server.run(JOBS_RESTORE, names, (kind, queue)))
