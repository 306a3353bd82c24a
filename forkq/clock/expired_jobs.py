"""Ending the jobs that have expired where they wait, in the leader's clock.

A child ends the expired job that it fetches. But a queue may be paused, or a rate may let one job
through a minute. So the leader looks into each queue that may have marked jobs when the first one
there expires, one page at a time. What a leader has not done when it dies, the next one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isinf
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..errors import MalformedPayload
from ..features.marked import effects
from ..store.connection import RedisConnection
from ..store.scripts import EXPIRED_JOBS, MARKED_LOOK
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.payload import Payload, loads_head
from ..wire.printable import shown_name
from ..wire.times import now
from .removals import Removal, remove
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# What one script looks at: so small that it delays others by some milliseconds at most.
_PAGE: Final = 1000
_BYTES: Final = 1 << 20
# Seconds until a queue is looked at again, at least and at most: a look does not see the jobs that
# children have leased, which may come back, nor each one of a list that moves meanwhile. A long
# queue is looked at for a small part of the time only; a push of a job that expires sooner begins a
# look sooner.
_SHORTEST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_PART: Final = 1 / 50
# Pauses after each page, in times that it took: pages take a quarter of the server's time at most,
# however much is pushed and however many queues there are.
_REST: Final = 3.0


class _QueueLook:
    """One look into one queue: its suspects, then its list. ``score``: what the queue has in the
    set, if no job has come since. ``earliest``: when the first of the jobs expires that were looked
    at and left there. A name that is no UTF-8 is damage, and is looked at as any other: so it is
    forgotten, and delays no queue."""

    def __init__(self, queue: bytes, score: float, keys: Keys) -> None:
        self.queue = queue
        self.score = score
        name = queue.decode("utf-8", "surrogateescape")
        keys_of_jobs = (keys.suspects(name), keys.queue(name), keys.inflight(name))
        self.keys = [key.encode("utf-8", "surrogateescape") for key in keys_of_jobs]
        self.lists = self.keys[:2]
        self.read = 0
        self.ended = 0
        self.earliest = inf
        self.began = monotonic()

    def next_look(self) -> float:
        """When to look again, epoch seconds."""
        at, pause = now(), max((monotonic() - self.began) / _PART, _SHORTEST_PAUSE)
        return max(at + pause, min(self.earliest, at + _LONGEST_PAUSE))


class ExpiredJobs:
    """Ends expired jobs in queues, a page at a time."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._look: _QueueLook | None = None
        self._first: tuple[bytes, float] | None = None
        self._watch = False
        self._rests_until = 0.0

    def load(self, watch: bool) -> None:
        """Reads which queue is to be looked at next, and when."""
        self._watch = watch
        first = ("ZRANGE", self._keys.marked, 0, 0, "WITHSCORES")
        found = checked(self._connection.pipeline(tracked(first, watch)))[-1]
        self._first = None
        for name, score in found:
            self._first = (name, float(score))

    def next_due(self) -> float | None:
        """When to look, epoch seconds: after the rest, while a look is not at its end."""
        if self._look is not None:
            return self._rests_until
        if self._first is None or isinf(self._first[1]):
            return None
        return max(self._first[1], self._rests_until)

    def work(self) -> None:
        """Looks at one page, or ends a look."""
        if self._look is None:
            self._begin()
        elif self._look.lists:
            self._look_at_page(self._look)
        else:
            self._end(self._look)

    def _begin(self) -> None:
        """Begins the look that is due. The score is raised first: so each job that comes during the
        look, and that this may miss, lowers it."""
        if self._first is None:
            return
        look = _QueueLook(*self._first, self._keys)
        later = now() + _LONGEST_PAUSE
        if self._note_next(look, later):
            self.load(self._watch)
            return
        look.score, self._look = later, look

    def _note_next(self, look: _QueueLook, at: float) -> bool:
        """Notes when to look next, unless a job has lowered the score. Returns whether the queue is
        forgotten, because it has no job at all."""
        arguments = (look.queue, look.score, at)
        names = (self._keys.marked, *look.keys)
        return bool(self._connection.script(MARKED_LOOK, names, arguments))

    def _look_at_page(self, look: _QueueLook) -> None:
        names = (look.lists[0], self._keys.totals("ends"))
        arguments, began = (look.read, _PAGE, _BYTES), monotonic()
        found = self._connection.script(EXPIRED_JOBS, names, arguments)
        left, ended, earliest, more, first, last, *others = found
        also = self._end_others(look, int(first), int(last), others) if others else 0
        self._rests_until = now() + _REST * (monotonic() - began)
        look.read += left - also
        look.ended += ended + also
        if earliest:
            look.earliest = min(look.earliest, float(earliest))
        if not more:
            look.read = 0
            del look.lists[0]

    def _end_others(
        self, look: _QueueLook, first: int, last: int, payloads: Sequence[bytes]
    ) -> int:
        """Ends the expired jobs that have other features, too: they stand from the place ``first``
        to ``last``, from the right. Returns how many; what has moved is looked at again later."""
        source = look.lists[0]
        alone = look.queue if source == look.keys[0] else b""
        place = ("list", 0, "", 0, first, last - first + 1, alone, payloads[-1])
        jobs = ((payload, _job_in(payload)) for payload in payloads)
        found = [Removal(raw, job, effects(self._keys, job, "expired")) for raw, job in jobs]
        ended = remove(self._connection, self._keys, source, place, "expired", found)
        if ended < len(payloads):
            look.earliest = 0.0
        return ended

    def _end(self, look: _QueueLook) -> None:
        self._note_next(look, look.next_look())
        self._look = None
        if look.ended:
            queue = shown_name(look.queue.decode("utf-8", "replace"))
            self._log.info("jobs expired in a queue", queue=queue, jobs=look.ended)
        self.load(self._watch)  # the server does not report this clock's own change


def _job_in(payload: bytes) -> Payload:
    """The job in the payload; one without features if forkq reads none there."""
    try:
        return loads_head(payload)
    except MalformedPayload:
        return {"class": "(unregistered)"}
