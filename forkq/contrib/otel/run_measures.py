"""What a child measures of its jobs: counts, run times and waits.

The names are those of docs/metrics.md, with OpenTelemetry's dots and units: an exporter for
Prometheus makes ``forkq_job_run_seconds`` of ``forkq.job.run``.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Meter

from forkq import registry
from forkq.contrib.runs import ObservedRun, RunObserver
from forkq.wire.histogram import BOUNDS, WAIT_BOUNDS

from .naming import Naming, error_type

# Names with series of their own: a payload may name any queue, and any class that it wraps.
_MOST_NAMES: Final = 500
_OTHER: Final = "(other)"
_CONVENTIONAL: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class RunMeasures(RunObserver):
    """An observer that measures runs. A job that was interrupted is not counted: it runs again."""

    def __init__(self, meter: Meter, naming: Naming) -> None:
        self._naming = naming
        self._queues = Names()
        self._classes = Names()
        self._jobs = meter.create_counter(
            "forkq.jobs", "{job}", "Runs of forkq's children by outcome"
        )
        self._runs = meter.create_histogram(
            "forkq.job.run",
            "s",
            "Run time of successful runs",
            explicit_bucket_boundaries_advisory=BOUNDS[::2],
        )
        self._waits = meter.create_histogram(
            "forkq.job.wait",
            "s",
            "From the push to the start",
            explicit_bucket_boundaries_advisory=WAIT_BOUNDS,
        )
        self._durations = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_CONVENTIONAL,
        )

    def ended(self, run: ObservedRun) -> None:
        if run.outcome == "interrupted" or registry.find(run.job["class"]) is None:
            return
        name, queue = self._classes.bounded(run.name), self._queues.bounded(run.queue)
        self._jobs.add(1, {"class": name, "outcome": run.counted_as})
        if run.outcome == "done":
            self._runs.record(run.elapsed, {"class": name})
        if run.waited is not None:
            self._waits.record(run.waited, {"queue": queue})
        failure = {"error.type": error_type(run.error)} if run.failed and run.error else {}
        self._durations.record(run.elapsed, {**self._naming.operation("process", queue), **failure})


class Names:
    """The names that have series of their own; all later ones count together."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def bounded(self, name: str) -> str:
        """``name``, or the common name of all that came too late."""
        if name in self._known:
            return name
        if len(self._known) >= _MOST_NAMES:
            return _OTHER
        self._known.add(name)
        return name
