"""Whether forkq can work with a server, and may: ``forkq start`` looks before the first fork.

docs/redis.md lists the rights of the Redis user (ACL) for the person who creates that user.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, NotPermitted, ServerReadOnly, ServerUnavailable
from ..wire.keys import Keys
from ..wire.redis_url import files_of, redacted_url
from .connection import Command, RedisConnection, ResponseError
from .refusals import RIGHTS
from .sentinel import MasterLost

MINIMUM_VERSION: Final = (6, 2)
# The commands of the API, which changes jobs by hand, besides those below.
_OF_API: Final = "lpos k v,unlink k,zcount k 0 0,zrank k m,zscore k m"
# The commands whose rights are checked, each with arguments that Redis accepts; `k` is a key.
# CLIENT is left out: where the server refuses tracking, forkq polls. WATCH and EXEC are left out:
# only commands and the API use them.
_COMMANDS: Final = (
    "bitfield k get u8 0,del k,evalsha 0 0,exists k,expire k 1,get k,getex k,hdel k f,hexists k f,"
    "hget k f,hgetall k,hincrby k f 1,hkeys k,hlen k,hmget k f,hscan k 0,hset k f v,hvals k,incr k,"
    "incrby k 1,info,lindex k 0,llen k,lpop k,lpush k v,lrange k 0 0,lrem k 0 v,lset k 0 v,"
    "ltrim k 0 0,mget k,pexpire k 1,ping,pttl k,rpop k,rpush k v,sadd k m,script load s,set k v,"
    "smembers k,smismember k m,srem k m,time,type k,xadd k * f v,xdel k 0-1,xlen k,xrange k - +,"
    "zadd k 0 m,zcard k,zmscore k m,zrange k 0 0,zrem k m,zremrangebyrank k 0 0,"
    "zremrangebyscore k 0 0,zscan k 0"
)


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
    is_node = info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1"
    if is_node and not connection.in_cluster:
        raise ServerUnavailable(
            f"Redis at {shown} is a node of a Redis Cluster, and another node may get its keys: "
            "write cluster://HOST:PORT,HOST:PORT with some of the nodes, and a prefix with a name "
            'in braces: prefix = "{forkq}:"'
        )
    if info.get("role") == "slave":
        if connection.follows:
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


def check_rights(connection: RedisConnection, keys: Keys) -> None:
    """Raises NotPermitted, with all missing rights, unless master, children and clock may do all
    that they do. Where MULTI fails for another reason (a full server), nothing is checked."""
    if missing := missing_rights(connection, keys):
        raise NotPermitted(
            f"Redis at {redacted_url(connection.url)}: the user of this URL lacks rights that "
            f"forkq needs: {' '.join(missing)}; {RIGHTS}"
        )


def missing_rights(connection: RedisConnection, keys: Keys) -> list[str] | None:
    """The rights that the user lacks, as ACL SETUSER takes them: ``+multi`` alone without that one;
    None if the server refuses MULTI for another reason."""
    commands, named = _commands(_COMMANDS), _keys(keys)
    probes = [_with_key(command, keys.queues) for command in commands]
    probes += [("EXISTS", key) for key in named.values()]
    probes += [("DEL", key) for key in named.values()]
    try:
        replies = _queued(connection, probes)
    except ResponseError as error:
        return ["+multi"] if _denied(error) else None
    missing = [
        f"+{_name(c)}" for c, reply in zip(commands, replies, strict=False) if _denied(reply)
    ]
    of_keys = replies[len(commands) :]
    return missing + [
        f"~{pattern}"
        for pattern, *pair in zip(named, of_keys, of_keys[len(named) :], strict=False)
        if any(_key_denied(reply) for reply in pair)
    ]


def unknown_commands(connection: RedisConnection, keys: Keys) -> list[str]:
    """The commands that the server does not know, or not in the form that forkq needs, of all that
    forkq uses; a missing right is none. Raises ResponseError if it refuses MULTI."""
    commands = _commands(f"{_COMMANDS},{_OF_API}")
    replies = _queued(connection, [_with_key(command, keys.queues) for command in commands])
    return [
        _name(command)
        for command, reply in zip(commands, replies, strict=True)
        if isinstance(reply, Exception) and not _denied(reply) and not _key_denied(reply)
    ]


def _queued(connection: RedisConnection, commands: Sequence[Command]) -> list[Any]:
    """What the server says when it queues these commands in a transaction: it looks at the rights
    for each. The transaction is never executed: the connection is closed.

    Raises ResponseError if MULTI is refused: without it the commands would be carried out.
    """
    try:
        connection.call("MULTI")
        return connection.pipeline(commands)
    finally:
        connection.close()


def _commands(listed: str) -> list[list[str]]:
    return [command.split() for command in listed.split(",")]


def _keys(keys: Keys) -> dict[str, str]:
    """One key of each kind, by the pattern that gives the right to all of that kind."""
    identity = f"{socket.gethostname()}:1:0"
    prefix, host = keys.prefix, socket.gethostname()
    return {
        keys.queues: keys.queues,
        f"{prefix}queue:*": keys.queue("q"),
        f"{prefix}{{queue:*": keys.inflight("q"),
        keys.schedule: keys.schedule,
        keys.retry: keys.retry,
        keys.dead: keys.dead,
        keys.processes: keys.processes,
        keys.paused: keys.paused,
        f"{prefix}stat:*": keys.stat("processed"),
        f"{prefix}j|*": keys.metrics("m"),
        f"{prefix}h|*": keys.histogram("J", "m"),
        f"{prefix}forkq:*": keys.leader,
        f"{prefix}it-*": keys.iteration("j"),
        f"{prefix}{host}:*": keys.work(identity),
    }


def _with_key(command: Sequence[str], key: str) -> Command:
    return tuple(key if part == "k" else part for part in command)


def _name(command: Sequence[str]) -> str:
    return "script|load" if command[0] == "script" else command[0]


def _denied(reply: Any) -> bool:
    return isinstance(reply, Exception) and "permissions to run" in str(reply)


def _key_denied(reply: Any) -> bool:
    return isinstance(reply, Exception) and "permissions to access" in str(reply)
