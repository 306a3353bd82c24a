"""Enqueueing periodic jobs: each tick once in the cluster, whoever else is at it.

What there is to do stands in Redis (``timetable``); which ticks are made up for is decided in
``ticks``. Used by the clock that leads; two leaders at once are harmless, because ``cron_tick.lua``
enqueues a job and notes its tick in one step. docs/internals.md, "The way of a tick".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from ...cron import history
from ...cron.entry import Entry
from ...every import DEFAULTS
from ...store.connection import RedisConnection, ResponseError, refused
from ...store.scripts import CRON_TICK
from ...wire.keys import Keys
from ...wire.payload import DEFAULT_QUEUE, dumps, new_jid
from ...wire.times import now
from .entries import CronEntries, astray
from .overlap import Overlap
from .services import RunningServices
from .ticks import Enqueue, Miss, Timed, steps

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# After this many seconds of catching up the clock looks at its other duties.
_TURN: Final = 0.2
# What the server would not do is tried again after this many seconds.
_AGAIN: Final = 5.0

# What cron_tick.lua answers: the outcome, and what belongs to it.
Reply: TypeAlias = "tuple[bytes, bytes]"


class CronEnqueuer:
    """Enqueues periodic jobs at their time, on one wire. ``clock`` tells the wall time.

    ``load`` comes first, and again after a lost connection or when the server told of a change;
    then ``work`` whenever ``next_due`` has come.
    """

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        origins: RunningServices,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = now,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._clock = clock
        self._timetable = CronEntries(keys, connection, origins, log, clock)
        self._overlap = Overlap(keys, connection)
        self._set_aside: dict[str, float] = {}

    def load(self, watch: bool) -> None:
        """Reads what stands in Redis. With ``watch`` the server tells the wire when
        definitions or pauses have changed since. Raises ConnectionLost."""
        self._timetable.load(watch)

    def outdated(self) -> bool:
        """Whether it is time to ``load`` again: a service has begun or ended to run, of which the
        server does not tell. Raises ConnectionLost."""
        return self._timetable.outdated()

    def next_due(self) -> float | None:
        """When there is something to do next, epoch seconds; None: never. No round trip."""
        times = (self._when(timed) for timed in self._timetable.entries())
        return min((at for at in times if at is not None), default=None)

    def work(self) -> None:
        """Does what is due. A long time's arrears take more than one call: as long as some are
        left, ``next_due`` has come. Raises ConnectionLost; what was done will not be done again."""
        end, at = time.monotonic() + _TURN, self._clock()
        if any(astray(timed.last, at) for timed in self._timetable.entries()):
            self._timetable.load(watch=False)  # what the server tells of stays as it was
        for timed in self._ripe(at):
            for step in steps(timed.entry, timed.last, at):
                if not self._dealt_with(timed, step):
                    break
                if time.monotonic() >= end:
                    return

    def _when(self, timed: Timed) -> float | None:
        """When this entry wants to be looked at."""
        at = self._clock()
        if astray(timed.last, at):
            return at
        wait = self._set_aside.get(timed.entry.name, 0.0) - time.monotonic()
        return timed.due if timed.due is None or wait <= 0 else max(timed.due, at + wait)

    def _ripe(self, at: float) -> list[Timed]:
        """The entries with something to do, the most overdue first."""
        whens = ((self._when(timed), timed) for timed in self._timetable.entries())
        ripe = [(when, timed) for when, timed in whens if when is not None and when <= at]
        return [timed for _, timed in sorted(ripe, key=lambda pair: pair[0])]

    def _dealt_with(self, timed: Timed, step: Enqueue | Miss) -> bool:
        """Does one step. False: the rest of this entry's must be thought over."""
        try:
            outcome, detail = self._do(timed.entry, step)
        except ResponseError as error:
            if refused(error):
                raise
            self._trouble(timed.entry.name, str(error))
            return False
        if outcome == b"gone":
            self._timetable.forget(timed)
        if outcome in (b"gone", b"pending"):
            return False
        if outcome == b"refused":
            self._timetable.tell_once(
                "periodic job not enqueued: its queue takes nothing",
                name=timed.entry.name,
                error=detail.decode("utf-8", "replace"),
            )
        timed.stands(int(detail) if outcome == b"late" else step.tick)
        return outcome != b"late"

    def _do(self, entry: Entry, step: Enqueue | Miss) -> Reply:
        if isinstance(step, Miss):
            return self._miss(entry, step)
        outcome, detail = self._enqueue(entry, step.tick)
        if outcome != b"pending":
            return outcome, detail
        jid = detail.decode("utf-8", "replace")
        if self._overlap.alive(entry.name, jid, _queue(entry)):
            return self._note(
                entry, step.tick, history.line("skipped", tick=step.tick, running=jid)
            )
        return self._enqueue(entry, step.tick, gone=detail)

    def _miss(self, entry: Entry, step: Miss) -> Reply:
        line = history.line("missed", tick=step.tick, since=step.since, count=step.count)
        reply = self._note(entry, step.tick, line)
        if reply[0] == b"noted":
            self._log.warning(
                "ticks of a periodic job were missed",
                name=entry.name,
                count="more than can be counted" if step.count is None else step.count,
            )
        return reply

    def _enqueue(self, entry: Entry, tick: int, gone: bytes = b"") -> Reply:
        """Enqueues ``tick``, unless the entry's latest job stands in the way: any but ``gone``."""
        jid, queue = new_jid(), _queue(entry)
        why = f"the queue {queue!r} takes nothing: something else stands in its place"
        return self._tick(
            entry,
            (tick, history.line("enqueued", tick=tick, jid=jid)),
            (_payload(entry, tick, jid), jid, queue, entry.overlap, gone),
            history.line("missed", tick=tick, count=1, why=why),
        )

    def _note(self, entry: Entry, tick: int, line: bytes) -> Reply:
        """Deals with ``tick`` without a job."""
        return self._tick(entry, (tick, line), (b"", b"", b"", b"", b""), b"")

    def _tick(
        self, entry: Entry, noted: tuple[int, bytes], pushed: tuple[object, ...], refusal: bytes
    ) -> Reply:
        tick, line = noted
        keys = (
            self._keys.cron_last,
            self._keys.cron_pending,
            self._keys.cron_runs(entry.name),
            self._keys.cron,
            self._keys.queues,
            self._keys.queue(_queue(entry)),
        )
        more = (line, history.KEEP, history.EXPIRES, *pushed, refusal)
        outcome, detail = self._connection.script(CRON_TICK, keys, (entry.name, tick, *more))
        return outcome, detail

    def _trouble(self, name: str, error: str) -> None:
        """The server would not do it: this entry waits, the others go on."""
        self._set_aside[name] = time.monotonic() + _AGAIN
        self._timetable.tell_once("periodic job refused by redis", name=name, error=error)


def _queue(entry: Entry) -> str:
    queue: str = entry.job.get("queue", DEFAULT_QUEUE)
    return queue


def _payload(entry: Entry, tick: int, jid: str) -> bytes:
    """The job for ``tick``, as a client would have written it."""
    at = now()
    made = {**DEFAULTS, **entry.job, "jid": jid, "created_at": at}
    made.pop("at", None)
    noted = made.get("forkq")
    marks = {"cron": entry.name, "tick": tick}
    made["forkq"] = {**noted, **marks} if isinstance(noted, dict) else marks
    return dumps({**made, "enqueued_at": at})
