"""Deploy marks: when which version went live, as Sidekiq's metrics page shows it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from .connection import Command, ResponseError, Wire
from .keys import Keys
from .times import now

_MARK_TTL: Final = 90 * 86_400
_LOCK_TTL: Final = 60  # seconds in which ten hosts that deploy the same make one mark
_ATTEMPTS: Final = 20


def mark(wire: Wire, keys: Keys, label: str, at: float | None = None) -> str | None:
    """Marks that ``label`` is deployed at the epoch second ``at`` (default: now), to the minute.

    Called by ``forkq mark-deploy``. Returns what that minute says now: a minute has one mark, so
    the labels of several deploys are joined. None if this label has just been marked, by another
    host perhaps. Raises ConnectionLost or RedisError.
    """
    moment = datetime.fromtimestamp(now() if at is None else at, timezone.utc)
    minute = f"{moment:%Y-%m-%dT%H:%M}:00Z"
    day, lock = keys.marks(f"{moment:%Y%m%d}"), keys.deploy_lock(label)
    for _ in range(_ATTEMPTS):
        wire.call("WATCH", day, lock)
        if wire.call("EXISTS", lock):
            wire.call("UNWATCH")
            return None
        before = wire.call("HGET", day, minute)
        told = f"{before.decode('utf-8', 'replace')}, {label}" if before else label
        if _written(
            wire,
            ("SET", lock, minute, "EX", _LOCK_TTL),
            ("HSET", day, minute, told),
            ("EXPIRE", day, _MARK_TTL),
        ):
            return told
    raise ResponseError(f"the marks of {minute} are being changed by others; try again")


def _written(wire: Wire, *commands: Command) -> bool:
    """Does all of it, unless somebody has changed what is watched."""
    replies = wire.pipeline([("MULTI",), *commands, ("EXEC",)])
    for reply in [*replies, *(replies[-1] or [])]:
        if isinstance(reply, Exception):
            raise reply
    return replies[-1] is not None
