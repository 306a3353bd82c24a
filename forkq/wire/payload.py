"""The payload: a job as JSON text, in and out. The only module that knows the JSON library.

msgspec is the one fast library that does not silently change a value: orjson turns an integer
beyond 64 bits into a float (docs/decisions/002-json.md). It would also write a tuple, a datetime or
NaN, and the job would get another value than was pushed: validation.py refuses those.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ..errors import InvalidJob, MalformedPayload, a_type, shown

Payload: TypeAlias = "dict[str, Any]"

DEFAULT_QUEUE = "default"
# The key of a payload under which forkq notes what is its own (wire/marks.py).
KEY: Final = "forkq"
# What a push may have, unless the client is told otherwise. Ruby's parser reads 100 levels.
MAX_SIZE: Final = 16 << 20
MAX_NESTING: Final = 100
# From here on a push logs a warning, once for each job.
LARGE: Final = 100_000
# What any process reads, also from another program. Decoders recurse in C, where only Python's
# recursion limit stops them. If the app has raised it, deep nesting would overflow the stack.
LARGEST: Final = 64 << 20
DEEPEST: Final = 500
_SAFE_LIMIT: Final = 5000
_JID_BYTES: Final = 12
_STRING = re.compile(rb'"[^"]*"')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_STEPS = bytes(set(range(256)) - set(b"[{]}"))

# What ``loads_head`` decodes of a single value besides the arguments.
_LARGEST_IN_HEAD: Final = 1 << 20

_decode: Callable[[bytes | str], Any] = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode

# What the encoder raises: RecursionError for nesting, the others for the values in _why_unwritable.
UNWRITABLE = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)

_log: Final = logging.getLogger("forkq")
_told_large: Final[set[str]] = set()
_MOST_TOLD: Final = 1000  # a client may push jobs of any name

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
    "StepResult": "only a step of a forkq.Flow takes what another step returns",
    "PreparedJob": "push it in a forkq.Flow or as a callback of a batch; jobs take plain values",
}
_REMEDY_OF_OBJECTS: Final = "pass an id and load the object inside the job"
# What to pass instead of the objects of a framework; contrib/ adds them.
remedies: dict[type, str] = {}


_KINDS: Final = {
    dict: "a JSON object", list: "a JSON array", str: "a JSON string", bool: "a JSON boolean",
    type(None): "null",
}  # fmt: skip


def json_kind(value: object) -> str:
    """What a value that was read from JSON is there: "a JSON array", "null"."""
    return _KINDS.get(type(value), "a JSON number")


def loads(raw: bytes) -> Payload:
    """The job in ``raw``. Raises MalformedPayload if no job in it can run."""
    if len(raw) > DEEPEST:  # a shorter text cannot be nested more deeply than that
        bounded(raw)
    try:
        job = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayload(f"not JSON that forkq can read: {error}") from None
    if type(job) is not dict:
        raise MalformedPayload(f"{json_kind(job)}, not an object")
    if type(job.get("class")) is not str:
        raise MalformedPayload("no job name: the key `class` is missing or is not a string")
    return job


def loads_head(raw: bytes) -> Payload:
    """The job in ``raw`` for a process that does not run it: the arguments, and any other large
    value, stay the text that they are (``msgspec.Raw``), and ``dumps`` writes them unchanged. So it
    takes little more memory than ``raw``; decoded, 15 MB can take 350. Raises MalformedPayload."""
    try:
        found = _decode_raw(bounded(raw))
        job = {key: _decoded(key, value) for key, value in found.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayload(f"not JSON that forkq can read: {error}") from None
    if type(job.get("class")) is not str:
        raise MalformedPayload("no job name: the key `class` is missing or is not a string")
    return job


def _decoded(key: str, value: msgspec.Raw) -> Any:
    is_left = key == "args" or len(memoryview(value)) > _LARGEST_IN_HEAD
    return value if is_left else msgspec.json.decode(value)


def keys_at_head(head: bytes) -> Payload:
    """The first keys of a large payload, as far as ``head``, its first bytes, has them whole. What
    stands before a comma is a whole object only if that comma separates the payload's own keys."""
    at = head.rfind(b",")
    while at >= 0:
        found = _object(head[:at] + b"}")
        if found is not None:
            return found
        at = head.rfind(b",", 0, at)
    return {}


def keys_at_end(end: bytes, first: bytes) -> tuple[int, Payload] | None:
    """The last keys of a large payload, from the key ``first`` on, and where in ``end``, its last
    bytes, they begin; None if they are not there. What follows a key is a whole object only if the
    key is the payload's own."""
    key = b'"' + first + b'"'
    at = end.rfind(key)
    while at >= 0:
        found = _object(b"{" + end[at:])
        if found is not None:
            return at, found
        at = end.rfind(key, 0, at)
    return None


