"""Durations, sizes, counts and shares are written and read in one way everywhere."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import click
import pytest

from forkq.cli.push import push
from forkq.errors import ForkqError
from forkq.units import (
    format_count,
    format_duration,
    format_moment,
    format_share,
    format_size,
    parse_age,
    parse_duration,
    parse_size,
    plural,
)
from forkq.wire.histogram import BOUNDS


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("0.5d", 43_200)]
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "5 m", "m", "-1h", "1h-", "٣s", "1e9d"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ForkqError, match="write it like 90s, 5m"):
        parse_duration(text)


def test_an_age_may_be_a_time() -> None:
    before = datetime.fromtimestamp(time.time()) - timedelta(hours=2)
    assert 7200 <= parse_age(before.isoformat()) < 7260
    with pytest.raises(ForkqError, match="in the future"):
        parse_age((before + timedelta(days=1)).isoformat())
    with pytest.raises(ForkqError, match="neither a length of time"):
        parse_age("2026-13-01")


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("0.3", 0.3), ("0", 0)])
def test_a_push_takes_the_same_lengths_and_seconds(text: str, seconds: float) -> None:
    context = push.make_context("push", ["Mail", "--in", text])
    assert context.params["delay"] == seconds


def test_a_push_refuses_what_is_no_length_of_time() -> None:
    with pytest.raises(click.BadParameter, match="'later' is not a length of time"):
        push.make_context("push", ["Mail", "--in", "later"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (-0.3, "0 s"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (1, "1 s"),
        (1.25, "1.2 s"), (9.96, "10 s"), (17.2, "17 s"), (119, "119 s"), (120, "2 min"),
        (600, "10 min"), (9000, "2.5 h"), (170_000, "47 h"), (400_000, "4.6 d"),
        (1e13, "-"), (float("nan"), "-"), (float("inf"), "-"),
    ],
)  # fmt: skip
def test_durations_are_short_to_read(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_chart_names_each_bound_of_run_times_differently() -> None:
    names = [format_duration(bound) for bound in BOUNDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("away", "text"),
    [
        (0.5, "just now"), (245, "in 4.1 min"), (-3 * 3600, "3 h ago"), (1e13, "never"),
        (-1e13, "long ago"), (float("nan"), "-"),
    ],
)  # fmt: skip
def test_a_moment_is_told_from_now(away: float, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert format_moment(1_000_000 + away) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("0MB", 0), ("100B", 100), ("1KB", 1024), ("512MB", 512 << 20),
        ("512m", 512 << 20),
        ("512 MiB", 512 << 20), ("1.5GB", 1536 << 20), ("2T", 2 << 40),
    ],
)  # fmt: skip
def test_spellings_of_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (999, "999B"), (1000, "1KB"), (81 << 20, "81MB"), (1536 << 20, "1.5GB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


def test_what_is_shown_as_a_size_can_be_written() -> None:
    for size in (81 << 20, 1536 << 20, 2 << 40):
        assert parse_size(format_size(size)) == size


def test_counts_and_shares() -> None:
    assert [plural(count, "job") for count in (0, 1, 1204)] == ["0 jobs", "1 job", "1,204 jobs"]
    assert plural(2, "process", "processes") == "2 processes"
    assert [format_count(number) for number in (None, 12.4, 1234567)] == ["-", "12", "1,234,567"]
    assert [format_share(0.4249), format_share(0.4249, 1)] == ["42%", "42.5%"]
