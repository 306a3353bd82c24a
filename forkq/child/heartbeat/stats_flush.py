"""Adds a child's counts to those in Redis. A lost reply makes nothing count twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...runtime.log import LogOnce
from ...store.connection import RedisConnection
from ...store.counters import HISTORY_TTL, MOST_REASONS, day
from ...store.scripts import COUNTERS_FLUSH
from ...values import replace
from ...wire.histogram import BOUNDS
from ...wire.keys import Keys
from ...wire.times import now
from .beat_count import NOTE_TTL, BeatCount
from .stats import MOST_QUEUES, Row, Totals

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_MINUTES_TTL: Final = 8 * 3600  # of a minute's hash, and of a histogram
_TENS_TTL: Final = 3 * 86_400
# A script of more classes would block the server for other clients too long.
_CLASSES_AT_ONCE: Final = 50
_NOTHING: Final[Row] = (0,) * (4 + len(BOUNDS) + 1)
_NO_TTL: Final = 0
# How many names each hash of the totals takes. All later ones count as OTHER, there and for ever: a
# class that moved between its own name and OTHER would make counters go backwards.
_MOST_CLASSES: Final = 500


class Flush(msgspec.Struct, frozen=True):
    """One call of counters_flush.lua, ready to be sent again. ``after``: what Redis has then."""

    keys: list[str]
    arguments: list[Any]
    after: Totals


class StatsFlusher:
    """Used by the heartbeat's thread. A flush without a reply is sent again, unchanged, before a
    newer one: the script knows it by its number."""

    def __init__(
        self, identity: str, keys: Keys, log: FilteringBoundLogger, clock: Callable[[], float] = now
    ) -> None:
        self._note = keys.flushed(identity)
        self._beat_count = BeatCount(self._note, keys, log)
        self._keys = keys
        self._clock = clock
        self._flushed = Totals()
        self._number = 0
        self._pending: Flush | None = None
        self._renew = True
        self._log_once = LogOnce(log)

    def renew(self) -> None:
        """Makes the next flush write its note again, even if there is nothing to add: Redis may
        have lost it."""
        self._renew = True

    def flush(self, connection: RedisConnection, totals: Totals) -> None:
        """Adds what is in ``totals`` and not in Redis yet. Raises ConnectionLost or RedisError; the
        next call continues where this one stopped."""
        if not self._beat_count.count(connection):
            self.renew()
        while (flush := self._pending or self._next(totals)) is not None:
            self._pending = flush
            refused = connection.script(COUNTERS_FLUSH, flush.keys, flush.arguments)
            self._log_refused(refused)
            self._pending = None
            self._flushed = flush.after

    def _next(self, totals: Totals) -> Flush | None:
        known = self._flushed
        classes = _news(totals.classes, known.classes)
        queues = _news(totals.queues, known.queues)
        after = replace(
            totals, classes={**known.classes, **classes}, queues={**known.queues, **queues}
        )
        if after == known and not self._renew:
            return None
        self._renew = False
        self._number += 1
        return self._compose(after, list(classes))

    def _compose(self, after: Totals, classes: list[str]) -> Flush:
        moment = datetime.fromtimestamp(self._clock(), timezone.utc)
        keys = [self._note]
        arguments: list[Any] = [self._number, NOTE_TTL, after.processed, after.failed]
        counters = list(self._counters(after, day(moment)))
        keys += [key for key, _, _ in counters]
        arguments += [len(counters), *(part for _, *parts in counters for part in parts)]
        rows = [(name, self._more(after, name)) for name in classes]
        fields = [field for name, row in rows for field in _fields(name, row)]
        arguments += [len(fields), *(part for field in fields for part in field)]
        if fields:
            keys += self._minutes(moment)
            arguments += (_MINUTES_TTL, _TENS_TTL)
        timed = [(name, buckets) for name, row in rows if (buckets := _buckets(row))]
        keys += [self._keys.histogram(name, _histogram_minute(moment)) for name, _ in timed]
        arguments += [len(timed), _MINUTES_TTL]
        for _, buckets in timed:
            arguments += [len(buckets), *(part for bucket in buckets for part in bucket)]
        more_keys, more = _all_time(self._keys, self._flushed, after)
        return Flush([*keys, *more_keys], [*arguments, *more], after)

    def _counters(self, after: Totals, today: str) -> Iterator[tuple[str, int, int]]:
        """Key, amount and time to live of each counter that grows."""
        known = self._flushed
        grown = {
            "processed": after.processed - known.processed,
            "failed": after.failed - known.failed,
        }
        for name, more in grown.items():
            if more:
                yield self._keys.stat(name), more, _NO_TTL
                yield self._keys.stat_of_day(name, today), more, HISTORY_TTL
        if more := _sum(after.ran_twice) - _sum(known.ran_twice):
            yield self._keys.ran_twice, more, _NO_TTL

    def _more(self, after: Totals, name: str) -> Row:
        return tuple(map(sub, after.classes[name], self._flushed.classes.get(name, _NOTHING)))

    def _minutes(self, moment: datetime) -> tuple[str, str]:
        """The hash of this minute, and the hash of these ten minutes (without the last digit)."""
        minute = f"{moment:%y%m%d}|{moment.hour}:{moment:%M}"
        return self._keys.metrics(minute), self._keys.metrics(minute[:-1])

    def _log_refused(self, keys: list[bytes]) -> None:
        for key in set(keys):
            self._log_once.error(
                key,
                "counts dropped: a key holds something else; delete or rename it",
                key=key.decode("utf-8", "replace"),
            )


def _sum(rows: Mapping[str, Row]) -> int:
    return sum(count for (count,) in rows.values())


def _news(rows: Mapping[str, Row], known: Mapping[str, Row]) -> dict[str, Row]:
    """The first rows that have changed."""
    news = ((name, row) for name, row in rows.items() if row != known.get(name))
    return dict(islice(news, _CLASSES_AT_ONCE))


def _fields(name: str, row: Row) -> Iterator[tuple[str, int]]:
    """The fields of a class in Sidekiq's hashes; ``p`` counts failures too, which add no ``ms``."""
    failed, _, _, milliseconds, *buckets = row
    performed = sum(buckets)
    if performed or failed:
        yield f"{name}|p", performed + failed
    if failed:
        yield f"{name}|f", failed
    if performed or milliseconds:
        yield f"{name}|ms", milliseconds


