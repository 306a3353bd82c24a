"""Enqueueing periodic jobs: each tick once in the cluster, also while several clocks do it.

The entries are in Redis (``entries``); ``ticks`` decides which missed ticks are enqueued late. The
leader's clock runs this. Two leaders at once do no harm: ``cron_tick.lua`` enqueues a job and notes
its tick in one step. docs/internals.md, "The way of a tick".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ...cron import history
from ...cron.entry import Entry
from ...every import DEFAULTS
from ...features.expire.queues import add_expiry
from ...features.marked import PushNeeds, complete, stamped
from ...runtime.log import LogOnce
from ...store.connection import RedisConnection, ResponseError, refused
from ...store.find_job import Location, find
from ...store.scripts import CRON_TICK
from ...wire.keys import Keys
from ...wire.marks import KEY
from ...wire.payload import DEFAULT_QUEUE, dumps, new_jid
from ...wire.times import now
from .entries import CronEntries, far_ahead
from .services import RunningServices
from .ticks import EntryTicks, Miss, Step, steps

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# All in seconds. After this long, ``work`` returns, so that the clock can run its other tasks.
_LONGEST_WORK: Final = 0.2
# When an entry that the server refused is tried again.
_RETRY_AFTER: Final = 5.0
# So long a job that was found counts as still there: the clock does not search a deep queue at
# every tick of an entry that ticks every second.
_TRUSTED_FOR: Final = 60.0

_LOCATIONS: Final[tuple[Location, ...]] = ("running", "queued")

# The reply of cron_tick.lua: the outcome and its detail.
Reply: TypeAlias = "tuple[bytes, bytes]"


class _Asked(NamedTuple):
    """What a tick needs to know of a job with a lock, or with a throttle: the digests in the names
    of these."""

    needs: PushNeeds
    lock: str
    window: str


class CronEnqueuer:
    """Enqueues periodic jobs at their time, on one connection. ``clock`` returns the wall time;
    ``expire`` is the table ``[expire]``.

    Call ``load`` first, and again after a lost connection or a reported change; then ``work`` each
    time ``next_due`` has come.
    """

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        services: RunningServices,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = now,
        *,
        expire: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._keys = keys
        self._expire = expire
        self._connection = connection
        self._log = log
        self._log_once = LogOnce(log)
        self._clock = clock
        self._entries = CronEntries(keys, connection, services, log, clock)
        self._overlap = Overlap(keys, connection)
        self._retry_at: dict[str, float] = {}

    def load(self, watch: bool) -> None:
        """Reads the entries from Redis. With ``watch`` the server reports when definitions or
        pauses change later. Raises ConnectionLost or ResponseError."""
        self._entries.load(watch)

    def outdated(self) -> bool:
        """Whether ``load`` is due because a service has started or stopped, which the server does
        not report. Raises ConnectionLost."""
        return self._entries.outdated()

    def next_due(self) -> float | None:
        """When there is something to do next, epoch seconds; None: never. No round trip."""
        times = (self._due(ticks) for ticks in self._entries.ticking())
        return min((at for at in times if at is not None), default=None)

    def work(self) -> None:
        """Does what is due. Many missed ticks take several calls: until the last of them,
        ``next_due`` returns a time that has passed. Raises ConnectionLost; a step that was done is
        not repeated."""
        end, at = time.monotonic() + _LONGEST_WORK, self._clock()
        if any(far_ahead(ticks.last, at) for ticks in self._entries.ticking()):
            self._entries.load(watch=False)  # the server goes on reporting, if it did
        for ticks in self._due_entries(at):
            for step in steps(ticks.entry, ticks.last, at):
                if not self._do(ticks, step):
                    break
                if time.monotonic() >= end:
                    return

    def _due(self, ticks: EntryTicks) -> float | None:
        """When this entry next needs a step, epoch seconds; None: never."""
        at = self._clock()
        if far_ahead(ticks.last, at):
            return at
        wait = self._retry_at.get(ticks.entry.name, 0.0) - time.monotonic()
        return ticks.due if ticks.due is None or wait <= 0 else max(ticks.due, at + wait)

    def _due_entries(self, at: float) -> list[EntryTicks]:
        """The entries with something to do, the most overdue first."""
        times = ((self._due(ticks), ticks) for ticks in self._entries.ticking())
        found = [(due, ticks) for due, ticks in times if due is not None and due <= at]
        return [ticks for _, ticks in sorted(found, key=lambda pair: pair[0])]

    def _do(self, ticks: EntryTicks, step: Step) -> bool:
        """Does one step. False: the entry's remaining steps must be computed again."""
        try:
            outcome, detail = self._enqueue_or_note(ticks.entry, step)
        except ResponseError as error:
            if refused(error):
                raise
            self._set_aside(ticks.entry.name, str(error))
            return False
        return self._done(ticks, step, outcome, detail)

    def _done(self, ticks: EntryTicks, step: Step, outcome: bytes, detail: bytes) -> bool:
        """Notes what cron_tick.lua has done. False: the entry's remaining steps must be computed
        again."""
        if outcome == b"gone":
            self._entries.remove(ticks)
        if outcome in (b"gone", b"pending"):
            return False
        if outcome == b"refused":
            self._log_problem(
                "periodic job not enqueued: its queue's key holds another type",
                ticks.entry.name,
                detail.decode("utf-8", "replace"),
            )
        ticks.advance(int(detail) if outcome == b"late" else step.tick)
        return outcome != b"late"

    def _enqueue_or_note(self, entry: Entry, step: Step) -> Reply:
        if isinstance(step, Miss):
            return self._note_missed(entry, step)
        outcome, detail = self._enqueue(entry, step.tick)
        jid = detail.decode("utf-8", "replace")
        if outcome == b"pending" and not self._overlap.is_unfinished(
            entry.name, jid, _queue(entry)
        ):
            outcome, detail = self._enqueue(entry, step.tick, gone=detail)
            jid = detail.decode("utf-8", "replace")
        if outcome not in (b"pending", b"duplicate"):
            return outcome, detail
        line = history.line("skipped", tick=step.tick, running=jid)
        return self._note(entry, step.tick, line)

    def _note_missed(self, entry: Entry, step: Miss) -> Reply:
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
        """Enqueues ``tick``. An entry that must not overlap is not enqueued if its latest job is
        noted, except if that is the job ``gone``, which was not found."""
        jid, queue = new_jid(), _queue(entry)
        why = f"the key of the queue {queue!r} holds another type"
        payload, asked = _payload(entry, tick, jid, self._expire)
        return self._tick(
            entry,
            (tick, history.line("enqueued", tick=tick, jid=jid)),
            (payload, jid, queue, entry.overlap, gone),
            history.line("missed", tick=tick, count=1, why=why),
            asked,
        )

    def _note(self, entry: Entry, tick: int, line: bytes) -> Reply:
        """Makes ``tick`` the last one without a job."""
        return self._tick(entry, (tick, line), (b"", b"", b"", b"", b""), b"")

    def _tick(
        self,
        entry: Entry,
        noted: tuple[int, bytes],
        pushed: tuple[object, ...],
        refusal: bytes,
        asked: _Asked | None = None,
    ) -> Reply:
        tick, line = noted
        keys = [
            self._keys.cron_last,
            self._keys.cron_pending,
            self._keys.cron_runs(entry.name),
            self._keys.cron,
            self._keys.queues,
            self._keys.queue(_queue(entry)),
            self._keys.marked,
        ]
        more: list[object] = [line, history.KEEP, history.EXPIRES, *pushed, refusal]
        if asked is not None:
            keys += self._keys_of_guards(asked)
            more += _arguments_of_guards(asked.needs)
        outcome, detail = self._connection.script(CRON_TICK, keys, (entry.name, tick, *more))
        return outcome, detail

    def _keys_of_guards(self, asked: _Asked) -> list[str]:
        keys = self._keys
        names = [keys.totals("ends"), keys.unique(asked.lock), keys.doubted, keys.tickets]
        more = [keys.schedule, keys.retry, keys.window(asked.window), keys.results_ended]
        return [*names, *more]

    def _set_aside(self, name: str, error: str) -> None:
        """Lets an entry wait whose step the server refused; the others go on."""
        self._retry_at[name] = time.monotonic() + _RETRY_AFTER
        self._log_problem("periodic job refused by redis", name, error)

    def _log_problem(self, event: str, name: str, error: str) -> None:
        self._log_once.error((event, name, error), event, name=name, error=error)


