"""Times: written with a fraction, read as seconds or milliseconds."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from forkq.errors import InvalidJob
from forkq.wire.times import due, now, seconds

AT = 1_795_216_000.5


def test_now_is_the_epoch_with_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(now() - time.time()) < 1
    monkeypatch.setattr(time, "time", lambda: 1_795_216_000.0)
    stamp = now()
    assert stamp % 1 > 0
    assert stamp - 1_795_216_000 < 0.001


@pytest.mark.parametrize(
    ("stamp", "epoch"),
    [
        (1795216066.5, 1795216066.5),
        (1795216066, 1795216066.0),
        (1795216257296, 1795216257.296),
        (1795216257296.0, 1795216257.296),
        (0, 0.0),
    ],
)
def test_seconds_and_integer_milliseconds_are_both_read(stamp: float, epoch: float) -> None:
    assert seconds(stamp) == pytest.approx(epoch, abs=1e-6)
    assert type(seconds(stamp)) is float


def test_a_stamp_too_big_for_a_float_does_no_harm() -> None:
    assert seconds(10**400) > AT


@pytest.mark.parametrize(
    ("moment", "epoch"),
    [
        (60, AT + 60),
        (0.5, AT + 0.5),
        (-5, AT - 5),
        (0, AT),
        (999_999_999, AT + 999_999_999),
        (1_000_000_000, 1e9),
        (1_795_216_066.25, 1_795_216_066.25),
        (timedelta(minutes=2), AT + 120),
        (datetime(2026, 11, 20, 23, 7, 46, tzinfo=timezone.utc), 1_795_216_066.0),
        (datetime(2026, 11, 21, 1, 7, 46, tzinfo=timezone(timedelta(hours=2))), 1_795_216_066.0),
    ],
)
def test_a_small_number_counts_from_now_and_a_big_one_is_an_epoch(
    moment: Any, epoch: float
) -> None:
    assert due(moment, AT) == pytest.approx(epoch)


def test_a_datetime_without_a_zone_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidJob, match=r"no time zone; .*timezone\.utc"):
        due(datetime(2026, 1, 1), AT)


@pytest.mark.parametrize(
    "moment",
    ["60", None, True, math.nan, math.inf, -math.inf, [60], pytest.param(10**400, id="10**400")],
)
def test_what_is_no_time_is_refused(moment: Any) -> None:
    with pytest.raises(InvalidJob, match="is not a time"):
        due(moment, AT)


@pytest.mark.parametrize(
    "moment",
    [1_795_216_066_000, 1_795_216_066_000.5, 1e15, timedelta(days=999_999_999),
     datetime.max.replace(tzinfo=timezone.utc)],
)  # fmt: skip
def test_milliseconds_are_refused_with_the_remedy(moment: Any) -> None:
    """As seconds they would mean the year 58,857."""
    with pytest.raises(InvalidJob, match="milliseconds: divide it by 1000"):
        due(moment, AT)


def test_a_number_that_python_does_not_write_is_refused_without_a_traceback() -> None:
    with pytest.raises(InvalidJob, match="a number of too many digits is not a time"):
        due(10**5000, AT)
