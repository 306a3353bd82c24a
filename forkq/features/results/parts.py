"""The result of a job with ``result_ttl``, as one key in Redis says it: values, without I/O.

The payload has ``forkq.needs.result_ttl``: for how many seconds the result is kept. The push writes
a placeholder, and each script that ends jobs writes the result in its place (docs/results.md). Both
are JSON objects; that of a result begins with the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ...wire.keys import Keys
from ...wire.options import OPTIONS
from ...wire.payload import DEFAULT_QUEUE, Payload, encode
from ...wire.times import LONGEST_SECONDS, now
from ...wire.validation import first_foreign_value
from ..effects import NONE, Effect, jid_of, name_of

RESULT_TTL: Final = "result_ttl"
# Where a child notes in what it knows of a marked job what that has returned, and how it failed.
RETURNED: Final = "returned"
FAILED: Final = "failed"
# The lowest version of forkq's payloads whose children keep results.
VERSION: Final = 6
# In the place of the class of an error, of a job that is done: its value could not be kept.
TOO_LARGE: Final = "too large"
# Bytes of JSON that a value may have.
MOST: Final = 256 << 10
# Seconds for which a job may wait before its placeholder is gone.
_WAITS_FOR: Final = 30 * 86_400
# Characters of an error's text.
LONGEST_MESSAGE: Final = 2000
_ENDED: Final = b'{"outcome":'

# What becomes of the result: "none": the job goes on, and its placeholder lives anew; "kept" as it
# is; else it is written.
Fate: TypeAlias = Literal["value", "error", "replaced", "none", "kept", "by TTL"]
Outcome: TypeAlias = Literal[
    "done", "dead", "dropped", "discarded", "expired", "cancelled", "deleted", "replaced"
]
_SAID: Final[Mapping[str, str]] = {
    "dead": "it is in the dead set",
    "dropped": "it was given up, and is kept nowhere",
    "discarded": "it has ended itself (forkq.Discard)",
    "expired": "it was not run in time",
    "cancelled": "it was cancelled",
    "deleted": "it was deleted",
    "replaced": "a newer job with the same arguments has taken its place",
}


class Failure(msgspec.Struct, frozen=True, rename={"name": "class"}):
    """Why there is no value: the class of an error, and its text."""

    name: str
    message: str = ""


class Result(msgspec.Struct, frozen=True, rename={"job": "class"}):
    """What the key of a result says. ``outcome``: how the job has ended, "" while it waits or runs;
    ``at``: when, epoch seconds. ``job``: its class. ``queue`` and ``ttl`` are of one that waits.
    ``error``: why there is no value, also where a job is done."""

    outcome: Outcome | Literal[""] = ""
    job: str = ""
    at: float = 0.0
    value: Any = None
    error: Failure | None = None
    queue: str = DEFAULT_QUEUE
    ttl: float = 0.0


class _WrittenResult(msgspec.Struct, frozen=True, omit_defaults=True, rename={"job": "class"}):
    outcome: str
    job: str
    at: float
    value: Any = msgspec.UNSET
    error: Any = msgspec.UNSET


_decoder: Final = msgspec.json.Decoder(Result)


def read(raw: bytes) -> Result | None:
    """What stands there; None if another program has written it."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def has_ended(raw: bytes) -> bool:
    """Whether this is a result, and no placeholder."""
    return raw.startswith(_ENDED)


def ttl_in(needs: Mapping[str, Any]) -> float | None:
    """For how many seconds the result of a job with these needs is kept; None if it is not."""
    found = needs.get(RESULT_TTL)
    is_number = type(found) is int or type(found) is float
    return float(found) if is_number and 0 < found <= LONGEST_SECONDS else None  # type: ignore[operator, arg-type]


