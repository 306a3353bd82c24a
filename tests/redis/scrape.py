"""A scrape of a real Redis, read by Prometheus' own parsers, and a child that only counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from forkq.child.heartbeat.stats import Tally, total
from forkq.child.heartbeat.stats_flush import StatsFlusher
from forkq.client import Client
from forkq.store.connection import RedisConnection
from forkq.wire.keys import Keys
from tests.support.recorded_log import RecordedLog

pytest.importorskip("prometheus_client", reason="missing: pip install --group test")
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from forkq.metrics.exposition import Exposition

NOW = 1_800_000_000.0
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class CountingChild:
    """The counts of one child, which end in Redis with each ``flush``."""

    def __init__(self, url: str, identity: str = "host:1:abc") -> None:
        self.tally = Tally()
        self.ran_twice: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self._connection = RedisConnection(url, timeout=30)
        self._flusher = StatsFlusher(identity, Keys(), RecordedLog())

    def flush(self) -> None:
        self._connection.connect()
        self._flusher.flush(self._connection, total([self.tally], self.ran_twice, self.ended))

    def close(self) -> None:
        self._connection.close()


@contextmanager
def exposition(url: str, timeout: float = 30.0) -> Iterator[Exposition]:
    client = Client(url, timeout=timeout, connect_timeout=timeout)
    try:
        yield Exposition({"": lambda: client})
    finally:
        client.close()


def samples(url: str, accept: str = "") -> dict[tuple[str, tuple[str, ...]], float]:
    """Name and label values in the order of the labels' names -> value."""
    with exposition(url) as found:
        text = found.render(accept).body.decode()
        assert found.error == ""
    families: Iterable[Any] = (parse_openmetrics if accept else parse)(text)
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
