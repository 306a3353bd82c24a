"""The payload: a job as JSON text, in and out. The only module that knows the JSON library.

msgspec is the one fast library that does not silently change a value: orjson turns an integer
beyond 64 bits into a float (docs/decisions/002-json.md). forkq validates by itself: msgspec would
write a tuple, a datetime or NaN, and the job would get another value than was pushed.
"""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ..errors import InvalidJob, MalformedPayload, callers_level, shown

Payload: TypeAlias = "dict[str, Any]"
StrictArgs: TypeAlias = Literal["raise", "warn", "off"]

DEFAULT_QUEUE = "default"
# What a push may have, unless the client is told otherwise. Ruby's parser reads 100 levels.
MAX_SIZE: Final = 16 << 20
MAX_NESTING: Final = 100
# What any process reads, also from another program. Decoders recurse in C, where only Python's
# recursion limit stops them. If the app has raised it, deep nesting would overflow the stack.
LARGEST: Final = 64 << 20
DEEPEST: Final = 500
_SAFE_LIMIT: Final = 5000
# Values of these types stay what they are, with any content.
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
_JID_BYTES: Final = 12
_STRING = re.compile(rb'"[^"]*"')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_STEPS = bytes(set(range(256)) - set(b"[{]}"))
# A larger `retry_for` is a time stamp by mistake: the job would be retried for ever.
_RETRY_FOR_CEILING = 1e9
# What becomes of a job that has killed too many processes, and how many it may kill: crash records
# of so many fit into a payload.
_ON_CRASH = ("dead", "requeue", "discard")
MOST_CRASHES = 100
_LONGEST_LIMIT = 1e9
_RARE_OPTIONS: Final = frozenset(("retry_for", "timeout", "hard_timeout", "on_crash", "crashes"))

_decode: Callable[[bytes | str], Any] = msgspec.json.Decoder().decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode

# What the encoder raises: RecursionError for nesting, the others for the values in _why_unwritable.
UNWRITABLE = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)

_TOO_DEEP = (
    f"args are nested too deeply (more than {DEEPEST} levels), or contain themselves; pass a "
    "flatter structure"
)
_REMEDY = {
    "tuple": "pass a list",
    "set": "pass a sorted list",
    "frozenset": "pass a sorted list",
    "datetime": "pass .isoformat() or a number of seconds",
    "date": "pass .isoformat()",
    "time": "pass .isoformat()",
    "timedelta": "pass .total_seconds()",
    "Decimal": "pass str(value)",
    "UUID": "pass str(value)",
    "bytes": "pass base64 text",
    "bytearray": "pass base64 text",
    "PosixPath": "pass str(path)",
}
_REMEDY_OF_OBJECTS: Final = "pass an id and load the object inside the job"
# What to pass instead of the objects of a framework; contrib/ adds them.
remedies: dict[type, str] = {}


def loads(raw: bytes) -> Payload:
    """The job in ``raw``. Raises MalformedPayload if no job in it can run."""
    if len(raw) > DEEPEST:  # a shorter text cannot be nested more deeply than that
        bounded(raw)
    try:
        job = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayload(f"not JSON that forkq can read: {error}") from None
    if type(job) is not dict:
        raise MalformedPayload(f"a JSON {type(job).__name__}, not an object")
    if type(job.get("class")) is not str:
        raise MalformedPayload("no job name: the key `class` is missing or is not a string")
    return job


def bounded(raw: bytes) -> bytes:
    """``raw``, JSON that another process wrote. Raises MalformedPayload if it is too large, or too
    deeply nested, to be decoded."""
    unsafe = len(raw) > LARGEST or sys.getrecursionlimit() > _SAFE_LIMIT
    if unsafe and (found := beyond(raw, LARGEST, DEEPEST)) is not None:
        raise MalformedPayload(f"not decoded: it has {found}")
    return raw


def check_bounds(job: str, raw: bytes, size: int, nesting: int) -> None:
    """Raises InvalidJob if ``raw``, the payload of ``job``, is larger or more deeply nested."""
    found = beyond(raw, size, nesting)
    if found is not None:
        remedy = "pass an id or a file's name, or raise max_payload_size or max_nesting"
        raise InvalidJob(f"job {shown(job)}: its payload has {found}; {remedy}")


def beyond(raw: bytes, size: int, nesting: int) -> str | None:
    """Which bound ``raw`` exceeds; None if it keeps both."""
    if len(raw) > size:
        return f"{len(raw):,} bytes, and the most is {size:,}"
    if raw.count(b"[") + raw.count(b"{") <= nesting or (levels := _nesting(raw)) <= nesting:
        return None
    return f"{levels:,} levels of nesting, and the most is {nesting:,}"


