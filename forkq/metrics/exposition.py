"""The text that a scraper reads, made by prometheus_client. Loads that library: the extra
``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as PrometheusCollector

from ..client import Client
from .families import FAMILIES, SHARD, Family
from .samples import Labels, Samples
from .scraper import Scraper

T = TypeVar("T")
Plain: TypeAlias = "CounterMetricFamily | GaugeMetricFamily"
_PLAIN: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class MetricsText(NamedTuple):
    """What to answer a scraper with."""

    content_type: str
    body: bytes


class Exposition:
    """Renders the figures of each shard, with its name as a label. ``clients`` makes the client of
    each, by its name; where there are no shards, the name is "" and there is no label."""

    def __init__(self, clients: Mapping[str, Callable[[], Client]]) -> None:
        self._scrapers = {name: Scraper(client) for name, client in clients.items()}

    def render(self, accept: str = "") -> MetricsText:
        """The page in the format that the header ``Accept`` asks for; see ``Scraper.current``."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(self._each(Scraper.current)))
        return MetricsText(content_type, encode(registry))

    @property
    def error(self) -> str:
        """Why ``forkq_up`` was 0; "" if it was 1 everywhere."""
        return _together({name: one.error for name, one in self._scrapers.items()})

    def check(self) -> str:
        """Why no Redis can be asked now; "" if one can: a shard that is down hides no other one."""
        found = self._each(Scraper.check)
        return _together(found) if all(found.values()) else ""

    def _each(self, ask: Callable[[Scraper], T]) -> dict[str, T]:
        """The answer of each shard, all asked at once: each may take its whole time."""
        with ThreadPoolExecutor(len(self._scrapers)) as threads:
            return dict(zip(self._scrapers, threads.map(ask, self._scrapers.values()), strict=True))


def _together(errors: Mapping[str, str]) -> str:
    told = {name: error for name, error in errors.items() if error}
    return "; ".join(f"shard {name}: {error}" if name else error for name, error in told.items())


class _Families(PrometheusCollector):
    """One scrape as prometheus_client reads it."""

    def __init__(self, found: Mapping[str, Samples]) -> None:
        self._found: dict[Labels, Samples] = {
            (name,) if name else (): samples for name, samples in found.items()
        }
        self._label = () if "" in found else (SHARD,)

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            if family.kind == "histogram":
                yield self._histogram(family)
            elif any(family.name in samples.values for samples in self._found.values()):
                yield self._plain(family)

    def _plain(self, family: Family) -> Metric:
        labels = (*self._label, *family.labels)
        metric: Plain = _PLAIN[family.kind](family.name, family.help, labels=labels)
        for shard, samples in self._found.items():
            for values, value in samples.values[family.name].items():
                metric.add_metric((*shard, *values), value)
        return metric

    def _histogram(self, family: Family) -> Metric:
        labels = (*self._label, *family.labels)
        metric = HistogramMetricFamily(family.name, family.help, labels=labels)
        for shard, samples in self._found.items():
            for values, found in samples.histograms[family.name].items():
                metric.add_metric((*shard, *values), found.buckets(), found.seconds)
        return metric
