"""Counts: jobs done, queued, scheduled and dead, and those of the days before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Final

from ..errors import ForkqError, MalformedPayload
from ..servers import Server
from ..store.damage import damaged
from ..wire.payload import loads_head
from ..wire.times import now, seconds
from .door import server as default_server
from .processes import living, texts
from .queues import suspects_among

# The counters of a day are kept this long.
_MOST_DAYS: Final = 5 * 365
_COUNTED: Final = ("processed", "failed")


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue: ``size`` jobs are queued, its suspects included; the next one, or the next suspect,
    has been queued for ``latency`` seconds, whichever is longer."""

    name: str
    size: int
    latency: float


@dataclass(frozen=True, slots=True)
class Stats:
    """All figures.

    Since the first job: ``processed`` (failed ones included), ``failed``, and ``ran_twice`` (jobs
    that two hosts ran, one of which was cut off; a run that a crash has ended is not counted), and
    how many ``ended`` otherwise than done or failed, by outcome (``expired``). As of now:
    ``processes``, jobs that run (``busy``), that are ``scheduled``, that wait for a ``retry``, and
    that are ``dead``. ``busy`` and ``processes`` are as of the last heartbeats.
    """

    processed: int
    failed: int
    ran_twice: int
    ended: Mapping[str, int]
    processes: int
    busy: int
    scheduled: int
    retry: int
    dead: int
    queues: tuple[QueueFigures, ...]

    @property
    def enqueued(self) -> int:
        """How many jobs are queued in all queues."""
        return sum(queue.size for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Day:
    """How many jobs were processed on one day (UTC), failed ones included, and how many failed."""

    date: date
    processed: int
    failed: int


def stats(server: Server | None = None) -> Stats:
    """All counts as of now; 0 for a key that holds another type (``damaged_keys``). Raises
    ServerUnavailable."""
    server = server or default_server()
    names = server.keys
    *counters, ends, scheduled, retry, dead, identities = server.ask_leniently(
        ("GET", names.stat("processed")),
        ("GET", names.stat("failed")),
        ("GET", names.ran_twice),
        ("HGETALL", names.totals("ends")),
        ("ZCARD", names.schedule),
        ("ZCARD", names.retry),
        ("ZCARD", names.dead),
        ("SMEMBERS", names.processes),
    )
    working = living(server, texts(identities or ()))
    processed, failed, ran_twice = map(_count, counters)
    return Stats(
        processed=processed,
        failed=failed,
        ran_twice=ran_twice,
        ended=_by_outcome(ends or {}),
        processes=len(working),
        busy=sum(process.busy for process in working),
        scheduled=scheduled or 0,
        retry=retry or 0,
        dead=dead or 0,
        queues=_queues(server, *_queue_names(server)),
    )


def queue_names(server: Server | None = None) -> list[str]:
    """The names of all queues that were ever pushed to or have suspects, in order. Raises
    ServerUnavailable."""
    return _queue_names(server or default_server())[0]


def damaged_keys(queues: Iterable[str] = (), server: Server | None = None) -> list[str]:
    """The keys that hold another type than forkq stores there. Their queue or set does not work.

    Checks the keys of ``queues`` and of all queues that were ever pushed to, and the keys that all
    queues share. Raises ServerUnavailable.
    """
    server = server or default_server()
    keys = server.keys
    shared = keys.shared()
    names = sorted({*_queue_names(server)[0], *queues})
    each = (keys.queue, keys.suspects, keys.inflight, keys.control)
    checked = [*shared, *(key(name) for name in names for key in each)]
    types = server.ask_leniently(*(("TYPE", key) for key in checked))
    return damaged(checked, [str(found or b"none", "ascii") for found in types])


def history(days: int = 7, server: Server | None = None) -> list[Day]:
    """The counts of the last ``days`` days (UTC), today first. Raises ForkqError for more days than
    counts are kept, and ServerUnavailable."""
    if not 1 <= days <= _MOST_DAYS:
        raise ForkqError(f"a history of {days} days: counts are kept for 1 to {_MOST_DAYS} days")
    today = datetime.now(timezone.utc).date()
    dates = [today - timedelta(days=back) for back in range(days)]
    server = server or default_server()
    names = [server.keys.stat_of_day(name, str(day)) for name in _COUNTED for day in dates]
    [counts] = server.ask(("MGET", *names))
    figures = [_count(count) for count in counts]
    return [Day(*row) for row in zip(dates, figures[:days], figures[days:], strict=True)]


def _by_outcome(ends: Mapping[bytes, bytes]) -> dict[str, int]:
    """The sums of the fields ``CLASS|OUTCOME``."""
    sums: dict[str, int] = {}
    for field, count in ends.items():
        outcome = field.rpartition(b"|")[2].decode("ascii", "replace")
        sums[outcome] = sums.get(outcome, 0) + _count(count)
    return sums


def _queue_names(server: Server) -> tuple[list[str], list[str]]:
    """The names of all queues, and of those that may have suspects."""
    asked = ("SMEMBERS", server.keys.queues), ("SMEMBERS", server.keys.suspected)
    pushed, suspected = server.ask_leniently(*asked)
    names = texts({*(pushed or ()), *(suspected or ())})
    return names, suspects_among(names, suspected)


def _queues(server: Server, names: list[str], suspected: list[str]) -> tuple[QueueFigures, ...]:
    """The figures of those names that are lists, in the order of ``names``, with those of the
    suspects."""
    keys = server.keys
    lists = [*map(keys.queue, names), *map(keys.suspects, suspected)]
    asked = (c for key in lists for c in (("LLEN", key), ("LINDEX", key, -1)))
    replies = server.ask_leniently(*asked)
    sizes = dict(zip(lists, replies[::2], strict=True))
    waits = dict(zip(lists, map(latency, replies[1::2]), strict=True))
    return tuple(
        QueueFigures(name, size + (sizes.get(alone) or 0), max(waits[own], waits.get(alone, 0.0)))
        for name in names
        for own, alone in [(keys.queue(name), keys.suspects(name))]
        if (size := sizes[own]) is not None
    )


def latency(oldest: bytes | None) -> float:
    """For how many seconds ``oldest``, the next job of a queue, has been queued; 0 if there is
    none, or if it does not say."""
    if oldest is None:
        return 0.0
    try:
        stamp = loads_head(oldest).get("enqueued_at")
    except MalformedPayload:
        return 0.0
    return max(0.0, now() - seconds(stamp)) if isinstance(stamp, int | float) else 0.0


def _count(found: bytes | None) -> int:
    """A counter; 0 if it is missing, or not a number."""
    return int(found) if found and found.removeprefix(b"-").isdigit() else 0
