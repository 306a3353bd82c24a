"""Deploy marks: the time and label of each deploy, for Sidekiq's metrics page."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from ..wire.keys import Keys
from ..wire.times import now
from .connection import RedisConnection
from .scripts import DEPLOY_MARK

_MARK_TTL: Final = 90 * 86_400
_LOCK_TTL: Final = 60  # seconds: several hosts that deploy one label in that time make one mark


def mark(
    connection: RedisConnection, keys: Keys, label: str, at: float | None = None
) -> str | None:
    """Marks that ``label`` is deployed at the epoch second ``at`` (default: now), to the minute.

    Called by ``forkq mark-deploy``. Returns the mark of that minute: a minute has one mark, so
    the labels of several deploys are joined. None if this label has just been marked, by another
    host perhaps. Raises ConnectionLost or RedisError.
    """
    moment = datetime.fromtimestamp(now() if at is None else at, timezone.utc)
    minute = f"{moment:%Y-%m-%dT%H:%M}:00Z"
    day, lock = keys.marks(f"{moment:%Y%m%d}"), keys.deploy_lock(label)
    labels = connection.script(DEPLOY_MARK, (day, lock), (minute, label, _MARK_TTL, _LOCK_TTL))
    return None if labels is None else str(labels, "utf-8", "replace")
