"""Checks of the server: ``forkq start`` makes them before the first fork."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import ConfigError, ServerReadOnly, ServerUnavailable
from ..wire.redis_url import files_of, redacted_url
from .connection import RedisConnection, ResponseError
from .sentinel import MasterLost

MINIMUM_VERSION: Final = (6, 2)


def check_usable(info: Mapping[str, str], connection: RedisConnection) -> None:
    """Raises ServerUnavailable if the server with this INFO is too old, or of a kind that forkq
    cannot work with."""
    shown = redacted_url(connection.url)
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        raise ServerUnavailable(f"Redis {version} at {shown} is too old; forkq needs 6.2 or later")
    _check_role(info, connection)


def server_info(connection: RedisConnection) -> dict[str, str]:
    """The fields of INFO, with ``rdb_saves_configured``: "" if snapshots are off, "unknown" if the
    server does not say."""
    reply: bytes = connection.call("INFO")
    lines = reply.decode("utf-8", "replace").splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    saves = setting(connection, "save")  # managed servers refuse CONFIG
    info["rdb_saves_configured"] = "unknown" if saves is None else saves
    return info


def setting(connection: RedisConnection, name: str) -> str | None:
    """The value of one setting in redis.conf; None if the server does not tell."""
    try:
        reply = connection.call("CONFIG", "GET", name)
    except ResponseError:
        return None
    values = list(reply.values() if isinstance(reply, dict) else reply[1::2])
    return values[0].decode() if values else None


def _check_role(info: Mapping[str, str], connection: RedisConnection) -> None:
    """Raises ServerUnavailable for a server on which forkq can run no job, and MasterLost for a
    replica that Sentinels named as the master: they will name another server."""
    shown = redacted_url(connection.url)
    if info.get("redis_mode") == "sentinel":
        raise ServerUnavailable(
            f"Redis at {shown} is a Sentinel, which has no jobs: write "
            "sentinel://HOST:PORT,HOST:PORT/MASTER-NAME/DB, and forkq asks it for the master"
        )
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1":
        raise ServerUnavailable(
            f"Redis at {shown} is part of a Redis Cluster; forkq reads several queues in one "
            "script, which a cluster refuses: give the address of a single server, or of several "
            "as [[redis.shards]]"
        )
    if info.get("role") == "slave":
        if connection.by_sentinel:
            raise MasterLost(f"the master of {shown} has just become a replica")
        master = f"{info.get('master_host')}:{info.get('master_port')}"
        raise ServerReadOnly(
            f"Redis at {shown} is a replica of {master}, which takes no writes: give the address "
            "of the master"
        )


def check_files(url: str) -> None:
    """Raises ConfigError if a file that the URL's options name cannot be read."""
    for option, name in files_of(url).items():
        path = Path(name)
        try:
            if path.is_dir() is (option == "ssl_ca_path"):
                path.stat() if path.is_dir() else path.open("rb").close()
                continue
            reason = "it is no folder" if option == "ssl_ca_path" else "it is a folder"
        except OSError as error:
            reason = str(error.strerror)
        raise ConfigError(f"the Redis URL's {option} names {name}: {reason}")
