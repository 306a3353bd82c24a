"""Which ticks of an entry are to be enqueued now, and which have been missed. No effects here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...cron.entry import Entry, Schedule

# A tick that is late by no more than this many seconds is enqueued whatever the policy says: a
# leader was replaced, and nobody should notice.
_GRACE: Final = 60.0
# More missed ticks than this are not worth counting.
_COUNTED: Final = 1000


class Timed:
    """An entry, the ``last`` tick of it that was dealt with, and when the next one is ``due``
    (epoch seconds; None: never)."""

    def __init__(self, entry: Entry, last: int) -> None:
        self.entry = entry
        self.stands(last)

    def stands(self, last: int) -> None:
        """``last`` has been dealt with."""
        self.last = last
        tick = self.entry.schedule.after(last)
        self.due = None if tick is None else due(self.entry, tick)


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Enqueue a job for ``tick``."""

    tick: int


@dataclass(frozen=True, slots=True)
class Miss:
    """Note that the ticks from ``since`` to ``tick`` were missed: ``count``, or too many to say."""

    tick: int
    since: int
    count: int | None


def due(entry: Entry, tick: int) -> float:
    """When ``tick`` is to be enqueued: at its time and the entry's jitter, but never after the next
    one's time, so that ticks keep their order."""
    if not entry.jitter:
        return float(tick)
    following = entry.schedule.after(tick)
    late = entry.due(tick)
    return late if following is None else min(late, float(following))


def steps(entry: Entry, last: int, now: float) -> Iterator[Enqueue | Miss]:
    """What is to be done at ``now``, oldest first, if ``last`` was the last tick dealt with.

    Bounded, however long ago that was: years of an entry that ticks every second take no longer
    than ``entry.missed`` ticks and a minute's.
    """
    old, recent = _parted(entry, last, now)
    made_up = old[-entry.missed :] if entry.missed else []
    left_out = old[: len(old) - len(made_up)]
    if left_out:
        yield _missed(entry.schedule, last, left_out[-1])
    for tick in (*made_up, *recent):
        yield Enqueue(tick)


def _parted(entry: Entry, last: int, now: float) -> tuple[list[int], list[int]]:
    """The latest missed ticks, more than are made up for if there are as many; and the ticks that
    are due and not too late."""
    edge = now - _GRACE
    old = latest(entry.schedule, last, edge, entry.missed + 2)
    recent = entry.schedule.ticks(max(last, edge), now, int(_GRACE) + 1)
    if old and due(entry, old[-1]) >= edge:
        recent.insert(0, old.pop())  # jitter made it due later than its time
    return old, [tick for tick in recent if due(entry, tick) <= now]


def latest(schedule: Schedule, after: float, until: float, most: int) -> list[int]:
    """The latest ``most`` ticks later than ``after`` and not later than ``until``.

    Found by halving the stretch until it holds neither too few nor too many.
    """
    if until <= after:
        return []
    enough = 2 * most + 2
    too_far, too_near, start = after, until, after
    while True:
        found = schedule.ticks(start, until, enough)
        if len(found) == enough:
            too_far = start
        elif len(found) >= most or start == after:
            return found[-most:]
        else:
            too_near = start
        start = (too_far + too_near) / 2


def _missed(schedule: Schedule, last: int, tick: int) -> Miss:
    found = schedule.ticks(last, tick, _COUNTED + 1)
    return Miss(tick, found[0], len(found) if len(found) <= _COUNTED else None)
