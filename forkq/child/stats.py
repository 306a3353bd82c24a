"""What a child has done, counted without locks: every processor has a tally of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Jobs of one processor. ``processed`` counts failures too; a job cut short by the stop counts
    as neither. Written by its processor only; others read."""

    processed: int = 0
    failed: int = 0


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of ``tallies``."""
    result = Tally()
    for tally in tallies:
        result.processed += tally.processed
        result.failed += tally.failed
    return result
