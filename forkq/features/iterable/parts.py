"""How far an iterable job has come, as one hash in Redis says it: values, without I/O.

The hash ``it-JID`` has Sidekiq's names and forms, so either side goes on where the other one has
stopped: ``ex`` is how many runs there were, ``c`` the cursor as JSON, ``rt`` for how many seconds
they ran, ``cancelled`` the epoch second at which the job was cancelled. ``forkq`` stands beside
them: what forkq has counted. A job that has such a hash has ``forkq.needs.cursor`` in its payload,
so that the hash goes with the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ...wire.marks import with_gained
from ...wire.payload import UNWRITABLE, Payload, encode
from ..effects import NONE, Effect

CURSOR: Final = "cursor"
# The lowest version of forkq's payloads whose children know the need.
VERSION: Final = 2
# The field of the hash that only forkq writes.
_OURS: Final = "forkq"
# Seconds for which a cursor is kept after its last change, as Sidekiq does. That of a dead job
# stays for as long as the dead set keeps a job.
KEPT_FOR: Final = 30 * 86_400
_KEPT_WITH_THE_DEAD: Final = 180 * 86_400
# Bytes of JSON that a cursor may have.
MOST: Final = 64 << 10

# What becomes of the cursor: "kept" as it is; "held" for its time from the next run on; "held
# long", as long as the dead set keeps the job; or "deleted" with it.
Fate: TypeAlias = Literal["kept", "held", "held long", "deleted", "by TTL"]


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """What forkq notes beside Sidekiq's fields: how many ``items`` its runs have done, and how much
    of the work, as of the run with this number."""

    runs: int = 0
    items: int = 0
    done: float | None = None
    total: float | None = None


class Iteration(NamedTuple):
    """How far a job has come. ``runs``: how many there were; ``cursor``: where the next one goes
    on, None: at the beginning; ``seconds``: for how long they ran; ``cancelled``: whether another
    process has cancelled the job. ``items``: how many those of forkq have done; ``place``: how much
    of its work was done, and of how much, None: unknown, or Sidekiq had the last run."""

    runs: int = 0
    cursor: Any = None
    seconds: float = 0.0
    cancelled: bool = False
    items: int = 0
    place: tuple[float, float | None] | None = None

    def fields(self) -> tuple[str | bytes, ...]:
        """The fields of the hash, each with its value. Raises InvalidJob for a cursor that is no
        JSON, or too large."""
        theirs = ("ex", str(self.runs), "c", written(self.cursor), "rt", f"{self.seconds:.6f}")
        counted = Counted(self.runs, self.items, *(self.place or (None, None)))
        return (*theirs, _OURS, msgspec.json.encode(counted))


def written(cursor: Any) -> bytes:
    """The cursor as JSON. Raises InvalidJob."""
    try:
        text = encode(cursor)
    except UNWRITABLE as error:
        raise InvalidJob(
            f"the cursor {shown(cursor)} cannot be written as JSON ({error}); give a number, text, "
            "or a list of them"
        ) from None
    if text == b"null" and cursor is not None:
        raise InvalidJob(f"the cursor {shown(cursor)} is no value of JSON; give another number")
    if len(text) > MOST:
        raise InvalidJob(
            f"the cursor has {len(text):,} bytes of JSON, and the most is {MOST:,}; give the key "
            "of an item, not the item"
        )
    return text


def read(reply: Mapping[bytes, bytes]) -> Iteration:
    """What the hash says. One without ``c`` belongs to a job that was cancelled before it had a
    cursor. Raises InvalidJob for what is no cursor: to begin again would repeat what is done."""
    try:
        runs, seconds = int(reply.get(b"ex", b"0")), float(reply.get(b"rt", b"0"))
        cursor = msgspec.json.decode(reply.get(b"c", b"null"))
    except (ValueError, msgspec.MsgspecError) as error:
        raise InvalidJob(f"its cursor in Redis cannot be read: {error}") from None
    counted = _counted(reply)
    is_latest = counted.done is not None and counted.runs == runs
    place = (counted.done or 0, counted.total) if is_latest else None
    return Iteration(runs, cursor, seconds, b"cancelled" in reply, counted.items, place)


def _counted(reply: Mapping[bytes, bytes]) -> Counted:
    """What forkq has counted, which only people read: what cannot be read counts as nothing."""
    try:
        return msgspec.json.decode(reply.get(_OURS.encode(), b""), type=Counted)
    except msgspec.MsgspecError:
        return Counted()


def with_cursor(job: Payload) -> Payload:
    """``job`` as one that has a cursor in Redis. Changes it, and returns it."""
    return with_gained(job, CURSOR, True, VERSION)


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, jid: str, delay: float
) -> tuple[Effect, ...]:
    """What becomes of the cursor of the job ``jid``. ``delay``: in how many seconds it is due."""
    if CURSOR not in needs or not jid or fate in ("kept", "by TTL"):
        return NONE
    if fate == "deleted":
        return (Effect("forget", keys.iteration(jid)),)
    seconds = _KEPT_WITH_THE_DEAD if fate == "held long" else KEPT_FOR + max(0.0, delay)
    return (Effect("keep", keys.iteration(jid), (round(seconds),)),)