def _buckets(row: Row) -> list[tuple[int, int]]:
    """Index and amount of each bucket that grows."""
    return [(index, more) for index, more in enumerate(row[4:]) if more]


def _histogram_minute(moment: datetime) -> str:
    return f"{moment.day}-{moment.hour}:{moment.minute}"


def _all_time(keys: Keys, before: Totals, after: Totals) -> tuple[list[str], list[Any]]:
    """The keys and arguments of the totals that have grown from ``before`` to ``after``: those that
    never expire, for a monitoring system (docs/metrics.md). Sidekiq's figures by class expire with
    their minutes, so no sum of them only grows."""
    twice = _grown(before.ran_twice, after.ran_twice)
    every = (
        (keys.totals("jobs"), _MOST_CLASSES, _grown(before.classes, after.classes), _class_fields),
        (keys.totals("jobs"), _MOST_CLASSES, twice, _twice_fields),
        (keys.totals("queues"), MOST_QUEUES, _grown(before.queues, after.queues), _queue_fields),
        (keys.totals("children"), MOST_REASONS, _grown(before.ended, after.ended), _end_fields),
    )
    names: list[str] = []
    arguments: list[Any] = []
    for key, most, grown, fields_of in every:
        if grown:
            names.append(key)
            arguments += [most, len(grown)]
            for name, row in grown.items():
                fields = [pair for pair in fields_of(row) if pair[1]]
                arguments += [name, len(fields), *(part for pair in fields for part in pair)]
    return names, [len(names), *arguments]


def _grown(before: Mapping[str, Row], after: Mapping[str, Row]) -> dict[str, Row]:
    """By how much each row has grown, without the rows that have not."""
    changed = ((name, row) for name, row in after.items() if row != before.get(name))
    return {name: tuple(map(sub, row, before.get(name, (0,) * len(row)))) for name, row in changed}


def _class_fields(row: Row) -> Iterator[tuple[str, int]]:
    failed, dead, dropped, milliseconds, *buckets = row
    yield "n", failed + sum(buckets)
    yield from (("failed", failed), ("dead", dead), ("dropped", dropped), ("ms", milliseconds))
    yield from _bucket_fields(buckets)


def _queue_fields(row: Row) -> Iterator[tuple[str, int]]:
    milliseconds, *buckets = row
    yield "n", sum(buckets)
    yield "ms", milliseconds
    yield from _bucket_fields(buckets)


def _twice_fields(row: Row) -> Iterator[tuple[str, int]]:
    yield "twice", row[0]


def _end_fields(row: Row) -> Iterator[tuple[str, int]]:
    yield "n", row[0]


def _bucket_fields(buckets: list[int]) -> Iterator[tuple[str, int]]:
    return ((str(index), more) for index, more in enumerate(buckets))
