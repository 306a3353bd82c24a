"""Metrics, as the SDK's own reader collects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from redis import Redis

import forkq
from forkq import default_client, middleware, testing
from forkq.contrib import otel, runs
from forkq.contrib.otel.redis_gauges import instrument_of
from forkq.contrib.otel.run_measures import Names
from forkq.metrics.families import FAMILIES
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("clean_process")


class Metrics:
    """What the SDK collects."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    def all(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        scopes = (
            [scope for each in data.resource_metrics for scope in each.scope_metrics]
            if data
            else []
        )
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name: str) -> dict[tuple[Any, ...], Any]:
        """The points by the values of their attributes."""
        metric = self.all()[name]
        return {
            tuple((point.attributes or {}).values()): point for point in metric.data.data_points
        }

    def values(self, name: str) -> dict[tuple[Any, ...], float]:
        return {key: point.value for key, point in self.points(name).items()}


@pytest.fixture
def found() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.provider.shutdown()


def test_children_count_and_measure_their_jobs(found: Metrics) -> None:
    @forkq.job(name="app.Ping", queue="mail")
    def ping() -> None:
        """Does nothing."""

    @forkq.job(name="app.Fails", retry=1)
    def fails() -> None:
        raise ValueError("no such picture")

    @forkq.job(name="app.Gone", retry_in=lambda count, error, job: forkq.DISCARD)
    def gone() -> None:
        raise LookupError

    otel.instrument(meter_provider=found.provider)
    with testing.fake() as jobs:
        ping.perform_async()
        ping.perform_bulk([[]] * 3)
        fails.perform_async()
        gone.perform_async()
        jobs.drain(check=False)
    assert found.values("forkq.jobs") == {
        ("app.Ping", "done"): 4,
        ("app.Fails", "retried"): 1,
        ("app.Fails", "dead"): 1,
        ("app.Gone", "dropped"): 1,
    }
    runs = found.points("forkq.job.run")
    assert {key: point.count for key, point in runs.items()} == {("app.Ping",): 4}
    assert runs["app.Ping",].explicit_bounds[:2] == (0.02, 0.045)
    assert {key: point.count for key, point in found.points("forkq.job.wait").items()} == {
        ("mail",): 4,
        ("default",): 3,
    }
    assert found.all()["forkq.job.run"].unit == "s"
    durations = found.points("messaging.process.duration")
    assert {key: point.count for key, point in durations.items()} == {
        ("forkq", "process", "mail"): 4,
        ("forkq", "process", "default", "ValueError"): 2,
        ("forkq", "process", "default"): 1,
    }
    sent = found.values("messaging.client.sent.messages")
    assert sent == {("forkq", "send", "mail"): 4, ("forkq", "send", "default"): 2}


def test_what_is_not_counted(found: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted job runs again; a class that the app does not have could be any."""
    otel.instrument(meter_provider=found.provider)

    def interrupted() -> None:
        raise forkq.Shutdown

    @forkq.job(name="app.Ping")
    def ping() -> None:
        """Never run here."""

    middleware.server.run({"class": "app.None"}, lambda: None)
    monkeypatch.setattr(runs, "stopping", lambda: True)
    with pytest.raises(forkq.Shutdown):
        middleware.server.run({"class": "app.Ping"}, interrupted)
    assert "forkq.jobs" not in found.all()


def test_the_names_with_series_of_their_own_are_bounded() -> None:
    names = Names()
    assert [names.bounded(str(number)) for number in range(502)][-3:] == [
        "499",
        "(other)",
        "(other)",
    ]
    assert names.bounded("7") == "7"


def test_an_exporter_for_prometheus_makes_the_names_of_forkq_metrics() -> None:
    """It writes dots as underscores, and adds the unit; to a counter, ``_total``."""
    made = []
    for family in FAMILIES:
        name, unit = instrument_of(family)
        ending = {"s": "_seconds", "By": "_bytes", "": ""}[unit]
        total = "_total" if family.kind == "counter" else ""
        made.append(name.replace(".", "_") + ending + total)
    assert made == [family.query_name for family in FAMILIES]


def test_the_figures_of_redis(
    found: Metrics, pushes_here: Redis, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkq.metrics.scraper._LONGEST", 60.0)
    otel.observe_redis(meter_provider=found.provider)
    for number in range(3):
        forkq.Client(redis_server.url).push({"class": "A", "args": [number], "queue": "mail"})
    pushes_here.set("stat:processed", 7)
    assert found.values("forkq.queue.size") == {("mail",): 3}
    assert found.values("forkq.up") == {(): 1}
    assert found.values("forkq.jobs.processed") == {(): 7}
    all_found = found.all()
    assert all_found["forkq.queue.latency"].unit == "s"
    assert not {"forkq.jobs", "forkq.job.run"} & set(all_found), "the children report these"


def test_of_the_children_only_the_leader_reports(
    found: Metrics, pushes_here: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads: list[bool] = []
    monkeypatch.setattr("forkq.metrics.scraper._LONGEST", 60.0)
    monkeypatch.setattr(default_client, "server_config", object)
    monkeypatch.setattr("forkq.contrib.otel.redis_gauges.is_leader", lambda: bool(leads))
    otel.observe_redis(meter_provider=found.provider)
    assert found.all() == {}
    leads.append(True)
    assert found.values("forkq.up") == {(): 1}


def test_a_redis_that_is_away_is_told(found: Metrics) -> None:
    client = forkq.Client("redis://localhost:1")
    otel.observe_redis(lambda: client, meter_provider=found.provider)
    assert found.values("forkq.up") == {(): 0}
    assert set(found.all()) == {"forkq.up", "forkq.scrape.duration"}
