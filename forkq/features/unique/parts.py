"""What a unique job needs: values, without I/O.

The payload has ``forkq.needs.unique``: the digest in the name of the lock's key (``lock``), for how
many seconds the lock is held at most (``for``), and until when (``until``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from ...wire.keys import Keys
from ..effects import NONE, Effect

UNIQUE: Final = "unique"
# Until when a job holds its lock: "end": however it ends; "start": it is run; "expiry": its time is
# over, however the job ends.
Until: TypeAlias = Literal["end", "start", "expiry"]
# What becomes of the lock: "freed", "held" for its time from now on, "taken again" if it is free.
Fate: TypeAlias = Literal["kept", "freed", "held", "taken again", "by TTL"]

_UNTIL: Final[tuple[Until, ...]] = get_args(Until)
_LONGEST_DIGEST: Final = 64
_LONGEST_NAME: Final = 200
_MOST_SECONDS: Final = 1e9


class Lock(NamedTuple):
    """The lock of one job: the ``digest`` in its name, and for how many ``seconds`` it is held."""

    digest: str
    seconds: float
    until: Until

    def effect(self, keys: Keys, jid: str, name: str, delay: float) -> Effect:
        """The effect that takes it for the job ``jid`` of the class ``name``."""
        milliseconds = round(1000 * (max(0.0, delay) + self.seconds))
        return Effect("lock", keys.unique(self.digest), (jid, name[:_LONGEST_NAME], milliseconds))


def lock_in(needs: Mapping[str, Any]) -> Lock | None:
    """The lock in the needs of a job; None if it has none, or if what stands there is odd."""
    found = needs.get(UNIQUE)
    if type(found) is not dict:
        return None
    digest, seconds, until = found.get("lock"), found.get("for"), found.get("until")
    if type(digest) is not str or not 0 < len(digest) <= _LONGEST_DIGEST:
        return None
    is_number = isinstance(seconds, int | float) and type(seconds) is not bool
    if not is_number or not 0 < seconds <= _MOST_SECONDS or until not in _UNTIL:  # type: ignore[operator]
        return None
    return Lock(digest, float(seconds), until)  # type: ignore[arg-type]


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, jid: str, name: str, delay: float = 0.0
) -> tuple[Effect, ...]:
    """What becomes of the lock of the job ``jid`` of the class ``name``. ``delay``: in how many
    seconds the job is due."""
    lock = lock_in(needs)
    if lock is None or lock.until == "expiry" or not jid:
        return NONE
    if fate == "freed":
        return (Effect("unlock", keys.unique(lock.digest), (jid,)),)
    if fate == "taken again" or (fate == "held" and lock.until == "end"):
        return (lock.effect(keys, jid, name, delay),)
    return NONE