def _nesting(raw: bytes) -> int:
    """How many arrays and objects of the JSON in ``raw`` are open at once, at most."""
    bare = _STRING.sub(b"", raw.replace(b"\\\\", b"").replace(b'\\"', b""))
    return max(accumulate(array("b", bare.translate(_STEPS, _NO_STEPS))), default=0)


def dumps(job: Payload) -> bytes:
    """``job`` as JSON. Raises InvalidJob, naming the value, for what JSON cannot carry."""
    try:
        return encode(job)
    except UNWRITABLE as error:
        name, reason = job.get("class"), _first_unwritable(job) or f"it cannot be written: {error}"
        raise InvalidJob(f"job {shown(name)}: {reason}") from None


def new_jid() -> str:
    """A job id: 24 lowercase hex digits."""
    return os.urandom(_JID_BYTES).hex()


def new_jids(count: int) -> list[str]:
    """So many job ids. The system is asked once for all of them."""
    digits, each = os.urandom(_JID_BYTES * count).hex(), 2 * _JID_BYTES
    return [digits[start : start + each] for start in range(0, len(digits), each)]


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
    sane = type(window) in (int, float) and 0 <= window <= _RETRY_FOR_CEILING
    _require(sane, name, "retry_for", window, "a number of seconds up to 1e9")
    _check_limits(job, name)
    if "on_crash" in job:
        known = job["on_crash"] in _ON_CRASH if type(job["on_crash"]) is str else False
        _require(known, name, "on_crash", job["on_crash"], f"one of {', '.join(_ON_CRASH)}")
    if "crashes" in job:
        most = job["crashes"]
        sane = type(most) is int and 1 <= most <= MOST_CRASHES
        _require(sane, name, "crashes", most, f"a whole number from 1 to {MOST_CRASHES}")


def time_limit(job: Payload, key: str) -> float | None:
    """The limit under ``key`` (``timeout`` or ``hard_timeout``) in seconds, 0 for none. None if the
    job has none there, or another value than a number from 0 on."""
    value: Any = job.get(key)
    usable = type(value) in (int, float) and 0 <= value <= _LONGEST_LIMIT
    return float(value) if usable else None


def _check_limits(job: Payload, name: str) -> None:
    soft, hard = time_limit(job, "timeout"), time_limit(job, "hard_timeout")
    for key, limit in (("timeout", soft), ("hard_timeout", hard)):
        sane = job.get(key) is None or limit is not None
        _require(sane, name, key, job.get(key), "a number of seconds from 0 (no limit) to 1e9")
    above = f"0 (no limit), or at least the {soft:g} s of its `timeout`" if soft else ""
    _require(not hard or hard >= (soft or 0), name, "hard_timeout", hard, above)


def _require(ok: bool, job: str, key: str, found: Any, expected: str) -> None:
    if not ok:
        raise _wrong(job, key, found, expected)


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
    return f"{path} is a {kind.__name__}, which JSON does not know; {_remedy(value)}"


def _remedy(value: Any) -> str:
    known = (text for base, text in remedies.items() if isinstance(value, base))
    return _REMEDY.get(type(value).__name__) or next(known, _REMEDY_OF_OBJECTS)


def _first_foreign(items: Any, left: int) -> str | None:
    if left == 0:
        return _TOO_DEEP
    for path, item in items:  # no generator around the call: it would double the depth of the stack
        if problem := _first_foreign_value(item, path, left - 1):
            return problem
    return None


def _first_unwritable(job: Payload) -> str | None:
    """Which value of ``job`` the encoder refuses, and why; None if it refuses no single value."""
    try:
        return next((p for key in job if (p := _unwritable(job[key], str(key)))), None)
    except RecursionError:
        return "it is nested too deeply, or contains itself; pass a flatter structure"


def _unwritable(value: Any, path: str) -> str | None:
    if isinstance(value, list | tuple):
        inner = ((f"{path}[{at}]", item) for at, item in enumerate(value))
        return next((p for place, item in inner if (p := _unwritable(item, place))), None)
    if isinstance(value, dict):
        named = ((f"{path}[{shown(key)}]", key, item) for key, item in value.items())
        found = (_unwritable(key, f"the key {place}") or _unwritable(item, place)
                 for place, key, item in named)  # fmt: skip
        return next((p for p in found if p), None)
    try:
        encode(value)
    except UNWRITABLE as error:
        return _why_unwritable(value, path, error)
    return None


def _why_unwritable(value: Any, path: str, error: BaseException) -> str:
    if type(value) is str:
        return f"{path} has half a surrogate pair in it, which no JSON can carry; pass base64 text"
    if type(value) is int:
        digits = int(value.bit_length() * math.log10(2)) + 1
        return (
            f"{path} is a number of about {digits:,} digits, and Python writes and reads no more "
            f"than {sys.get_int_max_str_digits():,}; pass hex(value)"
        )
    kind, remedy = type(value).__name__, _remedy(value)
    return f"{path} is a {kind}, which cannot be written ({error}); {remedy}"
