"""Deploy marks: when which version went live, as Sidekiq's metrics page shows it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from .connection import Wire
from .keys import Keys
from .times import now

_MARK_TTL: Final = 90 * 86_400
_LOCK_TTL: Final = 60  # seconds in which ten hosts that deploy the same make one mark


def mark(wire: Wire, keys: Keys, label: str, at: float | None = None) -> bool:
    """Marks that ``label`` is deployed at the epoch second ``at`` (default: now), to the minute.

    Called by ``forkq mark-deploy``. False if this label has just been marked, by another host
    perhaps, or that minute has a mark already. Raises ConnectionLost or RedisError.
    """
    moment = datetime.fromtimestamp(now() if at is None else at, timezone.utc)
    minute = f"{moment:%Y-%m-%dT%H:%M}:00Z"
    if wire.call("SET", keys.deploy_lock(label), minute, "NX", "EX", _LOCK_TTL) is None:
        return False
    day = keys.marks(f"{moment:%Y%m%d}")
    marked = wire.call("HSETNX", day, minute, label)
    wire.call("EXPIRE", day, _MARK_TTL)
    return bool(marked)
