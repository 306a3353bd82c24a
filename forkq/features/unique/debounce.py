"""Debounced jobs: each push takes the place of the one before, until no more come (``debounce``).

Values, without I/O. The job waits in the schedule, and its lock keeps the very member there
(``store/scripts/debounce.lua``): so the next push finds and removes it. Once it has left the
schedule, the lock means nothing any more: the next push begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from ...wire.keys import Keys
from ...wire.times import LONGEST_SECONDS
from ..effects import NONE, Effect

if TYPE_CHECKING:
    from .parts import Lock
    from .tickets import Marked

DEBOUNCE: Final = "debounce"
# The lowest version of forkq's payloads whose processes know such a lock.
VERSION: Final = 4
# What becomes of the lock of a debounced job: "taken again" if it is free and the job waits in the
# schedule once more.
Fate: TypeAlias = Literal["kept", "freed", "taken again", "the newest job's", "by TTL"]
# How many times ``debounce`` is ``debounce_max``, unless the job says another number.
_TIMES: Final = 10


class Debounce(NamedTuple):
    """When a debounced job is due: ``after`` the last push, and at ``most`` so long after the first
    one; both in seconds."""

    after: float
    most: float


def need(given: Mapping[Any, Any]) -> dict[str, Any]:
    """What the payload of a job with these options has, beside the digest. An older forkq, which
    does not know ``on``, would free the lock when the job starts."""
    after = float(given["debounce"])
    most = float(given.get("debounce_max", min(LONGEST_SECONDS, _TIMES * after)))
    return {"for": after, "until": "start", "on": DEBOUNCE, "max": most}


def debounce_in(found: Mapping[str, Any]) -> Debounce | None:
    """When the job is due, of whose lock its needs have ``found`` this; None if it is not
    debounced, or if what stands there is odd. The caller has looked at ``for``."""
    if found.get("on") != DEBOUNCE:
        return None
    after, most = float(found["for"]), found.get("max")
    is_number = type(most) is int or type(most) is float
    if not is_number or not after <= most <= LONGEST_SECONDS:  # type: ignore[operator]
        return None
    return Debounce(after, float(most))  # type: ignore[arg-type]


def effects(keys: Keys, lock: Lock, fate: Fate, job: Marked) -> tuple[Effect, ...]:
    """What becomes of the lock of the job."""
    name = keys.unique(lock.digest)
    if fate == "freed":
        return (Effect("unlock", name, (job.jid,)),)
    if fate == "taken again":
        return (Effect("debounce_again", name, (job.jid, job.name), (keys.schedule,)),)
    return NONE