def keys_at_ends(head: bytes, end: bytes, *names: str) -> Payload:
    """The keys among ``names`` that a large payload has in its first or its last bytes, before or
    after its arguments."""
    found = keys_at_head(head)
    for name in names:
        if name not in found and (last := keys_at_end(end, name.encode())) is not None:
            found[name] = last[1][name]
    return {name: found[name] for name in names if name in found}


def _object(raw: bytes) -> Payload | None:
    """The JSON object in ``raw``; None if it is none."""
    try:
        return msgspec.json.decode(bounded(raw), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MalformedPayload):
        return None


def bounded(raw: bytes) -> bytes:
    """``raw``, JSON that another process wrote. Raises MalformedPayload if it is too large, or too
    deeply nested, to be decoded."""
    unsafe = len(raw) > LARGEST or sys.getrecursionlimit() > _SAFE_LIMIT
    if unsafe and (found := beyond(raw, LARGEST, DEEPEST)) is not None:
        raise MalformedPayload(f"not decoded: it has {found}")
    return raw


def check_bounds(job: str, raw: bytes, size: int, nesting: int) -> None:
    """Raises InvalidJob if ``raw``, the payload of ``job``, is larger or more deeply nested than
    the bounds allow. Logs a warning, once for each job, if it is large."""
    found = beyond(raw, size, nesting)
    if found is not None:
        remedy = "pass an id or a file's name, or raise max_payload_size or max_nesting"
        raise InvalidJob(f"job {shown(job)}: its payload has {found}; {remedy}")
    if len(raw) >= LARGE and job not in _told_large:
        if len(_told_large) < _MOST_TOLD:
            _told_large.add(job)
        _log.warning(
            "job %s: its payload has %s bytes, which each step of it carries, and Redis keeps in "
            "memory; pass an id or a file's name (this is said once for each job)",
            shown(job), f"{len(raw):,}",
        )  # fmt: skip


class PayloadBounds(NamedTuple):
    """What a payload may have: bytes of JSON, and levels of nesting."""

    size: int = MAX_SIZE
    nesting: int = MAX_NESTING

    def dumps(self, job: Payload) -> bytes:
        """``job`` as JSON. Raises InvalidJob if it cannot be written, or exceeds a bound."""
        try:
            raw = encode(job)
        except UNWRITABLE as error:
            raise _unwritable_job(job, error) from None
        # Each level takes two bytes at least: in a short text there is nothing to count.
        if len(raw) > 2 * self.nesting or len(raw) > self.size:
            self.check(job["class"], raw)
        return raw

    def check(self, job: str, raw: bytes) -> None:
        """Raises InvalidJob if ``raw``, the payload of ``job``, exceeds a bound."""
        if (
            len(raw) > self.size
            or len(raw) >= LARGE
            or raw.count(b"[") + raw.count(b"{") > self.nesting
        ):
            check_bounds(job, raw, self.size, self.nesting)


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
        raise _unwritable_job(job, error) from None


def new_jid() -> str:
    """A job id: 24 lowercase hex digits."""
    return os.urandom(_JID_BYTES).hex()


def new_jids(count: int) -> list[str]:
    """``count`` job ids. The system is asked once for all of them."""
    digits, each = os.urandom(_JID_BYTES * count).hex(), 2 * _JID_BYTES
    return [digits[start : start + each] for start in range(0, len(digits), each)]


def what_to_pass(value: Any) -> str:
    """The remedy for ``value``, of a type that JSON does not know."""
    known = next((text for base, text in remedies.items() if isinstance(value, base)), None)
    return _REMEDY.get(type(value).__name__) or known or _by_protocol(value) or _REMEDY_OF_OBJECTS


def _by_protocol(value: Any) -> str | None:
    """The remedy for enums, dataclasses and models of pydantic and msgspec; None for others."""
    enums = sys.modules.get("enum")
    if enums is not None and isinstance(value, enums.Enum):
        return "pass its .value"
    if hasattr(value, "__dataclass_fields__"):
        return "pass dataclasses.asdict(value)"
    if hasattr(value, "__struct_fields__"):
        return "pass msgspec.to_builtins(value)"
    if callable(getattr(value, "model_dump", None)):
        return 'pass value.model_dump(mode="json")'
    return None


def _unwritable_job(job: Payload, error: Exception) -> InvalidJob:
    name, reason = job.get("class"), _first_unwritable(job) or f"it cannot be written: {error}"
    return InvalidJob(f"job {shown(name)}: {reason}")


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
    kind, remedy = a_type(type(value)), what_to_pass(value)
    return f"{path} is {kind}, which cannot be written ({error}); {remedy}"
