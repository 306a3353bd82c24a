"""A task of the leader's clock: when the clock runs it, and when it reads Redis for it."""

from __future__ import annotations

import math
import time
from typing import Final, Literal, Protocol, TypeAlias

from ..store.connection import ConnectionLost, RedisError, refused
from ..store.outage import Backoff, Outage
from ..wire.times import now
from .tracking import ChangedKeys

# All in seconds. A server may report thousands of changes a second; the clock reads only so often.
_SHORTEST_INTERVAL: Final = 0.01
# How often the clock reads where the server reports no changes.
_POLL: Final = 1.0

# Whether a task must read its keys again once this clock has changed something: never; if other
# work of it has; or always.
Shares: TypeAlias = Literal["never", "with others", "always"]


class Work(Protocol):
    """Work of the leader's clock, such as moving due jobs or enqueueing periodic ones."""

    def load(self, watch: bool) -> None:
        """Reads what is due when. With ``watch``, the server reports later changes."""

    def next_due(self) -> float | None:
        """Epoch seconds of the next thing to do, without asking Redis; None if there is none."""

    def work(self) -> None:
        """Does the work that is due now, or a batch of it."""


class ScheduledTask:
    """One piece of work, and whether what it knows of its ``keys`` is stale. It reads Redis again
    only when the server has reported a change.

    ``shares``: whether other work of this clock changes the keys, too.

    An error is logged once, and the work is tried again later: a command that Redis refuses, or a
    value that the code cannot handle, must neither delay other tasks nor end the clock.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        keys: tuple[str, ...],
        outage: Outage,
        *,
        shares: Shares = "never",
    ) -> None:
        self._work = work
        self._shares = shares
        self._keys = keys
        failed, mended = f"{name} are delayed by an error", f"{name} are on time again"
        self._failure = outage.add_refusal(failed, mended)
        self._backoff = Backoff()
        self._stale = True
        self._next_load = 0.0
        self._retry_at = 0.0

    def mark_stale(self, changes: ChangedKeys) -> None:
        """Marks what it knows as stale if one of its keys has changed."""
        self._stale |= changes.include(*self._keys)

    def reload(self) -> None:
        """Makes the next ``attend`` read Redis: what the task knows may be wrong."""
        self._stale, self._next_load = True, 0.0

    def note_own_changes(self, *, by_others: bool) -> None:
        """This clock has changed something: Redis reports neither that to it, nor later changes by
        other processes. ``by_others``: other work than this task has changed it."""
        if self._shares == "always" or (self._shares == "with others" and by_others):
            self.reload()

    def attend(self, watch: bool) -> bool:
        """Reads Redis if its knowledge is stale, then does what is due. Returns whether it did
        something: what this clock changes, the server does not report to it. Raises ConnectionLost,
        and the errors of a failover."""
        if time.monotonic() < self._retry_at:
            return False
        try:
            self._load_if_stale(watch)
            worked = self._work_if_due()
        except ConnectionLost:
            raise
        except Exception as error:
            if isinstance(error, RedisError) and refused(error):
                raise
            self._put_off(error)
            return True  # perhaps
        self._failure.end()
        self._backoff.reset()
        return worked

    def pause(self) -> float:
        """Seconds until it has something to do, as far as it knows; infinite if never."""
        if (wait := self._retry_at - time.monotonic()) > 0:
            return wait
        due = self._work.next_due()
        work = due - now() if due is not None else math.inf
        load = self._next_load - time.monotonic() if self._stale else math.inf
        return max(0.0, min(work, load))

    def _work_if_due(self) -> bool:
        due = self._work.next_due()
        if due is None or due > now():
            return False
        self._work.work()
        return True

    def _put_off(self, error: Exception) -> None:
        self._failure.begin(error)
        self.reload()
        self._retry_at = time.monotonic() + self._backoff.pause()

    def _load_if_stale(self, watch: bool) -> None:
        if self._stale and time.monotonic() >= self._next_load:
            self._work.load(watch)
            self._stale = not watch
            self._next_load = time.monotonic() + (_SHORTEST_INTERVAL if watch else _POLL)
