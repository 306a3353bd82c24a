"""Periodic jobs: how an app defines them, and what a child publishes. Any process.

``every`` only registers a definition. A child that has loaded the app publishes the definitions of
the code and of the file in Redis. The leader's clock runs no app code; it reads them from Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from . import registry
from .errors import InvalidJob, InvalidSchedule, UnknownJob, nearest
from .job import FunctionJob, Job
from .registry import JobSpec, PeriodicSpec
from .values import replace
from .wire.options import OPTIONS
from .wire.payload import DEFAULT_QUEUE, KEY, check_bounds, dumps
from .wire.validation import placed

if TYPE_CHECKING:
    from .config.config import Config
    from .cron.entry import Entry, Missed, Overlap

Target = TypeVar("Target", bound="type[Job] | FunctionJob[..., Any]")

# The payload keys that neither the job nor the definition sets.
DEFAULTS: Final[Mapping[str, Any]] = {"retry": True, "queue": DEFAULT_QUEUE}
_MINUTE: Final = 60
# The keywords of ``api.cron.add``, except options of the job and payload keys of the user's own.
_KEYWORDS: Final = ("args", "tz", "overlap", "missed", "jitter", "enabled")


def every(
    expression: str,
    *,
    tz: str | tzinfo | None = None,
    name: str | None = None,
    args: Sequence[Any] = (),
    queue: str | None = None,
    overlap: Overlap = "allow",
    missed: Missed = "once",
    jitter: float = 0,
    enabled: bool = True,
) -> Callable[[Target], Target]:
    """Decorator: pushes the job at each tick of the cron ``expression`` (schedule.Schedule), once
    in the whole cluster. Use it above ``@forkq.job`` or on a Job class, also several times with
    several names; without ``name`` the periodic job has the name of the job.

    ``tz``: the time zone of the expression; without it, ``cron_tz`` of the configuration (UTC).
    ``args``: the arguments of every run. ``queue``: instead of the job's own. ``overlap="skip"``
    skips a tick while the job of an earlier one is queued or runs. ``missed``: how many of the
    ticks that passed while no clock ran to push late, newest first: ``"skip"`` none, ``"once"``
    one, or a number. ``jitter``: by how many seconds a push may be late, spread evenly. The clock
    pushes these jobs, so client middleware does not see them.

    Raises InvalidSchedule, or InvalidJob for arguments that the job could not take; both name it.
    """
    _refuse_bare(expression)
    policy: dict[str, Any] = {"overlap": overlap, "missed": missed, "jitter": jitter}
    policy |= {"enabled": enabled} if tz is None else {"enabled": enabled, "tz": tz}

    def register(target: Target) -> Target:
        spec = _spec_of(target)
        entry = _entry(spec, name, expression, args, queue, policy)
        has_zone = tz is not None
        registry.add_periodic(PeriodicSpec(entry.name, entry, spec, target, has_zone=has_zone))
        return target

    return register


def _entry(
    spec: JobSpec,
    name: str | None,
    expression: str,
    args: Sequence[Any],
    queue: str | None,
    policy: Mapping[str, Any],
) -> Entry:
    from .cron.entry import Entry  # noqa: PLC0415 - only an app with periodic jobs needs it

    try:
        job = template(spec, args, {} if queue is None else {"queue": queue})
        return Entry.make(
            name=spec.name if name is None else name, cron=expression, job=job, **policy
        )
    except (InvalidSchedule, InvalidJob) as error:
        raise type(error)(f"@forkq.every on {spec.where}: {error}") from None


def entries_by_origin(config: Config) -> dict[str, list[Entry]]:
    """What this app publishes: the entries of its code and those of its file. An origin without
    entries is included: Redis then deletes what it published before.

    A child calls it when it has loaded the app, `forkq config check` and `forkq doctor` to find
    what would keep that child from booting. Raises InvalidSchedule if a name is in both,
    InvalidJob if the file gives a job arguments that do not fit, or if a payload is beyond the
    bounds of the configuration.
    """
    from .cron.service import origin_of, service_name  # noqa: PLC0415 - no push needs it

    registry.type_all(on=config.typed_args)
    code = [
        spec.entry if spec.has_zone else spec.entry.in_zone(config.cron_tz)
        for spec in registry.periodic.values()
    ]
    file = [_completed(entry, config) for entry in config.cron]
    _refuse_doubles(file, config)
    _refuse_unbounded([*code, *file], config)
    service = service_name(config.tag, config.app)
    return {
        origin: [replace(entry, origin=origin) for entry in entries]
        for origin, entries in (
            (origin_of("code", service), code),
            (origin_of("file", service), file),
        )
    }


def template(spec: JobSpec, args: object, own: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that a tick pushes: the job's options, overridden by those of the definition.
    Raises InvalidJob for arguments that do not fit the job."""
    if not isinstance(args, list | tuple):
        raise InvalidJob(f"periodic job {spec.name!r}: args is {args!r}; pass a list")
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        takes = spec.takes
        raise InvalidJob(f"job {spec.name!r} takes {takes}, but args has {len(args)}: {[*args]!r}")
    given = [*args] if spec.reader is None else spec.reader.accepted(args)
    keys = placed({**DEFAULTS, **spec.options}, own, spec.name)
    return _with_digests({**keys, "class": spec.name, "args": given}, spec)


