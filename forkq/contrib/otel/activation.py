"""Puts OpenTelemetry around pushes and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opentelemetry import metrics, trace

from forkq import registry
from forkq.contrib.flushing import flush_within
from forkq.contrib.runs import observe
from forkq.errors import ConfigError
from forkq.version import __version__

from .naming import SCHEMA, NameBy, Naming
from .push_spans import OtelPushSpans
from .run_measures import RunMeasures
from .run_spans import PROPAGATIONS, Propagation, RunSpans


def instrument(
    *,
    propagation: Propagation = "link",
    name_by: NameBy = "queue",
    system: str = "forkq",
    flush_timeout: float = 2.0,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """A span for each push, one for each run of a job, and metrics of both. Call it where the app
    is imported, in the processes that push, too. It starts nothing: make the providers in
    ``@forkq.on("startup")``.

    ``propagation``: how the span of a run knows that of its push: "link", "child" (both are one
    trace), or "none". ``name_by``: what follows the operation in a span's name, the "queue" or the
    "class". ``system``: the value of ``messaging.system``. ``flush_timeout``: how long a child
    that ends waits for the collector, in seconds. Without a provider the global one is used. A
    second call replaces the first. Raises ConfigError.
    """
    _check("propagation", propagation, PROPAGATIONS)
    _check("name_by", name_by, ("queue", "class"))
    naming = Naming(system, name_by)
    tracer = trace.get_tracer("forkq", __version__, tracer_provider, SCHEMA)
    meter = metrics.get_meter("forkq", __version__, meter_provider, SCHEMA)
    _pushes.install(tracer, meter, naming)
    observe(RunSpans(tracer, naming, propagation))
    observe(RunMeasures(meter, naming))
    _flush_at_exit(flush_timeout, tracer_provider, meter_provider)


class _OtelFlush:
    """The handler of ``exit``. There is one, with the values of the latest call."""

    def __init__(self) -> None:
        self.timeout = 0.0
        self.tracers: object = None
        self.meters: object = None

    def __call__(self) -> None:
        tracers = self.tracers or trace.get_tracer_provider()
        meters = self.meters or metrics.get_meter_provider()
        flush_within(self.timeout, [each for p in (tracers, meters) if (each := _flush_of(p))])


_flush: Final = _OtelFlush()
_pushes: Final = OtelPushSpans()


def _flush_at_exit(timeout: float, tracers: object, meters: object) -> None:
    _flush.timeout, _flush.tracers, _flush.meters = timeout, tracers, meters
    if _flush not in registry.handlers("exit"):
        registry.on("exit")(_flush)


def _flush_of(provider: Any) -> Callable[[], object] | None:
    """The method of a provider that sends what it has; None for a provider of the API alone."""
    return getattr(provider, "force_flush", None)


def _check(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        found = ", ".join(repr(each) for each in known)
        raise ConfigError(f"otel.instrument: {name} is {value!r}; use one of {found}")
