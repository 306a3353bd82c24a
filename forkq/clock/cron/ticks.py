"""Which ticks of an entry the clock must enqueue now, and which it has missed. No effects here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from ...cron.entry import Entry, Schedule

# A tick that is late by no more than this many seconds is enqueued under every policy, so that a
# change of leader loses no tick.
_GRACE: Final = 60.0
# A note of missed ticks counts no more than this many.
_MOST_COUNTED: Final = 1000


class EntryTicks:
    """An entry, the ``last`` tick of it that was enqueued, skipped or noted as missed, and when the
    next one is ``due`` (epoch seconds; None: never)."""

    def __init__(self, entry: Entry, last: int) -> None:
        self.entry = entry
        self.advance(last)

    def advance(self, last: int) -> None:
        """Makes ``last`` the last tick."""
        self.last = last
        tick = self.entry.schedule.after(last)
        self.due = None if tick is None else due(self.entry, tick)


class Enqueue(msgspec.Struct, frozen=True):
    """Step: enqueue a job for ``tick``."""

    tick: int


class Miss(msgspec.Struct, frozen=True):
    """Step: note that the ticks from ``since`` to ``tick`` were missed: ``count`` of them; None if
    they are too many to count."""

    tick: int
    since: int
    count: int | None


Step: TypeAlias = Enqueue | Miss


def due(entry: Entry, tick: int) -> float:
    """The time at which ``tick`` is to be enqueued: at its time plus the entry's jitter, but not
    after the time of the next tick, so that ticks keep their order."""
    if not entry.jitter:
        return float(tick)
    following = entry.schedule.after(tick)
    late = entry.due(tick)
    return late if following is None else min(late, float(following))


def steps(entry: Entry, last: int, now: float) -> Iterator[Step]:
    """The steps for ``entry`` at ``now``, oldest tick first, if ``last`` was its last tick.

    The work is bounded, however long ago ``last`` was: years of an entry that ticks every second
    take no longer than ``entry.missed`` ticks and those of the grace period.
    """
    missed, recent = _missed_and_recent(entry, last, now)
    enqueued_late = missed[-entry.missed :] if entry.missed else []
    left_out = missed[: len(missed) - len(enqueued_late)]
    if left_out:
        yield _miss(entry.schedule, last, left_out[-1])
    for tick in (*enqueued_late, *recent):
        yield Enqueue(tick)


def _missed_and_recent(entry: Entry, last: int, now: float) -> tuple[list[int], list[int]]:
    """The latest missed ticks, and the due ticks of the grace period. If more ticks were missed
    than are enqueued late, there are more in the first list, too."""
    edge = now - _GRACE
    missed = latest(entry.schedule, last, edge, entry.missed + 2)
    recent = entry.schedule.ticks(max(last, edge), now, int(_GRACE) + 1)
    if missed and due(entry, missed[-1]) >= edge:
        recent.insert(0, missed.pop())  # its jitter made it due within the grace period
    return missed, [tick for tick in recent if due(entry, tick) <= now]


def latest(schedule: Schedule, after: float, until: float, most: int) -> list[int]:
    """The latest ``most`` ticks later than ``after`` and not later than ``until``.

    Halves the time span until it holds neither too few nor too many ticks.
    """
    if until <= after:
        return []
    enough = 2 * most + 2
    too_early, too_late, start = after, until, after
    while True:
        found = schedule.ticks(start, until, enough)
        if len(found) == enough:
            too_early = start
        elif len(found) >= most or start == after:
            return found[-most:]
        else:
            too_late = start
        start = (too_early + too_late) / 2


def _miss(schedule: Schedule, last: int, tick: int) -> Miss:
    found = schedule.ticks(last, tick, _MOST_COUNTED + 1)
    return Miss(tick, found[0], len(found) if len(found) <= _MOST_COUNTED else None)
