"""What the leading clock does at its time, and when it has to look at Redis for that."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from ..store.connection import ConnectionLost, RedisError, refused
from ..store.outage import Backoff, Outage
from ..wire.times import now
from .tracking import ChangedKeys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# A server that tells of changes may tell thousands a second. So often we look, and no more.
_BREATH: Final = 0.01
# How often we look where the server does not tell.
_POLL: Final = 1.0


class Work(Protocol):
    """Moving due jobs, or enqueueing periodic ones."""

    def load(self, watch: bool) -> None:
        """Reads anew what is due when. With ``watch``, the server tells the wire of changes."""

    def next_due(self) -> float | None:
        """Epoch seconds of the next thing to do, without asking Redis; None if there is none."""

    def work(self) -> None:
        """Does what is due now, or a batch of it."""


class ScheduledTask:
    """One piece of work, and how fresh is what it knows of its ``keys``. Redis is asked again only
    when the server has told of a change.

    What the server refuses of one piece, or a value that nobody foresaw makes of it, is logged once
    and tried again later: it must neither hold up the others nor end the clock."""

    def __init__(
        self, name: str, work: Work, keys: tuple[str, ...], log: FilteringBoundLogger
    ) -> None:
        self._work = work
        self._keys = keys
        self._trouble = Outage(log, f"{name} are held up", f"{name} go on again")
        self._backoff = Backoff()
        self._stale = True
        self._next_look = 0.0
        self._rests_until = 0.0

    def hear(self, news: ChangedKeys) -> None:
        """Takes in what has changed."""
        self._stale |= news.of(*self._keys)

    def forget(self) -> None:
        """Another clock works, or nobody tells of changes any more: look before the next."""
        self._stale, self._next_look = True, 0.0

    def attend(self, watch: bool) -> None:
        """Looks if there is news, and does what is due. Raises ConnectionLost, and what a failover
        makes of a command."""
        if time.monotonic() < self._rests_until:
            return
        try:
            self._look(watch)
            due = self._work.next_due()
            if due is not None and due <= now():
                self._work.work()
            self._trouble.end()
            self._backoff.reset()
        except ConnectionLost:
            raise
        except Exception as error:
            if isinstance(error, RedisError) and refused(error):
                raise
            self._trouble.begin(error)
            self.forget()
            self._rests_until = time.monotonic() + self._backoff.pause()

    def pause(self) -> float:
        """Seconds until it has something to do, as far as it knows; infinite if never."""
        if (rest := self._rests_until - time.monotonic()) > 0:
            return rest
        due = self._work.next_due()
        work = due - now() if due is not None else math.inf
        look = self._next_look - time.monotonic() if self._stale else math.inf
        return max(0.0, min(work, look))

    def _look(self, watch: bool) -> None:
        if self._stale and time.monotonic() >= self._next_look:
            self._work.load(watch)
            self._stale = not watch
            self._next_look = time.monotonic() + (_BREATH if watch else _POLL)
