"""What a job must be to be pushed: its options at their places, the shape of its payload, values
that JSON carries. The table of the options is in options.py."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from ..errors import InvalidJob, a_type, callers_level, shown
from .options import OPTIONS, is_queue_name, is_seconds, refusal
from .payload import DEEPEST, DEFAULT_QUEUE, Payload, what_to_pass

StrictArgs: TypeAlias = Literal["raise", "warn", "off"]

# Values of these types stay what they are, with any content.
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
# Keys of a payload that ``check_shape`` checks itself, or that are no options.
_USUAL: Final = frozenset(
    (*("class", "args", "queue", "retry", "jid"), *("at", "created_at", "enqueued_at"))
)
# Those that do not stand at the top of a payload.
_PLACED: Final = frozenset(name for name, row in OPTIONS.items() if row.place)

# Options that mean nothing without one of others.
_WITHOUT: Final[Mapping[str, Sequence[str]]] = {
    "unique_until": ("unique_for",),
    "unique_by": ("unique_for", "debounce", "throttle"),
    "on_duplicate": ("unique_for",),
    "debounce_max": ("debounce",),
}
# Those that cannot stand beside others: all that have the same lock.
_LOCKED: Final = frozenset((*_WITHOUT, "unique_for", "debounce", "throttle"))
# Until when such jobs have their locks.
_UNTIL_OF: Final = {"replace": "start", "latest": "end"}

_TOO_DEEP = (
    f"args are nested too deeply (more than {DEEPEST} levels), or contain themselves; pass a "
    "flatter structure"
)


def validate(job: Payload, strict: StrictArgs = "raise") -> None:
    """Raises InvalidJob, naming the job and the value, for a job that should not be pushed.

    ``strict`` applies only to the types inside ``args``; the shape of the job is always checked.
    """
    check_shape(job)
    check_args(job, strict)


def check_args(job: Payload, strict: StrictArgs) -> None:
    """Raises InvalidJob for the first value in ``args`` that the job would not get as it was
    pushed; warns of it, or does nothing, by ``strict``."""
    if strict == "off" or _SIMPLE.issuperset(map(type, job["args"])):
        return
    try:
        problem = first_foreign_value(job["args"])
    except RecursionError:
        problem = _TOO_DEEP
    if problem is None:
        return
    message = f"job {job['class']!r}: {problem}"
    if strict == "raise":
        raise InvalidJob(message)
    warnings.warn(message, stacklevel=callers_level())


def with_options(job: Mapping[str, Any], options: Mapping[str, Any], name: str) -> Payload:
    """``job`` with each option at its place, as ``placed`` makes it, and with all keys checked.
    Raises InvalidJob for a value that an option cannot have."""
    changed = placed(job, options, name)
    check_shape({**changed, "class": name, "args": []})
    return changed


def placed(job: Mapping[str, Any], options: Mapping[str, Any], name: str) -> Payload:
    """A new dict: ``job``, the keys of a payload called ``name``, and each option at its place.
    Raises InvalidJob for a value that such an option, or one that is stored in another form, cannot
    have."""
    changed = {**job, **options}
    for key in options:
        row = OPTIONS.get(key)
        if row is None or not (row.place or row.values.stored):
            continue
        if not row.values.fits(options[key]):
            raise row.refusal(name, key, options[key])
        if row.values.stored is not None:
            changed[key] = row.values.stored(options[key])
        if row.place:
            _put(changed, row.place.split("."), changed.pop(key))
    if not _LOCKED.isdisjoint(options):
        _check_alone(name, options, changed["forkq"]["needs"])
        check_pair(name, changed["forkq"]["needs"])
    return changed


def _check_alone(name: str, options: Mapping[str, Any], needs: Mapping[str, Any]) -> None:
    """Raises InvalidJob for one of the ``options`` that means nothing without another one, which
    is not among the ``needs`` of the job."""
    for option in sorted(_WITHOUT.keys() & options.keys()):
        wanted = _WITHOUT[option]
        if needs.keys().isdisjoint(wanted):
            also, remedy = " or ".join(f"`{one}`" for one in wanted), "pass both, or neither"
            if option == "on_duplicate" and needs.get("debounce"):
                remedy = "leave it out: the last push of a debounced job always runs"
            raise InvalidJob(f"job {name!r}: `{option}` means nothing without {also}; {remedy}")


def check_pair(name: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidJob for options of unique and of debounced jobs of which one cannot have its
    value beside that of the other."""
    after, most = options.get("debounce"), options.get("debounce_max")
    if after and options.get("unique_for"):
        raise InvalidJob(
            f"job {name!r} has `debounce` and `unique_for`: the one runs the last push, the other "
            "the first; leave one of them out, or set it to 0"
        )
    if after and most is not None and most < after:
        raise InvalidJob(
            f"job {name!r}: `debounce_max` is {most:g} s, and `debounce` is {after:g} s: pass at "
            "least as much"
        )
    how, until = options.get("on_duplicate"), options.get("unique_until")
    if options.get("throttle") and (after or how in ("replace", "latest")):
        other = "`debounce`" if after else f"`on_duplicate` {how!r}"
        raise InvalidJob(
            f"job {name!r} has `throttle` and {other}: the one drops the last push, the other runs "
            "it; leave one of them out"
        )
    wanted = _UNTIL_OF.get(how) if type(how) is str else None
    if wanted is None or until in (None, wanted):
        return
    other = "latest" if wanted == "start" else "replace"
    also = f', or on_duplicate="{other}"' if until == _UNTIL_OF[other] else ""
    raise InvalidJob(
        f"job {name!r}: `on_duplicate` is {how!r}, and `unique_until` is {until!r}: leave "
        f"`unique_until` out{also}"
    )


