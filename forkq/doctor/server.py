"""Checks of the Redis server: its version, what it does when it is full or restarts, its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final, TypeAlias

from ..config.config import Config
from ..config.shards import place_of_url
from ..errors import ServerUnavailable
from ..screens.checks import NO_ROOM, REDIS_MEMORY
from ..store.connection import RedisConnection
from ..store.server_check import check_usable, server_info, setting
from ..units import format_share, format_size
from ..wire.keys import Keys
from ..wire.redis_url import database_of, redacted_url
from .finding import Finding, Level, unchecked

# What a policy that deletes only expiring keys (volatile-*) costs: docs/wire.md has these keys.
_EXPIRING: Final = "what says which processes live: their jobs could run a second time"

# By appendfsync: what a crash costs. The file outlives a crash of Redis alone in each case.
_LOST: Final = {
    "always": "nothing that Redis has confirmed is lost",
    "everysec": "if its host crashes, about the last second is lost",
    "no": "if its host crashes, what the kernel has not written is lost (30 s, as Linux is set up)",
}

# The names of its endpoints. Its INFO looks like that of a server without persistence.
_MEMORYDB: Final = re.compile(r"\.memorydb\.[a-z0-9-]+\.amazonaws\.com\b")

# The shard that was found first on each server, by the server's ``run_id``, the database and the
# prefix.
SeenServers: TypeAlias = "dict[tuple[str, int, str], str]"


class ExaminedServer:
    """A connected server. INFO is read once."""

    def __init__(self, connection: RedisConnection, config: Config) -> None:
        self.connection = connection
        self.keys = Keys(config.redis.prefix)
        self.shown = redacted_url(connection.url)

    @cached_property
    def info(self) -> Mapping[str, str]:
        """The fields of INFO. Raises ConnectionLost, or RedisError without the right to it."""
        return server_info(self.connection)


def separate(server: ExaminedServer, config: Config, seen: SeenServers) -> Finding:
    """Whether no shard before has the same keys on this server, which may have several
    addresses."""
    run_id = server.info.get("run_id")
    if run_id is None:
        return unchecked("separate", "the server does not tell its run_id")
    place = run_id, database_of(server.connection.url), server.keys.prefix
    other = seen.setdefault(place, config.shard)
    if other == config.shard:
        return Finding("ok", "separate", "no shard before has these keys")
    return Finding(
        "fail",
        "separate",
        f"{server.shown} is the server of the shard {other} too",
        "the same jobs are shown and counted twice",
        f"check {place_of_url(config.shard, config.shards)}: each shard needs a server, a database "
        "or a prefix of its own",
    )


def version(server: ExaminedServer) -> Finding:
    """Whether forkq works with this version, and with a server in this role."""
    info = server.info
    try:
        check_usable(info, server.connection)
    except ServerUnavailable as error:
        said = str(error)
        remedy = "see docs/redis.md of forkq for the servers that it works with"
        return Finding("fail", "version", said, "forkq start refuses it", remedy)
    name = info.get("server_name", "redis").capitalize()
    number = info.get("valkey_version") or info.get("redis_version", "?")
    return Finding("ok", "version", f"{name} {number}")


def eviction(server: ExaminedServer) -> Finding:
    """Whether a full server deletes keys. Without maxmemory it is never full."""
    told = server.info.get("maxmemory_policy")
    policy = told or setting(server.connection, "maxmemory-policy")
    if policy is None:
        why = (
            "the server does not tell its maxmemory-policy, and another one than noeviction deletes"
        )
        return unchecked("eviction", f"{why} jobs", "look for it where the server is configured")
    limit = server.info.get("maxmemory", "")
    what = f"maxmemory-policy is {policy}"
    if policy == "noeviction":
        return Finding("ok", "eviction", what)
    deletes = "jobs" if policy.startswith("allkeys") else _EXPIRING
    remedy = "set maxmemory-policy to noeviction"
    if limit == "0":
        why = f"once maxmemory is set, a full server deletes {deletes}"
        return Finding("warn", "eviction", f"{what}; there is no maxmemory", why, remedy)
    if limit:
        what += f", maxmemory is {format_size(int(limit))}"
    return Finding("fail", "eviction", what, f"a full server deletes {deletes}", remedy)


def persistence(server: ExaminedServer) -> Finding:
    """Whether the jobs survive a restart of Redis, and its crash; and what may be lost all the
    same."""
    if _MEMORYDB.search(server.connection.url):
        what = "MemoryDB writes to a log in several zones before it confirms: it loses nothing"
        return Finding("ok", "persistence", what)
    if server.info.get("aof_enabled") == "1":
        how = setting(server.connection, "appendfsync") or ""
        lost = f" (appendfsync {how}): {_LOST[how]}" if how in _LOST else ""
        what = f"the append-only file is on{lost}{_lost_in_failover(server)}"
        return Finding("ok", "persistence", what)
    saves = server.info.get("rdb_saves_configured", "")
    if saves == "unknown":
        return unchecked(
            "persistence", "AOF is off, and CONFIG GET save is refused", "grant +config|get"
        )
    remedy = "set appendonly yes"
    if saves:
        what = f"RDB snapshots alone ({saves})"
        why = "a crash of Redis loses the jobs since the last one"
    else:
        what = "neither AOF nor RDB snapshots are on"
        why = "a restart of Redis loses every job"
    return Finding("warn", "persistence", what, why, remedy)


def _lost_in_failover(server: ExaminedServer) -> str:
    """What a replica that takes over may lack; "" if there is no replica."""
    if server.info.get("connected_slaves", "0") == "0":
        return ""
    needed = setting(server.connection, "min-replicas-to-write")
    lag = setting(server.connection, "min-replicas-max-lag")
    if needed in (None, "0") or lag == "0":
        bound = "" if needed is None else "; min-replicas-to-write bounds that, and is off"
        return f"; a replica that takes over may lack what it has not received{bound}"
    return f"; a replica that takes over may lack the last {lag} s"


def redis_memory(server: ExaminedServer) -> Finding:
    """How full the server is. A full one refuses pushes."""
    limit, of = int(server.info.get("maxmemory", 0)), "of its maxmemory"
    if not limit:
        limit, of = int(server.info.get("total_system_memory", 0)), "of its host; no maxmemory"
    if not limit:
        return unchecked("redis-memory", "INFO has neither maxmemory nor total_system_memory")
    used = int(server.info["used_memory"])
    share = format_share(used / limit)
    what = f"Redis uses {format_size(used)} of {format_size(limit)} ({share} {of})"
    if used < REDIS_MEMORY.limit * limit:
        return Finding("ok", REDIS_MEMORY.name, what)
    level: Level = "fail" if used >= NO_ROOM * limit else "warn"
    return Finding(level, REDIS_MEMORY.name, what, REDIS_MEMORY.why, REDIS_MEMORY.remedy)
