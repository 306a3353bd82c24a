"""Lengths of time and ages are read in one way everywhere."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import click
import pytest

from forkq.api import spans
from forkq.cli.push import push
from forkq.errors import ForkqError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1h30m", 5400), ("0.5d", 43_200)]
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert spans.span(text) == spans.age(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "5 m", "m", "-1h", "1h-", "٣s", "1e9d"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ForkqError, match="write it like 90s, 5m"):
        spans.span(text)


def test_an_age_may_be_a_time() -> None:
    before = datetime.fromtimestamp(time.time()) - timedelta(hours=2)
    assert 7200 <= spans.age(before.isoformat()) < 7260
    with pytest.raises(ForkqError, match="in the future"):
        spans.age((before + timedelta(days=1)).isoformat())
    with pytest.raises(ForkqError, match="neither a length of time"):
        spans.age("2026-13-01")


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("0.3", 0.3), ("-1", -1)])
def test_a_push_takes_the_same_lengths_and_seconds(text: str, seconds: float) -> None:
    context = push.make_context("push", ["Mail", "--in", text])
    assert context.params["delay"] == seconds


def test_a_push_refuses_what_is_no_length_of_time() -> None:
    with pytest.raises(click.BadParameter, match="'later' is not a length of time"):
        push.make_context("push", ["Mail", "--in", "later"])