def _queue(entry: Entry) -> str:
    queue: str = entry.job.get("queue", DEFAULT_QUEUE)
    return queue


def _payload(
    entry: Entry, tick: int, jid: str, expire: Mapping[str, float]
) -> tuple[bytes, _Asked | None]:
    """The job for ``tick``, as a client would have written it, and what its lock and its throttle
    need, if it has one."""
    at = now()
    made = {**DEFAULTS, **entry.job, "jid": jid, "created_at": at}
    made.pop("at", None)
    own = made.get("forkq")
    marks = {"cron": entry.name, "tick": tick}
    made["enqueued_at"] = at
    made[KEY] = {**own, **marks} if isinstance(own, dict) else marks
    add_expiry(made, expire)
    needs, lock, window = complete(made, None)
    payload = dumps(made)
    if needs is None or not (lock or window):
        return stamped(payload, needs, at), None
    asked = _Asked(needs, lock, window)
    return payload if needs.debounce else stamped(payload, needs, at), asked


def _arguments_of_guards(needs: PushNeeds) -> list[object]:
    """What cron_tick.lua is told of a lock and of a throttle."""
    unique, debounce = needs.unique, needs.debounce
    lock = ("", "") if unique is None else (unique.seconds, unique.kind)
    quiet = ("", "", "") if debounce is None else (*debounce, needs.expires_in)
    return [needs.name, *lock, *quiet, *(needs.throttle or ("", ""))]


class Overlap:
    """Whether the latest job of an entry is queued or runs: for ``overlap = "skip"``.

    The entry's note (keys.cron_pending) names that job until the child that ran it removes the
    note. A crash of that child leaves the note behind. So the clock looks for the job itself, and
    remembers for a while which ones it has found.
    """

    def __init__(self, keys: Keys, connection: RedisConnection) -> None:
        self._keys = keys
        self._connection = connection
        self._found: dict[str, tuple[str, float]] = {}

    def is_unfinished(self, name: str, jid: str, queue: str) -> bool:
        """Whether job ``jid`` of the entry ``name`` runs or is in a queue; most likely in
        ``queue``. A job that failed and waits for its retry does not count."""
        known, until = self._found.get(name, ("", 0.0))
        if known == jid and time.monotonic() < until:
            return True
        unfinished = self._search(jid, queue)
        if unfinished:
            self._found[name] = (jid, time.monotonic() + _TRUSTED_FOR)
        else:
            self._found.pop(name, None)
        return unfinished

    def _search(self, jid: str, queue: str) -> bool:
        found = find(self._connection, self._keys, jid, locations=_LOCATIONS, queues=(queue,))
        if found is None:  # the entry's queue may have changed since
            found = find(self._connection, self._keys, jid, locations=_LOCATIONS)
        return found is not None