def ask(name: str, needs: dict[str, Any]) -> float:
    """For how many seconds the result of a job called ``name``, which is pushed with these
    ``needs``, is kept; 0: it is not. Raises InvalidJob for another value than the option can have:
    a raw push may have written it there."""
    after = needs.get(RESULT_TTL)
    if after is None:
        return 0.0
    if not (row := OPTIONS[RESULT_TTL]).values.fits(after):
        raise row.refusal(name, RESULT_TTL, after)
    if not after:
        del needs[RESULT_TTL]
    return float(after)


@lru_cache(maxsize=1000)
def placeholder(name: str, queue: str, ttl: float) -> str:
    """What stands in the place of the result of a job of the class ``name`` until it has ended."""
    return encode({"class": name, "queue": queue, "ttl": ttl}).decode()


def waits_for(delay: float = 0.0) -> int:
    """The milliseconds for which the placeholder of a job lives that is due in so many seconds."""
    return round(1000 * (_WAITS_FOR + max(0.0, delay)))


def returned(value: Any) -> dict[str, Any]:
    """What is kept of the value that a job has returned: the value as JSON, or why it cannot be
    kept."""
    problem = problem_of(value)
    if problem is not None:
        return {"error": Failure("not JSON", problem)}
    text = encode(value)
    if len(text) > MOST:
        said = f"its value has {len(text):,} bytes of JSON, and the most is {MOST:,}"
        return {"error": Failure(TOO_LARGE, said)}
    return {"value": msgspec.Raw(text)}


def problem_of(value: Any, name: str = "the value", verb: str = "return") -> str | None:
    """Why ``value`` cannot be kept; None if it can be, as far as its types say. A tuple becomes a
    list, as everywhere in JSON. ``name``: what it is called; ``verb``: what gives it to forkq."""
    try:
        found = first_foreign_value(value, name, lists=(list, tuple))
        if found is None:
            encode(value)
        return found and found.replace("; pass ", f"; {verb} ").replace("; return ", f"; {verb} ")
    except RecursionError:
        return f"{name} is nested too deeply, or contains itself; {verb} a flatter one"
    except Exception as error:  # noqa: BLE001 - a key's repr is the app's: its job is done
        return f"{name} cannot be written as JSON ({type(error).__name__}: {error})"


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, job: Payload, way: str, delay: float
) -> tuple[Effect, ...]:
    """What becomes of the result of the ``job``, which takes this ``way``. ``delay``: in how many
    seconds it is due."""
    ttl, jid = ttl_in(needs), jid_of(job)
    if ttl is None or not jid or fate in ("kept", "by TTL"):
        return NONE
    if fate != "none":
        return (Effect("result", keys.result(jid), (written(job, way), round(1000 * ttl))),)
    # What is to run again may find that a newer job has taken its place (ticket.lua).
    waits = (placeholder(name_of(job), _queue_of(job), ttl), waits_for(delay))
    replaced = (written(job, "replaced"), round(1000 * ttl))
    return (Effect("result", keys.result(jid), (*waits, *replaced)),)


def _queue_of(job: Payload) -> str:
    queue = job.get("queue")
    return queue if type(queue) is str else DEFAULT_QUEUE


def written(job: Payload, way: str) -> str:
    """The result of ``job``, which ends in this way, as JSON. It has what the child has noted of
    the run, or what the payload says of the last failure."""
    if way == "done":
        kept = job.get(RETURNED) or returned(None)
    else:
        noted = job.get(FAILED)  # another program's payload may have anything there
        kept = {"error": noted if isinstance(noted, Failure) else _failure_of(job, way)}
    return encode(_WrittenResult(way, name_of(job), now(), **kept)).decode()


def result_of(waiting: Result, outcome: Outcome) -> str:
    """The result, as JSON, of a job of which only the placeholder is known."""
    return written({"class": waiting.job}, outcome)


def _failure_of(job: Payload, way: str) -> Failure:
    name, message = job.get("error_class"), job.get("error_message")
    if way in ("dead", "dropped") and type(name) is str:
        return Failure(name, message[:LONGEST_MESSAGE] if type(message) is str else "")
    return Failure("", _SAID[way])
