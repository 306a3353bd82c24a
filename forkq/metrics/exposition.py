"""The text that a scraper reads, made by prometheus_client. Loads that library: the extra
``metrics``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector

from .families import FAMILIES, Family
from .samples import Samples
from .scraper import Scraper


class Page(NamedTuple):
    """What to answer a scraper with."""

    content_type: str
    body: bytes


class Exposition(Scraper):
    """Renders the figures of one Redis."""

    def render(self, accept: str = "") -> Page:
        """The page in the format that the header ``Accept`` asks for; see ``current``."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(self.current()))
        return Page(content_type, encode(registry))


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
