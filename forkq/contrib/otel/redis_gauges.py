"""What ``forkq metrics`` serves, through OpenTelemetry: the figures of the whole cluster.

What a child measures itself is not among them (run_measures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from forkq import default_client
from forkq.client import Client
from forkq.metrics.families import FAMILIES, Family
from forkq.metrics.samples import Labels
from forkq.metrics.scraper import Scraper
from forkq.process_state import is_leader
from forkq.version import __version__

from .naming import SCHEMA

Observe = Callable[[CallbackOptions], Iterator[Observation]]

_UNITS: Final[Mapping[str, str]] = {"_seconds": "s", "_bytes": "By"}
_MEASURED: Final = ("forkq_jobs", "forkq_job_run_seconds", "forkq_job_wait_seconds")


def observe_redis(
    client: Callable[[], Client] = default_client.default,
    *,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Reports queues, sets, processes and Redis itself, whenever the reader of the provider
    collects. Call it once in a process, when there is a provider. Of all children only the leader
    reports; any other process always does, so call it in one of them.
    """
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    meter = provider.get_meter("forkq", __version__, SCHEMA)
    scraper = Scraper(client)
    for family in FAMILIES:
        if family.name not in _MEASURED:
            _create(meter, family, _callback(scraper, family))


def instrument_of(family: Family) -> tuple[str, str]:
    """The name and the unit of the instrument for a metric: ``forkq_queue_latency_seconds`` is
    ``forkq.queue.latency`` in ``s``."""
    ending = next((each for each in _UNITS if family.name.endswith(each)), "")
    name = family.name.removesuffix(ending).replace("_", ".", 2)
    return name, _UNITS.get(ending, "")


def _create(meter: Meter, family: Family, callback: Observe) -> None:
    name, unit = instrument_of(family)
    if family.kind == "counter":
        meter.create_observable_counter(name, [callback], unit, family.help)
    else:
        meter.create_observable_gauge(name, [callback], unit, family.help)


def _callback(scraper: Scraper, family: Family) -> Observe:
    def observe(_options: CallbackOptions) -> Iterator[Observation]:
        if default_client.server_config() is not None and not is_leader():
            return
        found: Mapping[Labels, float] = scraper.current().values.get(family.name, {})
        for labels, value in found.items():
            yield Observation(value, dict(zip(family.labels, labels, strict=True)))

    return observe