def template_of(job: object, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The payload that a tick pushes for a job class, a job function or a name. A name that is not
    registered is another app's job. Raises InvalidJob also for an object that is no job, and for a
    misspelt option."""
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
        return _with_digests(
            {**placed(DEFAULTS, options, name), "class": name, "args": [*args]}, None
        )
    return template(spec, args, options)


def _with_digests(job: dict[str, Any], spec: JobSpec | None) -> dict[str, Any]:
    """``job``; if it is unique or throttled, with the digests that its definition says. A clock
    does not know that."""
    if KEY not in job:
        return job
    from .features.marked import with_digests  # noqa: PLC0415 - other jobs need none of it

    return with_digests(job, spec)


def _refuse_misspelt(options: Mapping[str, Any]) -> None:
    """Raises InvalidJob for a key that resembles a keyword. Any other unknown key is the user's
    own."""
    for key in options.keys() - OPTIONS.keys():
        near = nearest(key, (*OPTIONS, *_KEYWORDS), 0.75)
        if near is not None:
            raise InvalidJob(f"there is no option {key!r}; the nearest is {near!r}")


def _is_job(target: object) -> TypeGuard[type[Job] | FunctionJob[..., Any]]:
    return isinstance(target, FunctionJob) or (isinstance(target, type) and issubclass(target, Job))


def _refuse_bare(expression: object) -> None:
    if isinstance(expression, timedelta):
        expression = expression.total_seconds()
    if isinstance(expression, int | float):
        raise InvalidSchedule(
            f"@forkq.every takes a cron expression, not {expression:g} seconds: write "
            f'@forkq.every("{_cron_of(expression)}")'
        )
    if callable(expression):
        raise InvalidSchedule(
            f"@forkq.every on {getattr(expression, '__qualname__', repr(expression))} does not say "
            'when: write @forkq.every("*/5 * * * *") above @forkq.job, or on the Job class'
        )


def _cron_of(seconds: float) -> str:
    """An expression whose ticks are about so far apart, for an error."""
    if seconds < _MINUTE:
        return f"*/{max(1, round(seconds))} * * * * *"
    minutes = round(seconds / _MINUTE)
    return f"*/{minutes} * * * *" if minutes < _MINUTE else f"0 */{round(minutes / _MINUTE)} * * *"


def _spec_of(target: object) -> JobSpec:
    if _is_job(target):
        return registry.lookup(target.set().name)
    found = getattr(target, "__qualname__", repr(target))
    raise InvalidJob(
        f"@forkq.every stands on {found}, which is no job: put it above @forkq.job, "
        "or on a class that derives from forkq.Job"
    )


def _completed(entry: Entry, config: Config) -> Entry:
    """An entry of the file with the options of its job, if this app has that job. It may also be
    the job of another app, or a Ruby class."""
    try:
        spec = registry.lookup(entry.job["class"])
    except UnknownJob:
        return replace(entry, job={**DEFAULTS, **entry.job})
    try:
        return replace(entry, job=template(spec, entry.job["args"], entry.job))
    except InvalidJob as error:
        raise InvalidJob(f"{config.source}: [[cron]] {entry.name!r}: {error}") from None


def _refuse_unbounded(entries: Iterable[Entry], config: Config) -> None:
    for entry in entries:
        try:
            payload = dumps(entry.job)
            check_bounds(entry.job["class"], payload, config.max_payload_size, config.max_nesting)
        except InvalidJob as error:
            raise InvalidJob(f"periodic job {entry.name!r}: {error}") from None


def _refuse_doubles(entries: Iterable[Entry], config: Config) -> None:
    for entry in entries:
        known = registry.periodic.get(entry.name)
        if known is not None:
            raise InvalidSchedule(
                f"two periodic jobs are named {entry.name!r}: in the code on "
                f"{known.job.where_defined} and in {config.source}; give one of them another name"
            )
