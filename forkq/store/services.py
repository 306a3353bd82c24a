"""Which services run: their clocks announce it in Redis (clock/cron/services.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..wire.keys import Keys

if TYPE_CHECKING:
    from .connection import RedisConnection


def running_services(
    connection: RedisConnection, keys: Keys, services: Iterable[str]
) -> frozenset[str]:
    """Those of ``services`` that run. Raises ConnectionLost or RedisError."""
    names = sorted(services)
    if not names:
        return frozenset()
    found = connection.call("MGET", *map(keys.cron_origin, names))
    return frozenset(name for name, value in zip(names, found, strict=True) if value is not None)
