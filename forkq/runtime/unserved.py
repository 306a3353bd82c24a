"""What is wrong between the configuration and the app that was imported: jobs that go to a queue
that no capsule serves, and periodic jobs that no child can publish, or that push a job which the
app has not registered. Most likely a name is misspelt.

A child says so when it has loaded the app, ``forkq config check`` before that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from .. import registry
from ..config.config import Config
from ..cron.entry import Entry
from ..errors import InvalidJob, InvalidSchedule, nearest
from ..every import entries_by_origin
from ..limits.patterns import matches_any
from ..wire.payload import DEFAULT_QUEUE

UNKNOWN_JOBS: Final = "periodic jobs name jobs that this app has not registered; they will fail"


class Unserved(NamedTuple):
    """A queue that no capsule serves, and what goes there, as in "the job 'Mail'". ``meant``: a
    queue that one serves and that was probably meant; None if no name is near."""

    queue: str
    whose: str
    meant: str | None


def unserved(config: Config, *, app: bool = True) -> list[Unserved]:
    """The periodic jobs of the file and, with ``app``, the jobs of the app, which is imported,
    whose queue no capsule serves."""
    found = [*_of_file(config)]
    if app:
        found += (*_of_jobs(), *_of_periodic_jobs())
    served = config.queue_names
    return [
        Unserved(queue, whose, nearest(queue, served))
        for queue, whose in found
        if not matches_any(queue, served)
    ]


class PeriodicFaults(NamedTuple):
    """What is wrong with the periodic jobs of the configuration and of the app. ``error``: why no
    child can publish them; None if one can. ``unknown``: the names of those whose job the app has
    not registered."""

    error: InvalidJob | InvalidSchedule | None = None
    unknown: tuple[str, ...] = ()


def faults_of_periodic_jobs(config: Config) -> PeriodicFaults:
    """Looks at all periodic jobs as a child does when it publishes them. The app is imported."""
    try:
        entries = entries_by_origin(config)
    except (InvalidJob, InvalidSchedule) as error:
        return PeriodicFaults(error)
    unknown = with_unknown_jobs(chain(*entries.values()), config.queue_names)
    return PeriodicFaults(None, tuple(unknown))


def with_unknown_jobs(entries: Iterable[Entry], worked_on: Collection[str]) -> list[str]:
    """The names of the periodic jobs for the queues ``worked_on`` whose job the app, which is
    imported, has not registered."""
    known = set(registry.names())
    return sorted(
        entry.name
        for entry in entries
        if entry.job["class"] not in known
        and matches_any(entry.job.get("queue", DEFAULT_QUEUE), worked_on)
    )


def queue_of(spec: registry.JobSpec) -> str:
    """The queue that a job is pushed to if the push says nothing else."""
    return str(spec.options.get("queue", DEFAULT_QUEUE))


def _of_file(config: Config) -> Iterator[tuple[str, str]]:
    """The queues of the periodic jobs of the file, and what goes there."""
    for entry in config.cron:
        if "queue" in entry.job:  # else it is the job's own
            yield entry.job["queue"], f"the periodic job {entry.name!r}"


def _of_jobs() -> Iterator[tuple[str, str]]:
    for name in registry.names():
        spec = registry.lookup(name)
        yield queue_of(spec), f"the job {name!r}"
        if "retry_queue" in spec.options:
            yield str(spec.options["retry_queue"]), f"retries of the job {name!r}"


def _of_periodic_jobs() -> Iterator[tuple[str, str]]:
    for name, spec in registry.periodic.items():
        if spec.entry.job["queue"] != queue_of(spec.job):
            yield spec.entry.job["queue"], f"the periodic job {name!r}"
