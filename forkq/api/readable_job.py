"""What a payload says, read with care: any program may have written it."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any, Final

import msgspec

from ..errors import MalformedPayload
from ..wire.malformed import MALFORMED
from ..wire.marks import KEY
from ..wire.parameters import ALL_SECRET, JobParameters
from ..wire.payload import DEFAULT_QUEUE, Payload, bounded
from ..wire.times import seconds
from . import masks
from .masks import MASK, is_secret, masked, masked_text

_LATEST: Final = 253_402_300_799.0  # the year 9999: what is later cannot be shown
_WRAPPERS: Final = frozenset(
    (
        "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
        "Sidekiq::ActiveJob::Wrapper",
    )
)
_LONGEST_BACKTRACE: Final = 1 << 20


def text(value: Any) -> str:
    """The text of a value that should be text: "" for None, and a cut text for anything else."""
    if type(value) is str:
        return value
    return "" if value is None else str(value)[:200] if type(value) in (int, float, bool) else ""


def moment(value: Any) -> float | None:
    """A time stamp in epoch seconds; None if it is none that can be shown."""
    if type(value) not in (int, float) or value < 0:
        return None
    stamp = seconds(value)
    return stamp if math.isfinite(stamp) and stamp <= _LATEST else None


def queue_of(job: Payload) -> str:
    """The queue that the job names."""
    return text(job.get("queue")) or DEFAULT_QUEUE


def name_of(job: Payload) -> str:
    """The class of a job; for an ActiveJob the wrapped one."""
    name = text(job.get("class"))
    return text(job.get("wrapped")) or text(_active_job(job).get("job_class")) or name


def is_active_job(job: Payload) -> bool:
    """Whether Rails' ActiveJob pushed the job."""
    return text(job.get("class")) in _WRAPPERS


def args_of(job: Payload) -> list[Any]:
    """The arguments as the job's ``perform`` gets them, unmasked."""
    args = _active_job(job).get("arguments", job.get("args"))
    return args if type(args) is list else [] if args is None else [args]


def class_of(job: Payload, raw: bytes) -> str:
    """The class whose parameters the arguments are for. For a payload that is no job, buried or
    not, it is the class of the object in it; "" if there is none."""
    name = text(job.get("class"))
    if job and name != MALFORMED:
        return name
    inside = _decoded(text(next(iter(args_of(job)), "")) if job else raw.decode("utf-8", "replace"))
    return text(inside.get("class")) if type(inside) is dict else ""


def masked_args(job: Payload, parameters: JobParameters | None) -> list[Any]:
    """The arguments with their secrets masked: all of them if the job has ``secret`` set; if not,
    by what is known of its ``parameters``, by the keys of objects, and by their form."""
    args = args_of(job)
    if job.get("secret"):
        return masks.masked_args(args, ALL_SECRET)
    if job.get("class") == MALFORMED:
        return [masked_payload(text(arg), parameters) for arg in args]
    return masks.masked_args(args, parameters)


def masked_job(job: Payload, parameters: JobParameters | None) -> Payload:
    """The whole job with its secrets masked."""
    shown = {
        key: MASK if key != "secret" and is_secret(key) else masked(value)
        for key, value in job.items()
    }
    if is_active_job(job):
        hides = job.get("secret") or (parameters is not None and parameters.secret)
        return {**shown, "args": [MASK]} if hides else shown
    return {**shown, "args": masked_args(job, parameters)} if "args" in job else shown


def masked_payload(raw: str, parameters: JobParameters | None) -> str:
    """A payload that is no job, with the secrets masked that are found in it: a program may have
    written it for another one, which does run it."""
    value = _decoded(raw)
    if type(value) is not dict:
        return masked_text(raw)
    shown = masked_job(value, parameters)
    return raw if shown == value else msgspec.json.encode(shown).decode()


def backtrace_of(job: Payload) -> list[str]:
    """The lines of the error's backtrace, innermost first."""
    found = job.get("error_backtrace")
    if type(found) is list:  # Sidekiq before 5
        return [line for line in found if type(line) is str]
    try:
        packed = base64.b64decode(found or "")
        raw = zlib.decompressobj().decompress(packed, _LONGEST_BACKTRACE)
        return msgspec.json.decode(bounded(raw), type=list[str])
    except (TypeError, ValueError, zlib.error, RecursionError, MalformedPayload):
        return []


def crashes_of(job: Payload) -> list[dict[str, Any]]:
    """The crash records of a job, as its payload has them."""
    marks = job.get(KEY)
    found = marks.get("crashes") if type(marks) is dict else None
    return [one for one in found if type(one) is dict] if type(found) is list else []


def _decoded(raw: str) -> Any:
    """The value in that JSON; None if it cannot be read."""
    try:
        return msgspec.json.decode(bounded(raw.encode()))
    except (ValueError, RecursionError, msgspec.MsgspecError, MalformedPayload):
        return None


def _active_job(job: Payload) -> dict[str, Any]:
    """The job that ActiveJob wraps; empty for another job."""
    args = job.get("args") if is_active_job(job) else None
    first = args[0] if type(args) is list and args else None
    return first if type(first) is dict else {}
