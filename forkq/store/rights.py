"""The rights (ACL) of the Redis user: ``forkq start`` checks them before the first fork.

docs/redis.md has the same list for the person who creates that user.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from ..errors import NotPermitted
from ..wire.keys import Keys
from ..wire.redis_url import redacted_url
from .connection import Command, RedisConnection
from .refusals import RIGHTS

# Each with arguments that Redis accepts; `k` is a key. CLIENT is left out: where the server
# refuses tracking, forkq polls. WATCH and EXEC are left out: only commands and the API use them.
_COMMANDS: Final = (
    "bitfield k get u8 0,del k,evalsha 0 0,exists k,expire k 1,get k,getex k,hdel k f,hexists k f,"
    "hget k f,hgetall k,hincrby k f 1,hkeys k,hlen k,hmget k f,hset k f v,hvals k,incr k,"
    "incrby k 1,info,lindex k 0,llen k,lpop k,lpush k v,lrange k 0 0,lrem k 0 v,ltrim k 0 0,"
    "mget k,ping,pttl k,rpop k,rpush k v,sadd k m,script load s,set k v,smembers k,"
    "smismember k m,srem k m,time,type k,zadd k 0 m,zcard k,zmscore k m,zrange k 0 0,zrem k m,"
    "zremrangebyrank k 0 0,zremrangebyscore k 0 0,zscan k 0"
)


def check_rights(connection: RedisConnection, keys: Keys) -> None:
    """Raises NotPermitted, with all missing rights, unless master, children and clock may do all
    that they do. Where MULTI fails for another reason (a full server), nothing is checked."""
    if missing := missing_rights(connection, keys):
        raise NotPermitted(
            f"Redis at {redacted_url(connection.url)}: the user of this URL lacks rights that "
            f"forkq needs: {' '.join(missing)}; {RIGHTS}"
        )


def missing_rights(connection: RedisConnection, keys: Keys) -> list[str] | None:
    """The rights that the user lacks, as ACL SETUSER takes them; None if Redis refuses MULTI for
    another reason, such as a full memory.

    Redis checks the rights for a command when it queues it in a transaction. This transaction is
    never executed: its connection is closed.
    """
    commands = [command.split() for command in _COMMANDS.split(",")]
    named = _keys(keys)
    probes = [_with_key(command, keys.queues) for command in commands]
    probes += [("EXISTS", key) for key in named.values()]
    probes += [("DEL", key) for key in named.values()]
    try:
        begun, *replies = connection.pipeline([("MULTI",), *probes])
    finally:
        connection.close()
    missing = [
        f"+{_name(c)}" for c, reply in zip(commands, replies, strict=False) if _denied(reply)
    ]
    of_keys = replies[len(commands) :]
    missing += [
        f"~{pattern}"
        for pattern, *pair in zip(named, of_keys, of_keys[len(named) :], strict=False)
        if any(_key_denied(reply) for reply in pair)
    ]
    if _denied(begun):
        missing.insert(0, "+multi")
    elif isinstance(begun, Exception):
        return None
    return missing


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
