"""Whether forkq can work with this server: looked at by ``forkq start`` before the first fork."""

from __future__ import annotations

from typing import Final

from .connection import ResponseError, Wire
from .errors import ServerUnavailable
from .redis_url import redacted_url

MINIMUM_VERSION: Final = (6, 2)


def check_server(wire: Wire) -> list[str]:
    """What a careful operator should know of this server. Raises ServerUnavailable if too old."""
    info = _info(wire)
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        raise ServerUnavailable(
            f"Redis {version} at {redacted_url(wire.url)} is too old; forkq needs 6.2 or later"
        )
    warnings = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        warnings.append(
            f"maxmemory-policy is {policy}: a full server would throw jobs away; "
            "set it to noeviction"
        )
    if info.get("aof_enabled") == "0" and not info.get("rdb_saves_configured"):
        warnings.append(
            "neither AOF nor RDB snapshots are on: a restart of Redis loses every job; "
            "set appendonly yes"
        )
    return warnings


def _info(wire: Wire) -> dict[str, str]:
    reply: bytes = wire.call("INFO")
    lines = reply.decode("utf-8", "replace").splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        saves = wire.call("CONFIG", "GET", "save")
    except ResponseError:
        info["rdb_saves_configured"] = "unknown"  # CONFIG is refused by managed servers
    else:
        pairs = saves.values() if isinstance(saves, dict) else saves[1::2]
        info["rdb_saves_configured"] = b"".join(pairs).decode()
    return info