def in_places(job: Payload) -> Payload:
    """``job``, a raw push, with the options at their places in a payload that it has at its top.
    Raises InvalidJob for a value that such an option cannot have."""
    given = {key: job[key] for key in _PLACED.intersection(job)}
    if not given:
        return job
    return placed(
        {key: value for key, value in job.items() if key not in given}, given, job["class"]
    )


def _put(job: Payload, path: Sequence[str], value: object) -> None:
    """Sets a value below ``job``; the objects on the way are new."""
    *above, last = path
    for key in above:
        below = job.get(key)
        job[key] = dict(below) if type(below) is dict else {}
        job = job[key]
    job[last] = value


def check_shape(job: Payload) -> None:
    """Raises InvalidJob for a key of the job with a value that it cannot have. The values inside
    ``args`` may be any."""
    name = job.get("class")
    if type(name) is not str or not name:
        raise InvalidJob(f"a job needs a name: `class` is {shown(name)}; pass a non-empty string")
    if type(job.get("args")) is not list:  # its value may be a secret, and is not shown
        kind = a_type(type(job.get("args")))
        raise InvalidJob(f"job {name!r}: `args` is {kind}; pass a list")
    queue = job.get("queue", DEFAULT_QUEUE)
    # Each push comes here: no call of a function in Python where all is well.
    if type(queue) is not str or is_queue_name(queue) is None:
        raise OPTIONS["queue"].refusal(name, "queue", queue)
    if "jid" in job:
        check_jid(name, job["jid"])
    retry = job.get("retry", True)
    if type(retry) is not bool and (type(retry) is not int or retry < 0):
        raise OPTIONS["retry"].refusal(name, "retry", retry)
    if not _USUAL.issuperset(job):
        _check_options(job, name)


def check_jid(name: str, jid: object) -> None:
    """Raises InvalidJob, about the job ``name``, for what is no jid."""
    if type(jid) is not str or not jid:
        raise refusal(name, "jid", jid, "a string")


def _check_options(job: Payload, name: str) -> None:
    for key in job:
        row = None if key in _USUAL else OPTIONS.get(key)
        if row is not None and not row.place and not row.values.fits(job[key]):
            raise row.refusal(name, key, job[key])
    if "hard_timeout" not in job:
        return
    soft, hard = time_limit(job, "timeout"), time_limit(job, "hard_timeout")
    if soft and hard and hard < soft:
        expected = f"0 (no limit), or at least the {soft:g} s of its `timeout`"
        raise refusal(name, "hard_timeout", hard, expected)


def time_limit(job: Payload, key: str) -> float | None:
    """The limit under ``key`` (``timeout`` or ``hard_timeout``) in seconds, 0 for none. None if the
    job has none there, or another value than a number from 0 on."""
    value = job.get(key)
    return float(value) if value is not None and is_seconds(value) else None


def first_foreign_value(
    value: Any, path: str = "args", left: int = DEEPEST, lists: tuple[type, ...] = (list,)
) -> str | None:
    """Why ``value`` would not be the same after JSON, or None if it would. It may have ``left``
    more levels. ``lists``: what becomes a list."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return None
    if kind is float:
        return None if math.isfinite(value) else f"{path} is {value}; JSON has no such number"
    if kind is dict:
        odd = next((key for key in value if type(key) is not str), None)
        if odd is not None:
            return f"{path} has the key {shown(odd)} ({type(odd).__name__}); pass a string as key"
    if kind is dict or kind in lists:
        pairs = value.items() if kind is dict else enumerate(value)
        return _first_foreign(((f"{path}[{at!r}]", item) for at, item in pairs), left, lists)
    return f"{path} is {a_type(kind)}, which JSON does not know; {what_to_pass(value)}"


def _first_foreign(items: Any, left: int, lists: tuple[type, ...]) -> str | None:
    if left == 0:
        return _TOO_DEEP
    for path, item in items:  # no generator around the call: it would double the depth of the stack
        if problem := first_foreign_value(item, path, left - 1, lists):
            return problem
    return None
