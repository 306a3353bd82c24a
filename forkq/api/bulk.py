"""Acting on many jobs of a set or a queue, in short steps, and putting back what was deleted so."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, NamedTuple, TypeAlias

from ..errors import ForkqError, InvalidJob, MalformedPayload, ServerUnavailable
from ..features.effects import packed
from ..features.marked import effects_of_undo
from ..servers import Server, Servers, first_found
from ..store.scripts import JOBS_RESTORE
from ..values import replace
from ..wire.times import now
from .changes import (
    DELETED,
    DONE,
    GONE,
    LOST,
    REFUSED,
    UNDO_TIME,
    UNKNOWN,
    UNLOCKED,
    Change,
    Kept,
    Near,
    apply,
    killed,
    source_key,
)
from .door import servers as all_servers
from .entry import JobEntry
from .filters import Filter
from .pages import PAGE, ListPages, Pages

# To remove entries from the middle of a list, Redis reads it from its nearer end on, and walks to
# each of them, over many entries at a time. From this depth on that reading is what costs, so the
# jobs of many pages are removed together: so many, of so many bytes, among so many entries.
_DEEP: Final = 5_000
_MOST_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 256 << 10
_MOST_AMONG: Final = 20_000
# An entry that is looked for everywhere is removed by itself: so many entries are read in one step.
_MOST_READ: Final = 20_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action on many jobs has done so far; at its end, what it did in all.

    ``total`` jobs were there when it began, and ``seen`` of them have been looked at. ``matched``
    of those passed the filter: ``done`` were acted on, ``gone`` had already left (another person,
    or a clock, was faster), ``refused`` could not be acted on because their payload is no job that
    can run. A dry run only counts ``matched``. Of those that are done, ``unlocked`` run without
    their lock (``unique_for``): another job has it.

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
    unlocked: int = 0


# Called after each batch with what was done so far.
OnProgress: TypeAlias = "Callable[[Outcome], object]"

# What to do with a job, at that epoch second. Raises MalformedPayload or InvalidJob if that cannot
# be done with it.
Decide: TypeAlias = "Callable[[JobEntry, float], Change]"


# Payloads, and where they go.
_Made: TypeAlias = "list[tuple[bytes, Change]]"


@dataclass(frozen=True, slots=True)
class Orders:
    """How an action is to be done: the arguments that ``JobSet.delete_all`` takes."""

    where: Filter
    dry_run: bool = False
    most: int | None = None
    progress: OnProgress | None = None
    undo: bool = False
    # Jobs of this queue are left out.
    not_in: str | None = None
    # Under which name what is deleted is kept; "": one that is made for this action.
    token: str = ""


def act(pages: Pages, decide: Decide, orders: Orders) -> Outcome:
    """Does what ``decide`` says with each job that is meant, of those that are there when it
    begins. Raises ServerUnavailable, with the outcome so far."""
    action = _Action(pages, decide, orders)
    try:
        while not action.is_over and (page := pages.next()):
            action.take(page)
        action.finish()
    except ServerUnavailable as error:
        error.outcome = action.outcome
        raise
    return action.outcome if action.outcome.done else replace(action.outcome, undo="")


def act_on_each(several: Sequence[Pages], decide: Decide, orders: Orders) -> Outcome:
    """``act`` on what several servers have, one after the other, as one action."""
    done, token = Outcome(), secrets.token_hex(8) if orders.undo else ""
    for pages in several:
        left = None if orders.most is None else orders.most - done.matched
        told = None if orders.progress is None else partial(_tell, orders.progress, done)
        try:
            part = act(pages, decide, replace(orders, most=left, progress=told, token=token))
        except ServerUnavailable as error:
            error.outcome = together(done, error.outcome or Outcome())
            raise
        done = together(done, part)
    return done


def _tell(progress: OnProgress, before: Outcome, part: Outcome) -> None:
    progress(together(before, part))


def together(one: Outcome, other: Outcome) -> Outcome:
    """The outcome of two actions as one."""
    counts = ("total", "seen", "matched", "done", "gone", "refused", "unlocked")
    sums = {name: getattr(one, name) + getattr(other, name) for name in counts}
    return Outcome(**sums, undo=one.undo or other.undo)


class _Action:
    """One action on the jobs of ``pages``."""

    def __init__(self, pages: Pages, decide: Decide, orders: Orders) -> None:
        self._pages, self._decide, self._orders = pages, decide, orders
        self._begun = pages.server.now()
        self._token = orders.token or (secrets.token_hex(8) if orders.undo else "")
        self._steps = 0
        self._moments: set[float] = set()
        # Jobs deep in a list that are removed together, their bytes, and among how many they are.
        self._waiting: list[JobEntry] = []
        self._waiting_bytes = self._among = 0
        self.outcome = Outcome(total=pages.end_at_last())

    @property
    def is_over(self) -> bool:
        """Whether it has acted on as many jobs as it may."""
        return self.outcome.matched == self._orders.most

    def take(self, page: list[JobEntry]) -> None:
        """Acts on the entries of a page that are meant."""
        if isinstance(self._pages, ListPages) and self._pages.near.among < self._among + len(page):
            self._forget_waiting()
        left = None if self._orders.most is None else self._orders.most - self.outcome.matched
        meant = [entry for entry in page if self._means(entry)][:left]
        self._add(seen=len(page), matched=len(meant))
        if not self._orders.dry_run:
            self._waiting += meant
            self._waiting_bytes += sum(len(entry.raw) for entry in meant)
        self._among += len(page)
        if self._is_enough(page[-1]):
            self.finish()
        if self._orders.progress is not None:
            self._orders.progress(self.outcome)

    def finish(self) -> None:
        """Acts on the entries that wait for others to be acted on together."""
        removed = set[bytes]()
        for alone, entries in groupby(self._waiting, key=lambda entry: entry.among_suspects):
            removed |= self._change(list(entries), alone=alone)
        self._pages.removed(removed)
        self._waiting, self._waiting_bytes, self._among = [], 0, 0

    def _forget_waiting(self) -> None:
        """Forgets the entries that wait: the reading has started anew at the end of the list, and
        those that are still there come again."""
        self._add(matched=-len(self._waiting))
        self._waiting, self._waiting_bytes, self._among = [], 0, 0

    def _is_enough(self, last: JobEntry) -> bool:
        """Whether the entries that wait are acted on now: at once where that costs little."""
        return (
            self._pages.depth < _DEEP
            or last.among_suspects
            or len(self._waiting) >= _MOST_AT_ONCE
            or self._waiting_bytes >= _BYTES_AT_ONCE
            or self._among >= _MOST_AMONG
        )

    def _means(self, entry: JobEntry) -> bool:
        """Whether the action is about this entry: the filter names it, it is not in the queue that
        is left out, and it is no job that this action has sent to its queue and that has failed
        meanwhile."""
        return (
            entry.enqueued_at not in self._moments
            and entry.queue != self._orders.not_in
            and self._orders.where.matches(entry, self._begun)
        )

    def _change(self, entries: list[JobEntry], *, alone: bool) -> set[bytes]:
        """Acts on these entries. They are among the suspects of a queue if they run ``alone``.
        Returns what is no longer where it was."""
        moment = now()
        self._moments.add(moment)
        made = [(e.raw, change) for e in entries if (change := self._decided(e, moment))]
        self._add(refused=len(entries) - len(made))
        if isinstance(self._pages, ListPages):
            return self._step(made, self._pages.near, alone=alone)
        removed, size = set[bytes](), max(1, _MOST_READ // (self._pages.depth + 1))
        for start in range(0, len(made), size):
            removed |= self._step(made[start : start + size], UNKNOWN, alone=alone)
        return removed

    def _step(self, made: _Made, near: Near, *, alone: bool) -> set[bytes]:
        """Does one step. Returns the payloads that have left. What is deleted can be put back from
        before the step is sent on: its reply may be lost."""
        if not made:
            return set()
        self.outcome = replace(self.outcome, undo=self._token)
        kept = Kept(self._token, self._steps) if self._token else None
        self._steps += 1
        pages = self._pages
        results = apply(
            pages.server, pages.location, pages.queue, made, kept, near, among_suspects=alone
        )
        self._count(results)
        pairs = zip(made, results, strict=True)
        return {raw for (raw, _), result in pairs if result in (DONE, UNLOCKED, GONE)}

    def _decided(self, entry: JobEntry, moment: float) -> Change | None:
        try:
            return self._decide(entry, moment)
        except (MalformedPayload, InvalidJob):
            return None

    def _count(self, results: list[int]) -> None:
        """What is lost comes again: the reading begins again at the end of the list."""
        done, gone, refused, lost = map(results.count, (DONE, GONE, REFUSED, LOST))
        unlocked = results.count(UNLOCKED)
        self._add(
            done=done + unlocked, gone=gone, refused=refused, matched=-lost, unlocked=unlocked
        )

    def _add(self, **more: int) -> None:
        sums = {name: getattr(self.outcome, name) + count for name, count in more.items()}
        self.outcome = replace(self.outcome, **sums)


def read_jobs(
    entries: Iterable[JobEntry], orders: Orders, total: int, enough: int
) -> tuple[Outcome, list[JobEntry]]:
    """Reads the jobs of an action that needs to know them all before it begins, and no more than
    one beyond ``enough``. A dry run counts them all, and returns none. A job without an id is
    refused."""
    outcome, found = Outcome(total=total), list[JobEntry]()
    for entry in islice(entries, orders.most):
        named = bool(entry.jid)
        counts = (outcome.matched + 1, outcome.refused + (not named))
        outcome = replace(outcome, seen=counts[0], matched=counts[0], refused=counts[1])
        if named and not orders.dry_run:
            found.append(entry)
        if orders.progress is not None and outcome.matched % PAGE == 0:
            orders.progress(outcome)
        if len(found) > enough:
            break
    return replace(outcome, seen=total, done=len(found)), found


def delete(entry: JobEntry, moment: float) -> Change:
    """The change that deletes the job."""
    return DELETED


def kill(entry: JobEntry, moment: float) -> Change:
    """The change that moves the job to the dead set."""
    return killed(entry.raw, entry.job, entry.queue, entry.malformed, moment)


def undo(
    token: str, *, progress: OnProgress | None = None, where: Server | Servers | None = None
) -> Outcome:
    """Puts back the jobs that were deleted under ``token``, with their times: into their set, or
    to the end of their queue that is fetched next, suspects among its suspects; those of a spread
    queue into the parts that they came from. A second call finds nothing to do.

    Raises ForkqError if Redis keeps nothing under this token: the time is over, or they
    were put back. Raises ServerUnavailable.
    """
    kept = first_found(where or all_servers(), lambda server: _kept(server, token))
    if kept is None:
        raise ForkqError(
            f"nothing is kept under {token!r}: the {UNDO_TIME} are over, or it was put back"
        )
    done = _restore(token, kept, progress)
    for more in filter(None, (_kept(server, token) for server in kept.other_parts())):
        told = None if progress is None else partial(_tell, progress, done)
        done = together(done, _restore(token, more, told))
    return done


class _Deleted(NamedTuple):
    """What was deleted under one token; Redis keeps it for a while: which one, from where,
    and in how many lists."""

    server: Server
    place: str
    lists: int

    def other_parts(self) -> list[Server]:
        """The servers with the other parts of a spread queue."""
        location, _, queue = self.place.partition(" ")
        if location != "queued" or len(self.server.parts_of(queue)) == 1:
            return []
        return [one for one in all_servers().parts_of(queue) if one.name != self.server.name]


def _kept(server: Server, token: str) -> _Deleted | None:
    [(place, lists)] = server.ask(("HMGET", server.keys.undo(token), "from", "lists"))
    return None if None in (place, lists) else _Deleted(server, place.decode(), int(lists))


def _restore(token: str, kept: _Deleted, progress: OnProgress | None) -> Outcome:
    location, _, queue = kept.place.partition(" ")
    names, outcome = kept.server.keys, Outcome()
    for number in reversed(range(kept.lists)):
        here = names.undo_list(token, number)
        count, without = _restore_list(kept.server, here, location, queue)
        part = Outcome(count, count, count, count, unlocked=without)
        outcome = together(outcome, part)
        if progress is not None:
            progress(outcome)
    kept.server.ask(("DEL", names.undo(token)))
    return outcome


def _restore_list(server: Server, kept: str, location: Any, queue: str) -> tuple[int, int]:
    """Puts back what one list keeps. Returns how many jobs, and how many of them have no lock."""
    keys = server.keys
    kind = "list" if location == "queued" else "set"
    fixed = [kept, source_key(keys, location, queue), keys.queues]
    fixed += [keys.suspects(queue), keys.suspected, keys.marked]
    count = -1
    while count < 0:  # the list has changed since it was read
        [found] = server.ask(("LRANGE", kept, 0, -1))
        names, ends = [*fixed], keys.totals("ends")
        is_dead = location == "dead"
        jobs = (effects_of_undo(keys, raw, is_dead=is_dead) for raw in found[1::2])
        asked = [packed(effects, names, ends) for effects in jobs]
        count, unlocked = server.run(JOBS_RESTORE, names, (kind, queue, len(found), *asked))
    return int(count), int(unlocked)
