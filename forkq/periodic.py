"""Periodic jobs: how an app says them, and all that a child publishes of them. Any process.

``every`` only notes a definition; a child publishes those of the code and of the file when it has
loaded the app, and the leader's clock, which runs no app code, works from what stands in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from . import registry
from .config import Config
from .cron import Entry, Missed, Overlap
from .errors import InvalidJob, InvalidSchedule, UnknownJob
from .job import FunctionJob, Job
from .payload import DEFAULT_QUEUE
from .registry import JobSpec, PeriodicSpec

Target = TypeVar("Target", bound="type[Job] | FunctionJob[..., Any]")

_DEFAULTS: Mapping[str, Any] = {"retry": True, "queue": DEFAULT_QUEUE}


def every(
    expression: str,
    *,
    tz: str = "UTC",
    name: str | None = None,
    args: Sequence[Any] = (),
    queue: str | None = None,
    overlap: Overlap = "allow",
    missed: Missed = "once",
    jitter: float = 0,
    enabled: bool = True,
) -> Callable[[Target], Target]:
    """Decorator: pushes the job at each tick of the cron ``expression`` (schedule.Schedule), once
    in the whole cluster. It stands above ``@forkq.job`` or on a Job class, and more than once with
    several names; without ``name`` the periodic job has the job's.

    ``args``: what every run gets. ``queue``: instead of the job's own. ``overlap="skip"`` leaves a
    tick out while the job of an earlier one is queued or runs. ``missed``: of the ticks that passed
    while no clock was there, ``"skip"`` makes up for none, ``"once"`` for the latest, a number for
    so many. ``jitter``: seconds by which a push may come later, spread evenly. A clock pushes these
    jobs, so client middleware does not see them.

    Raises InvalidSchedule, or InvalidJob for arguments that the job could not take.
    """

    def register(target: Target) -> Target:
        spec = _spec_of(target)
        entry = Entry.make(
            name=spec.name if name is None else name,
            cron=expression,
            tz=tz,
            job=_template(spec, _listed(spec, args), {} if queue is None else {"queue": queue}),
            overlap=overlap,
            missed=missed,
            jitter=jitter,
            enabled=enabled,
        )
        registry.add_periodic(PeriodicSpec(entry.name, entry, spec.where, target))
        return target

    return register


def entries_by_origin(config: Config) -> dict[str, list[Entry]]:
    """What this app publishes: the entries of its code and those of its file. An origin without any
    is there too: what it published before is to go.

    Called when the app is loaded. Raises InvalidSchedule if a name is in both, InvalidJob if the
    file gives a job arguments that do not fit.
    """
    code = [spec.entry for spec in registry.periodic.values()]
    file = [_completed(entry, config) for entry in config.cron]
    _refuse_doubles(file, config)
    return {
        origin: [replace(entry, origin=origin) for entry in entries]
        for origin, entries in (
            (origin_of("code", config), code),
            (origin_of("file", config), file),
        )
    }


def origin_of(kind: str, config: Config) -> str:
    """Who publishes: ``code:shop``, ``file:shop``. With the tag, or without one the app, in it: two
    services on one Redis must not remove each other's entries."""
    return f"{kind}:{config.tag or ','.join(config.app)}"


def _spec_of(target: object) -> JobSpec:
    if isinstance(target, FunctionJob) or (isinstance(target, type) and issubclass(target, Job)):
        return registry.lookup(target.set().name)
    found = getattr(target, "__qualname__", repr(target))
    raise InvalidJob(
        f"@forkq.every stands on {found}, which is no job: put it above @forkq.job, "
        "or on a class that derives from forkq.Job"
    )


def _listed(spec: JobSpec, args: object) -> list[Any]:
    if not isinstance(args, list | tuple):
        raise InvalidJob(f"periodic job {spec.name!r}: args is {args!r}; pass a list")
    return list(args)


def _template(spec: JobSpec, args: list[Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that a tick pushes: the job's options under what the definition says itself."""
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidJob(
            f"job {spec.name!r} takes {takes} arguments, but args has {len(args)}: {args!r}"
        )
    return {**_DEFAULTS, **spec.options, **own, "class": spec.name, "args": args}


def _completed(entry: Entry, config: Config) -> Entry:
    """A file's entry with the options of its job, if this app has that job; one that it has not may
    be another app's, or a Ruby class."""
    try:
        spec = registry.lookup(entry.job["class"])
    except UnknownJob:
        return replace(entry, job={**_DEFAULTS, **entry.job})
    try:
        return replace(entry, job=_template(spec, entry.job["args"], entry.job))
    except InvalidJob as error:
        raise InvalidJob(f"{config.source}: [[cron]] {entry.name!r}: {error}") from None


def _refuse_doubles(entries: Iterable[Entry], config: Config) -> None:
    for entry in entries:
        known = registry.periodic.get(entry.name)
        if known is not None:
            raise InvalidSchedule(
                f"two periodic jobs are named {entry.name!r}: in the code on {known.where} and in "
                f"{config.source}; give one of them another name"
            )
