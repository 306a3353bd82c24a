"""The totals that never expire, for a monitoring system: which fields a flush adds to them.

Sidekiq's figures by class expire with their minutes, so no sum of them only grows. docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import sub
from typing import Any, Final

from ...store.counters import MOST_REASONS
from ...wire.keys import Keys
from .stats import MOST_QUEUES, Row, Totals

# How many names each hash takes. All later ones count as OTHER, there and for ever: a class that
# moved between its own name and OTHER would make counters go backwards.
_MOST_CLASSES: Final = 500


def groups(keys: Keys, before: Totals, after: Totals) -> tuple[list[str], list[Any]]:
    """The keys and arguments of what has grown from ``before`` to ``after``."""
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
    """By how much each row has grown, for those that have."""
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
