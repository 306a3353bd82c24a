"""What the marks in a payload say."""

from __future__ import annotations

import pytest

from forkq.wire.marks import long_run


def ran(*seconds: object) -> dict[str, object]:
    return {"crashes": [{"ran": each} for each in seconds]}


@pytest.mark.parametrize(
    ("marks", "limit"),
    [
        (None, 60.0),
        ({"suspect": True}, 60.0),
        ({"crashes": [{"signal": 9}]}, 60.0),
        (ran(5.9), 60.0),
        (ran(30), 300.0),
        (ran(30, 7.5), 300.0),
        (ran(10**400), 72 * 3600.0),
        ({"crashes": [None, {"ran": "x"}, {"ran": True}, {"ran": -1}]}, 60.0),
        ({"crashes": {}}, 60.0),
    ],
)
def test_a_suspect_runs_for_long_after_ten_times_its_longest_run(
    marks: object, limit: float
) -> None:
    """A payload may have anything in that place."""
    assert long_run(marks) == limit
