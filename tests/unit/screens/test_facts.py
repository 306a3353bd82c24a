"""Figures of the first page."""

from __future__ import annotations

import pytest

from forkq.api import Point
from forkq.screens.facts import last_minute

_MINUTE = 1_795_216_080.0


@pytest.mark.parametrize(
    ("seconds", "processed", "failed"),
    [(0, 130, 11), (15, 100, 9), (30, 70, 6), (59, 12, 1), (60, 10, 1), (75, 10, 1), (-5, 130, 11)],
)
def test_the_last_60_seconds_are_counted_at_any_second_of_a_minute(
    seconds: float, processed: int, failed: int
) -> None:
    points = (
        Point(_MINUTE - 120, 999, 99, 1.0),
        Point(_MINUTE - 60, 120, 10, 1.0),
        Point(_MINUTE, 10, 1, 0.1),
    )
    assert last_minute(points, _MINUTE + seconds) == (processed, failed)
