"""The time that forkq tells, held still by a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..wire import times
from ..wire.times import Moment


class FrozenTime:
    """The time of forkq in the block of ``freeze_time``: it moves when the test says so."""

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return times.now()

    def move(self, moment: Moment) -> None:
        """Moves it: by so many seconds or a timedelta, or to epoch seconds or an aware datetime.
        Nothing runs by that: ``drain`` then runs what is due."""
        times.freeze(times.due(moment))


@contextmanager
def freeze_time(moment: Moment | None = None) -> Iterator[FrozenTime]:
    """Holds the time that forkq tells still at ``moment``, as ``FrozenTime.move`` takes it; None:
    at this one. ``drain`` then runs only what is due, so a test lets the sleep of a job, a retry or
    a scheduled job wait, and pass::

        with forkq.testing.freeze_time() as time:
            jobs.drain()
            time.move(timedelta(days=3))
            jobs.drain()

    What the app asks of ``time.time()`` and ``datetime.now()`` is not held still.
    """
    with times.kept():
        times.freeze(times.now() if moment is None else times.due(moment))
        yield FrozenTime()
