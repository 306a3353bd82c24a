"""The text that a scraper reads, made by prometheus_client. Loads that library: the extra
``metrics``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector

from .. import default_client
from ..client import Client
from ..errors import ForkqError
from ..store.connection import ConnectionLost, RedisError
from ..wire.printable import printable
from .collect import Collector
from .families import FAMILIES, UP, Family
from .samples import Samples

# Seconds that one scrape may take. Prometheus waits for 10 by default.
_LONGEST: Final = 5.0
# For so many seconds a second scraper gets the figures of the first one.
_FRESH: Final = 1.0


class Page(NamedTuple):
    """What to answer a scraper with."""

    content_type: str
    body: bytes


class Exposition:
    """Renders the figures of one Redis. Thread-safe: one scrape at a time asks Redis. ``client``
    makes the client; it is called for each scrape and may raise ForkqError."""

    def __init__(self, client: Callable[[], Client] = default_client.default) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._samples = Samples()
        self._fresh_until = 0.0
        self.error = ""

    def render(self, accept: str = "") -> Page:
        """The page in the format that the header ``Accept`` asks for. It never raises because of
        Redis: then ``forkq_up`` is 0, there are no other figures, and ``error`` says why."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(self._current()))
        return Page(content_type, encode(registry))

    def check(self) -> str:
        """Why Redis cannot be asked now; "" if it can: one PING."""
        return self._why_not(lambda connection: connection.call("PING"))

    def _current(self) -> Samples:
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._samples = self._scrape()
                self._fresh_until = time.monotonic() + _FRESH
            return self._samples

    def _scrape(self) -> Samples:
        begun = time.monotonic()
        found = Samples()

        def collect(connection: Any) -> None:
            nonlocal found
            keys = self._client().keys
            found = Collector(connection, keys, begun + _LONGEST).collect()

        self.error = self._why_not(collect)
        samples = Samples() if self.error else found
        samples.add(UP.name, int(not self.error))
        samples.add("forkq_scrape_duration_seconds", time.monotonic() - begun)
        return samples

    def _why_not(self, ask: Callable[[Any], object]) -> str:
        try:
            with self._client().connection() as connection:
                ask(connection)
        except (ForkqError, RedisError, *ConnectionLost) as error:
            return printable(str(error)) or type(error).__name__
        return ""


class _Families(PrometheusCollector):
    """One scrape as prometheus_client reads it."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            if family.kind == "histogram":
                yield self._histogram(family)
            elif family.name in self._samples.values:
                yield self._plain(family)

    def _plain(self, family: Family) -> Metric:
        make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = make(family.name, family.help, labels=family.labels)
        for labels, value in self._samples.values[family.name].items():
            metric.add_metric(labels, value)
        return metric

    def _histogram(self, family: Family) -> Metric:
        metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, found in self._samples.histograms[family.name].items():
            metric.add_metric(labels, found.buckets(), found.seconds)
        return metric
