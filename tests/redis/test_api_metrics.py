"""The API reads the metrics that children, and Sidekiq's processes, write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest
from redis import Redis

import forkq
from forkq import default_client
from forkq.api import Histogram, Metrics
from forkq.errors import ForkqError
from forkq.store.deploys import mark
from forkq.wire.histogram import BOUNDS
from forkq.wire.keys import Keys
from tests.redis.test_metrics import NOON, CountingChild
from tests.support.server import Server

AT = NOON.timestamp()


@pytest.fixture(autouse=True)
def child(
    redis: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CountingChild]:
    """A child that counts, beside the process's client, on an empty server."""
    monkeypatch.setattr(default_client, "_default", None)
    client = forkq.configure(redis_server.url, environ={})
    with closing(CountingChild(redis_server.url)) as child:
        child.connection.connect()
        yield child
    client.close()


def test_classes_over_time(child: CountingChild) -> None:
    for minutes in (3, 1):
        child.at = NOON - timedelta(minutes=minutes)
        child.tally.count_done("Mail", 0.25)
        child.tally.count_done("Mail", 0.75)
        child.tally.count_failed("Mail")
        child.flush()
    child.tally.count_done("Other", 9)
    child.flush()
    mark(child.connection, Keys(), "v7", AT - 120)
    report = Metrics().over(5, at=AT)
    assert (report.begins, report.ends, report.step) == (AT - 30 - 240, AT + 30, 60)
    assert [row.job for row in report.classes] == ["Other", "Mail"]  # by the time spent
    mail = report.classes[1]
    assert [point.processed for point in mail.points] == [0, 3, 0, 3, 0]
    assert (mail.processed, mail.failed, mail.seconds, mail.average) == (6, 2, 2.0, 0.5)
    assert (report.total.processed, report.total.job) == (7, "")
    assert [(mark.label, mark.at) for mark in report.deploys] == [("v7", AT - 30 - 120)]
    assert [mark.label for mark in Metrics().over(1, at=AT).deploys] == []


def test_a_long_span_has_tens_of_minutes(child: CountingChild) -> None:
    child.at = NOON - timedelta(hours=30)
    child.tally.count_done("Mail", 0.25)
    child.flush()
    report = Metrics().over(3 * 24 * 60, at=AT)
    assert (report.step, len(report.total.points), report.total.processed) == (600, 432, 1)
    with pytest.raises(ForkqError, match="1 to 4320"):
        Metrics().over(4321)


def test_an_empty_span_and_foreign_fields(child: CountingChild, redis: Redis) -> None:
    empty = Metrics().over(5, at=AT)
    assert (empty.classes, [point.processed for point in empty.total.points]) == ((), [0] * 5)
    redis.hset("j|260309|12:04", mapping={"A|p": "x", "|p": 1, "p": 1, "A|odd": 1, b"\xff|p": 2})
    redis.set("j|260309|12:03", "x")
    redis.set("h|A-9-12:4", b"\xff" * 100)
    [row] = Metrics().over(5, at=AT).classes
    assert (row.job, row.processed, row.average) == ("\ufffd", 2, 0.0)
    assert Metrics().histogram("A", at=AT).count == 26 * 65_535


def test_run_times_and_their_percentiles(child: CountingChild) -> None:
    for _ in range(98):
        child.tally.count_done("Mail", 0.01)
    child.tally.count_done("Mail", 1.0)
    child.tally.count_done("Mail", 1000)
    child.flush()
    found = Metrics().histogram("Mail", 30, at=AT)
    assert (len(found.columns), found.count) == (30, 100)
    assert [found.buckets[0], sum(found.columns[-1])] == [98, 100]
    p50, p95, p99 = found.percentiles()
    assert p50 is not None
    assert 0 < p50 < BOUNDS[0]
    assert p95 is not None
    assert p95 < BOUNDS[0]
    assert p99 == pytest.approx(1.1)  # the bound of its bucket
    assert found.percentile(100) == BOUNDS[-1]
    assert Metrics().histogram("Other", at=AT).percentiles() == (None, None, None)
    assert list(Metrics().histograms(["Mail", "Other"], at=AT)) == ["Mail", "Other"]
    with pytest.raises(ForkqError, match="1 to 480"):
        Metrics().histogram("Mail", 481)


def test_a_percentile_lies_within_its_bucket() -> None:
    columns = ((0, 10, *([0] * 24)),)
    found = Histogram("A", 0.0, 60.0, 60, columns)
    assert found.percentile(50) == pytest.approx((BOUNDS[0] + BOUNDS[1]) / 2)
    assert found.percentile(0) == BOUNDS[0]


def test_deploys_of_some_days(child: CountingChild, redis: Redis) -> None:
    today = datetime.now(timezone.utc)
    mark(child.connection, Keys(), "new", today.timestamp())
    mark(child.connection, Keys(), "old", today.timestamp() - 40 * 86_400)
    redis.hset(f"{today:%Y%m%d}-marks", "nonsense", "x")
    assert "new" in [mark.label for mark in Metrics().deploys(2)]
    assert [mark.label for mark in Metrics().deploys(60)] == ["old", "new"]
    with pytest.raises(ForkqError, match="1 to 90"):
        Metrics().deploys(91)
