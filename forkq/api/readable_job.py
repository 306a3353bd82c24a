"""What a payload says, read with care: any program may have written it."""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final

import msgspec

from .. import registry
from ..errors import MalformedPayload
from ..wire.malformed import MALFORMED
from ..wire.marks import KEY
from ..wire.payload import DEFAULT_QUEUE, Payload, bounded
from ..wire.times import seconds

MASK: Final = "***"
_SECRET: Final = re.compile(
    r"passw|passphrase|pwd|secret|token|api_?key|private_?key|access_?key|credential|authori[sz]ation"
    r"|cookie|card_?number|cvv|cvc|iban|(?<![a-z])(ssn|pin|otp|pass)(?![a-z])",
    re.IGNORECASE,
)
_LATEST: Final = 253_402_300_799.0  # the year 9999: what is later cannot be shown
_WRAPPERS: Final = frozenset(
    (
        "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
        "Sidekiq::ActiveJob::Wrapper",
    )
)
# "key": "value" or "key": 12; of a value that is cut off, all that is there.
_PAIR: Final = re.compile(
    r'("[^"\\]{1,200}"\s{0,9}:\s{0,9})("(?:[^"\\]|\\.)*"?|[^\s"{}\[\],]+)', re.DOTALL
)
_LONGEST_BACKTRACE: Final = 1 << 20


def text(value: Any) -> str:
    """A value that should be text: "" for None, and a cut text for anything else."""
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
    """The class; of an ActiveJob the wrapped one."""
    name = text(job.get("class"))
    return text(job.get("wrapped")) or text(_active_job(job).get("job_class")) or name


def is_active_job(job: Payload) -> bool:
    """Whether Rails' ActiveJob pushed it."""
    return text(job.get("class")) in _WRAPPERS


def args_of(job: Payload) -> list[Any]:
    """The arguments as the job's ``perform`` gets them, unmasked."""
    args = _active_job(job).get("arguments", job.get("args"))
    return args if type(args) is list else [] if args is None else [args]


def masked_args(job: Payload) -> list[Any]:
    """The arguments with their secrets masked: all of them if the job, or its definition in this
    process, has ``secret`` set; else by the names of its parameters, if it is defined in this
    process, and by the keys of objects."""
    args, spec = args_of(job), registry.find(text(job.get("class")))
    if _is_secret(job):
        return [MASK] * len(args)
    if job.get("class") == MALFORMED:
        return [masked_text(text(arg)) for arg in args]
    names = () if spec is None else _names(spec.parameters)
    return [
        MASK if _SECRET.search(name) else masked(arg)
        for arg, name in zip(args, chain(names, repeat("")), strict=False)
    ]


def masked(value: Any) -> Any:
    """``value`` with the secrets in its objects masked."""
    try:
        return _masked(value)
    except RecursionError:
        return MASK


def masked_job(job: Payload) -> Payload:
    """The whole job with its secrets masked."""
    shown = {
        key: MASK if key != "secret" and _SECRET.search(key) else masked(value)
        for key, value in job.items()
    }
    if is_active_job(job):
        return {**shown, "args": [MASK]} if _is_secret(job) else shown
    return {**shown, "args": masked_args(job)} if "args" in job else shown


def masked_text(raw: str) -> str:
    """A payload that is no job, with the secrets masked that are found in it: any program may have
    written it for another one, which does run it."""
    try:
        value = msgspec.json.decode(bounded(raw.encode()))
    except (ValueError, RecursionError, msgspec.MsgspecError, MalformedPayload):
        return _PAIR.sub(_masked_pair, raw)
    shown = masked_job(value) if type(value) is dict else masked(value)
    return raw if shown == value else msgspec.json.encode(shown).decode()


def _masked_pair(found: re.Match[str]) -> str:
    """A key and its value in text that is not all JSON: cut off, or with bytes that are no text."""
    return f'{found[1]}"{MASK}"' if _SECRET.search(found[1]) else found[0]


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
    """The crash records, as they stand."""
    marks = job.get(KEY)
    found = marks.get("crashes") if type(marks) is dict else None
    return [one for one in found if type(one) is dict] if type(found) is list else []


def _masked(value: Any) -> Any:
    if type(value) is dict:
        shown = {}
        for key, item in value.items():  # no generator: it would double the depth of the stack
            shown[key] = MASK if _SECRET.search(key) else _masked(item)
        return shown
    if type(value) is list:
        items = []
        for item in value:
            items.append(_masked(item))  # noqa: PERF401 - as above
        return items
    return value


def _is_secret(job: Payload) -> bool:
    """Whether the payload says so, or its definition in this process."""
    spec = registry.find(text(job.get("class")))
    return bool(job.get("secret") or (spec is not None and spec.options.get("secret")))


def _names(parameters: Sequence[str]) -> Iterator[str]:
    """One for each argument, without end if the last parameter takes all further ones."""
    for name in parameters:
        yield from repeat(name) if name.startswith("*") else (name,)


def _active_job(job: Payload) -> dict[str, Any]:
    """What ActiveJob wraps; empty for another job."""
    args = job.get("args") if is_active_job(job) else None
    first = args[0] if type(args) is list and args else None
    return first if type(first) is dict else {}
