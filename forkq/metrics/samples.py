"""Samples by metric and labels. Names from Redis become labels that no scraper refuses."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from ..wire.printable import NAME_LIMIT, cut, printable

Labels: TypeAlias = "tuple[str, ...]"

OTHER: Final = "(other)"
# Of the largest counter of Redis, 2 ** 63 - 1.
_DIGITS: Final = 19


class BucketCounts:
    """Counts for each bucket, the last one of all longer times, and the sum in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """The counts as Prometheus has them: each bucket includes those below."""
        total, found = 0, list[tuple[str, float]]()
        for bound, count in zip([*self.bounds, "+Inf"], self.counts, strict=True):
            total += count
            found.append((str(bound), total))
        return found


class Samples:
    """``values``: metric -> labels -> value; two names that become one label add up."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Labels, float]] = defaultdict(dict)
        self.histograms: dict[str, dict[Labels, BucketCounts]] = defaultdict(dict)

    def add(self, metric: str, value: float, *labels: str) -> None:
        """Adds to the sample of these labels."""
        known = self.values[metric]
        known[labels] = known.get(labels, 0) + value

    def raise_to(self, metric: str, value: float, *labels: str) -> None:
        """Makes the sample at least ``value``."""
        known = self.values[metric]
        known[labels] = max(known.get(labels, value), value)

    def lower_to(self, metric: str, value: float, *labels: str) -> None:
        """Makes the sample at most ``value``."""
        known = self.values[metric]
        known[labels] = min(known.get(labels, value), value)

    def histogram(self, metric: str, bounds: Sequence[float], *labels: str) -> BucketCounts:
        """The histogram of these labels, made when it is first asked for."""
        known = self.histograms[metric]
        if labels not in known:
            known[labels] = BucketCounts(bounds)
        return known[labels]


def label(name: bytes | str) -> str:
    """A name from Redis as a label: printable UTF-8, of bounded length, and not another's."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    if len(text) > NAME_LIMIT:
        digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        text = f"{cut(text, NAME_LIMIT - 9)}#{digest}"
    return printable(text)


def rows(found: Mapping[bytes, bytes]) -> dict[str, dict[str, int]]:
    """The fields of a hash of totals (``NAME|FIELD``), by name; two names that become one label add
    up."""
    by_name: dict[str, dict[str, int]] = {}
    for key, value in found.items():
        name, _, field = key.rpartition(b"|")
        if name:
            row = by_name.setdefault(label(name), {})
            at = field.decode("ascii", "replace")
            row[at] = row.get(at, 0) + number(value)
    return by_name


def number(value: bytes | None) -> int:
    """A counter of Redis; 0 for what is none, or is larger than Redis itself counts."""
    fits = value is not None and value.isdigit() and len(value) <= _DIGITS
    return int(value or b"") if fits else 0
