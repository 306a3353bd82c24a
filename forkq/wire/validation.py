"""What a job must be to be pushed: the shape of its payload, and values that JSON carries."""

from __future__ import annotations

import math
import warnings
from typing import Any, Final, Literal, TypeAlias

from ..errors import InvalidJob, callers_level, shown
from .payload import DEEPEST, DEFAULT_QUEUE, Payload, what_to_pass

StrictArgs: TypeAlias = Literal["raise", "warn", "off"]

# Values of these types stay what they are, with any content.
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
# A larger `retry_for` is a time stamp by mistake: the job would be retried for ever.
_RETRY_FOR_CEILING = 1e9
# What becomes of a job that has killed too many processes, and how many it may kill: crash records
# of so many fit into a payload.
_ON_CRASH = ("dead", "requeue", "discard")
MOST_CRASHES = 100
_LONGEST_LIMIT = 1e9
_RARE_OPTIONS: Final = frozenset(("retry_for", "timeout", "hard_timeout", "on_crash", "crashes"))

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
        problem = _first_foreign_value(job["args"])
    except RecursionError:
        problem = _TOO_DEEP
    if problem is None:
        return
    message = f"job {job['class']!r}: {problem}"
    if strict == "raise":
        raise InvalidJob(message)
    warnings.warn(message, stacklevel=callers_level())


def check_shape(job: Payload) -> None:
    """Raises InvalidJob for a key of the job with a value that it cannot have. The values inside
    ``args`` may be any."""
    name = job.get("class")
    if type(name) is not str or not name:
        raise InvalidJob(f"a job needs a name: `class` is {shown(name)}; pass a non-empty string")
    if type(job.get("args")) is not list:  # its value may be a secret, and is not shown
        kind = type(job.get("args")).__name__
        raise InvalidJob(f"job {name!r}: `args` is a {kind}; pass a list")
    queue = job.get("queue", DEFAULT_QUEUE)
    if type(queue) is not str or not queue:  # each push comes here: no call where all is well
        raise _wrong(name, "queue", queue, "a non-empty string")
    if "jid" in job and (type(job["jid"]) is not str or not job["jid"]):
        raise _wrong(name, "jid", job["jid"], "a string")
    retry = job.get("retry", True)
    if type(retry) is not bool and (type(retry) is not int or retry < 0):
        raise _wrong(name, "retry", retry, "True, False or a whole number from 0 on")
    if not job.keys().isdisjoint(_RARE_OPTIONS):
        _check_rare_options(job, name)


def _check_rare_options(job: Payload, name: str) -> None:
    window = job.get("retry_for", 0)
    if type(window) not in (int, float) or not 0 <= window <= _RETRY_FOR_CEILING:
        raise _wrong(name, "retry_for", window, "a number of seconds up to 1e9")
    _check_limits(job, name)
    on_crash = job.get("on_crash", "dead")
    if type(on_crash) is not str or on_crash not in _ON_CRASH:
        raise _wrong(name, "on_crash", on_crash, f"one of {', '.join(_ON_CRASH)}")
    most = job.get("crashes", 1)
    if type(most) is not int or not 1 <= most <= MOST_CRASHES:
        raise _wrong(name, "crashes", most, f"a whole number from 1 to {MOST_CRASHES}")


def _check_limits(job: Payload, name: str) -> None:
    soft, hard = time_limit(job, "timeout"), time_limit(job, "hard_timeout")
    for key, limit in (("timeout", soft), ("hard_timeout", hard)):
        if limit is None and job.get(key) is not None:
            expected = "a number of seconds from 0 (no limit) to 1e9"
            raise _wrong(name, key, job[key], expected)
    if soft and hard and hard < soft:
        expected = f"0 (no limit), or at least the {soft:g} s of its `timeout`"
        raise _wrong(name, "hard_timeout", hard, expected)


def time_limit(job: Payload, key: str) -> float | None:
    """The limit under ``key`` (``timeout`` or ``hard_timeout``) in seconds, 0 for none. None if the
    job has none there, or another value than a number from 0 on."""
    value: Any = job.get(key)
    usable = type(value) in (int, float) and 0 <= value <= _LONGEST_LIMIT
    return float(value) if usable else None


def _wrong(job: str, key: str, found: Any, expected: str) -> InvalidJob:
    return InvalidJob(f"job {job!r}: `{key}` is {shown(found)}; pass {expected}")


def _first_foreign_value(value: Any, path: str = "args", left: int = DEEPEST) -> str | None:
    """Why a job would not get ``value`` as it was pushed, or None if it would. It may have ``left``
    more levels."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return None
    if kind is float:
        return None if math.isfinite(value) else f"{path} is {value}; JSON has no such number"
    if kind is list:
        return _first_foreign(((f"{path}[{i}]", item) for i, item in enumerate(value)), left)
    if kind is dict:
        odd = next((key for key in value if type(key) is not str), None)
        if odd is not None:
            return f"{path} has the key {shown(odd)} ({type(odd).__name__}); pass a string as key"
        return _first_foreign(((f"{path}[{key!r}]", item) for key, item in value.items()), left)
    return f"{path} is a {kind.__name__}, which JSON does not know; {what_to_pass(value)}"


def _first_foreign(items: Any, left: int) -> str | None:
    if left == 0:
        return _TOO_DEEP
    for path, item in items:  # no generator around the call: it would double the depth of the stack
        if problem := _first_foreign_value(item, path, left - 1):
            return problem
    return None
