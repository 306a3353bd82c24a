"""Periodic jobs: how an app says them, and all that a child publishes of them. Any process.

``every`` only notes a definition; a child publishes those of the code and of the file when it has
loaded the app, and the leader's clock, which runs no app code, works from what stands in Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import Any, Final, TypeGuard, TypeVar

from . import registry
from .config.config import Config
from .config.schema import nearest
from .cron.entry import Entry, Missed, Overlap
from .cron.service import origin_of, service_name
from .errors import InvalidJob, InvalidSchedule, UnknownJob
from .job import OPTIONS, FunctionJob, Job
from .registry import JobSpec, PeriodicSpec
from .wire.payload import DEFAULT_QUEUE

Target = TypeVar("Target", bound="type[Job] | FunctionJob[..., Any]")

# What a payload says where neither its job nor the definition says it.
DEFAULTS: Final[Mapping[str, Any]] = {"retry": True, "queue": DEFAULT_QUEUE}
# What ``api.cron.add`` may be told by keyword, but for payload keys of one's own.
_KEYWORDS: Final = [*OPTIONS, "args", "tz", "overlap", "missed", "jitter", "enabled"]


def every(
    expression: str,
    *,
    tz: str | tzinfo = "UTC",
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

    Raises InvalidSchedule, or InvalidJob for arguments that the job could not take; both name it.
    """
    _refuse_bare(expression)

    def register(target: Target) -> Target:
        spec = _spec_of(target)
        try:
            entry = Entry.make(
                name=spec.name if name is None else name,
                cron=expression,
                tz=tz,
                job=template(spec, args, {} if queue is None else {"queue": queue}),
                overlap=overlap,
                missed=missed,
                jitter=jitter,
                enabled=enabled,
            )
        except (InvalidSchedule, InvalidJob) as error:
            raise type(error)(f"@forkq.every on {spec.where}: {error}") from None
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
    service = service_name(config.tag, config.app)
    return {
        origin: [replace(entry, origin=origin) for entry in entries]
        for origin, entries in (
            (origin_of("code", service), code),
            (origin_of("file", service), file),
        )
    }


def template(spec: JobSpec, args: object, own: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that a tick pushes: the job's options under what the definition says itself.
    Raises InvalidJob for arguments that do not fit the job."""
    if not isinstance(args, list | tuple):
        raise InvalidJob(f"periodic job {spec.name!r}: args is {args!r}; pass a list")
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidJob(
            f"job {spec.name!r} takes {takes} arguments, but args has {len(args)}: {[*args]!r}"
        )
    return {**DEFAULTS, **spec.options, **own, "class": spec.name, "args": [*args]}


def template_of(job: object, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """As ``template``, for a job class or function, or a registered name; any name, if the job is
    another app's. Raises InvalidJob also for what is no job, and for a misspelt option."""
    _refuse_misspelt(options)
    if isinstance(job, str):
        name = job
    elif _is_job(job):
        name = job.set().name
    else:
        raise InvalidJob(
            f"{getattr(job, '__qualname__', repr(job))} is no job: pass a function under "
            "@forkq.job, a class that derives from forkq.Job, or a registered name"
        )
    try:
        spec = registry.lookup(name)
    except UnknownJob:
        return {**DEFAULTS, **options, "class": name, "args": [*args]}
    return template(spec, args, options)


def _refuse_misspelt(options: Mapping[str, Any]) -> None:
    """A payload may have keys of one's own; but one that looks like a keyword is that, misspelt."""
    for key in options.keys() - OPTIONS:
        near = nearest(key, _KEYWORDS, 0.75)
        if near is not None:
            raise InvalidJob(f"there is no option {key!r}; the nearest is {near!r}")


def _is_job(target: object) -> TypeGuard[type[Job] | FunctionJob[..., Any]]:
    return isinstance(target, FunctionJob) or (isinstance(target, type) and issubclass(target, Job))


def _refuse_bare(expression: object) -> None:
    if callable(expression):
        raise InvalidSchedule(
            f"@forkq.every on {getattr(expression, '__qualname__', repr(expression))} does not say "
            'when: write @forkq.every("*/5 * * * *") above @forkq.job, or on the Job class'
        )


def _spec_of(target: object) -> JobSpec:
    if _is_job(target):
        return registry.lookup(target.set().name)
    found = getattr(target, "__qualname__", repr(target))
    raise InvalidJob(
        f"@forkq.every stands on {found}, which is no job: put it above @forkq.job, "
        "or on a class that derives from forkq.Job"
    )


def _completed(entry: Entry, config: Config) -> Entry:
    """A file's entry with the options of its job, if this app has that job; one that it has not may
    be another app's, or a Ruby class."""
    try:
        spec = registry.lookup(entry.job["class"])
    except UnknownJob:
        return replace(entry, job={**DEFAULTS, **entry.job})
    try:
        return replace(entry, job=template(spec, entry.job["args"], entry.job))
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
