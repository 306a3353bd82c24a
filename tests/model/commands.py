"""The commands of Redis that forkq's scripts and processes use, over values in this process.

``test_store.py`` compares each of them with a real server, and so does ``make explore``. No key
expires. The time is a value among the others, and changes only if the world changes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any, Final, NamedTuple, TypeAlias

MOMENT: Final = 1_700_000_000  # what TIME says at the beginning, epoch seconds
# Where a state has the time, once it is another one. No command can name this key.
NOW: Final = b"(time)"


class Refused(Exception):
    """An error reply."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Refused) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class Ok(NamedTuple):
    """A status reply, such as +OK."""

    text: bytes = b"OK"


OK: Final = Ok()


@dataclass(frozen=True)
class Mapped:
    """A reply that a process gets as a mapping."""

    pairs: tuple[tuple[bytes, bytes], ...]


class Scores(dict[bytes, float]):
    """A sorted set: member -> score."""

    def ranked(self) -> list[tuple[bytes, float]]:
        """Members and scores in the server's order."""
        return sorted(self.items(), key=lambda pair: (pair[1], pair[0]))


Value: TypeAlias = "list[bytes] | dict[bytes, bytes] | set[bytes] | Scores | bytes"
Keyspace: TypeAlias = "dict[bytes, Value]"
Args: TypeAlias = Sequence[bytes]

_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NO_INTEGER: Final = "ERR value is not an integer or out of range"


def _get(keyspace: Keyspace, key: bytes, kind: type[Any]) -> Any:
    """The value of that type; None if the key is missing. Raises WRONGTYPE."""
    found = keyspace.get(key)
    if found is not None and type(found) is not kind:
        raise Refused(_WRONG_TYPE)
    return found


def _made(keyspace: Keyspace, key: bytes, kind: type[Any]) -> Any:
    found = _get(keyspace, key, kind)
    return keyspace.setdefault(key, kind()) if found is None else found


def _drop_empty(keyspace: Keyspace, key: bytes) -> None:
    if key in keyspace and not isinstance(keyspace[key], bytes) and not keyspace[key]:
        del keyspace[key]


def _span(values: Sequence[Any], first: bytes, last: bytes) -> slice:
    start, stop, size = int(first), int(last), len(values)
    start = max(0, start + size if start < 0 else start)
    stop = stop + size if stop < 0 else stop
    return slice(start, max(start, stop + 1))


# Lists


def _push(keyspace: Keyspace, args: Args, *, left: bool) -> int:
    values = _made(keyspace, args[0], list)
    for value in args[1:]:
        values.insert(0 if left else len(values), value)
    return len(values)


def _lpush(keyspace: Keyspace, args: Args) -> int:
    return _push(keyspace, args, left=True)


def _rpush(keyspace: Keyspace, args: Args) -> int:
    return _push(keyspace, args, left=False)


def _pop(keyspace: Keyspace, args: Args, *, left: bool) -> bytes | None:
    values = _get(keyspace, args[0], list)
    if values is None:
        return None
    popped: bytes = values.pop(0 if left else -1)
    _drop_empty(keyspace, args[0])
    return popped


def _lpop(keyspace: Keyspace, args: Args) -> bytes | None:
    return _pop(keyspace, args, left=True)


def _rpop(keyspace: Keyspace, args: Args) -> bytes | None:
    return _pop(keyspace, args, left=False)


def _llen(keyspace: Keyspace, args: Args) -> int:
    return len(_get(keyspace, args[0], list) or ())


def _lrange(keyspace: Keyspace, args: Args) -> list[bytes]:
    values: list[bytes] = _get(keyspace, args[0], list) or []
    return values[_span(values, args[1], args[2])]


def _ltrim(keyspace: Keyspace, args: Args) -> Ok:
    values = _get(keyspace, args[0], list)
    if values is not None:
        values[:] = values[_span(values, args[1], args[2])]
        _drop_empty(keyspace, args[0])
    return OK


def _lindex(keyspace: Keyspace, args: Args) -> bytes | None:
    values = _get(keyspace, args[0], list) or []
    at = int(args[1])
    return values[at] if -len(values) <= at < len(values) else None


def _lset(keyspace: Keyspace, args: Args) -> Ok:
    values, at = _get(keyspace, args[0], list), int(args[1])
    if values is None:
        raise Refused("ERR no such key")
    if not -len(values) <= at < len(values):
        raise Refused("ERR index out of range")
    values[at] = args[2]
    return OK


def _lrem(keyspace: Keyspace, args: Args) -> int:
    values = _get(keyspace, args[0], list)
    if values is None:
        return 0
    count, entry = int(args[1]), args[2]
    places = [at for at, value in enumerate(values) if value == entry]
    chosen = places if count == 0 else places[:count] if count > 0 else places[count:]
    for at in reversed(chosen):
        del values[at]
    _drop_empty(keyspace, args[0])
    return len(chosen)


def _lpos(keyspace: Keyspace, args: Args) -> int | None:
    values = _get(keyspace, args[0], list) or []
    places = [at for at, value in enumerate(values) if value == args[1]]
    rank = int(args[3]) if len(args) > 3 else 1
    at = rank - 1 if rank > 0 else rank
    return places[at] if -len(places) <= at < len(places) else None


# Hashes


def _hset(keyspace: Keyspace, args: Args) -> int:
    fields = _made(keyspace, args[0], dict)
    before = len(fields)
    fields.update(zip(args[1::2], args[2::2], strict=True))
    return len(fields) - before


def _hget(keyspace: Keyspace, args: Args) -> bytes | None:
    return (_get(keyspace, args[0], dict) or {}).get(args[1])


def _hmget(keyspace: Keyspace, args: Args) -> list[bytes | None]:
    fields = _get(keyspace, args[0], dict) or {}
    return [fields.get(name) for name in args[1:]]


def _hexists(keyspace: Keyspace, args: Args) -> int:
    return int(args[1] in (_get(keyspace, args[0], dict) or {}))


def _hdel(keyspace: Keyspace, args: Args) -> int:
    fields = _get(keyspace, args[0], dict)
    if fields is None:
        return 0
    removed = sum(fields.pop(name, None) is not None for name in args[1:])
    _drop_empty(keyspace, args[0])
    return removed


def _hlen(keyspace: Keyspace, args: Args) -> int:
    return len(_get(keyspace, args[0], dict) or ())


def _hkeys(keyspace: Keyspace, args: Args) -> list[bytes]:
    return list(_get(keyspace, args[0], dict) or ())


def _hvals(keyspace: Keyspace, args: Args) -> list[bytes]:
    return list((_get(keyspace, args[0], dict) or {}).values())


def _hgetall(keyspace: Keyspace, args: Args) -> list[bytes]:
    return [part for pair in (_get(keyspace, args[0], dict) or {}).items() for part in pair]


def _hincrby(keyspace: Keyspace, args: Args) -> int:
    fields = _made(keyspace, args[0], dict)
    count = _integer(fields.get(args[1], b"0"), "ERR hash value is not an integer")
    fields[args[1]] = b"%d" % (count + int(args[2]))
    return count + int(args[2])


# Sets


def _sadd(keyspace: Keyspace, args: Args) -> int:
    members = _made(keyspace, args[0], set)
    before = len(members)
    members.update(args[1:])
    return len(members) - before


def _srem(keyspace: Keyspace, args: Args) -> int:
    members = _get(keyspace, args[0], set)
    if members is None:
        return 0
    before = len(members)
    members.difference_update(args[1:])
    removed = before - len(members)
    _drop_empty(keyspace, args[0])
    return removed


def _smembers(keyspace: Keyspace, args: Args) -> list[bytes]:
    return sorted(_get(keyspace, args[0], set) or ())


def _sismember(keyspace: Keyspace, args: Args) -> int:
    return int(args[1] in (_get(keyspace, args[0], set) or ()))


def _smismember(keyspace: Keyspace, args: Args) -> list[int]:
    members = _get(keyspace, args[0], set) or ()
    return [int(member in members) for member in args[1:]]


# Sorted sets


def _zadd(keyspace: Keyspace, args: Args) -> int:
    option, rest = args[1].upper(), list(args[1:])
    if option in (b"NX", b"LT"):
        del rest[0]
    scores = [_number(each) for each in rest[::2]]
    members = _made(keyspace, args[0], Scores)
    before = len(members)
    for score, member in zip(scores, rest[1::2], strict=True):
        stays = option == b"NX" or (option == b"LT" and score >= members.get(member, score))
        if not (member in members and stays):
            members[member] = score
    return len(members) - before


def _zrem(keyspace: Keyspace, args: Args) -> int:
    members = _get(keyspace, args[0], Scores)
    if members is None:
        return 0
    removed = sum(members.pop(member, None) is not None for member in args[1:])
    _drop_empty(keyspace, args[0])
    return removed


def _zscore(keyspace: Keyspace, args: Args) -> bytes | None:
    score = (_get(keyspace, args[0], Scores) or {}).get(args[1])
    return None if score is None else shown(score)


def _zmscore(keyspace: Keyspace, args: Args) -> list[bytes | None]:
    return [_zscore(keyspace, (args[0], member)) for member in args[1:]]


def _zcard(keyspace: Keyspace, args: Args) -> int:
    return len(_get(keyspace, args[0], Scores) or ())


def _zrank(keyspace: Keyspace, args: Args) -> int | None:
    ranked = [member for member, _ in (_get(keyspace, args[0], Scores) or Scores()).ranked()]
    return ranked.index(args[1]) if args[1] in ranked else None


def _zrange(keyspace: Keyspace, args: Args) -> list[bytes]:
    options = [each.upper() for each in args[3:]]
    members = _get(keyspace, args[0], Scores) or Scores()
    if b"BYSCORE" in options:
        pairs = _within(members, args[1], args[2])
    else:
        ranked = members.ranked()
        pairs = ranked[_span(ranked, args[1], args[2])]
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        offset, count = int(options[at + 1]), int(options[at + 2])
        pairs = pairs[offset:] if count < 0 else pairs[offset : offset + count]
    if b"WITHSCORES" in options:
        return [part for member, score in pairs for part in (member, shown(score))]
    return [member for member, _ in pairs]


def _zscan(keyspace: Keyspace, args: Args) -> list[Any]:
    """All at once, as a server gives a small set."""
    members = _get(keyspace, args[0], Scores) or Scores()
    return [b"0", [part for member, score in members.ranked() for part in (member, shown(score))]]


def _zrangebyscore(keyspace: Keyspace, args: Args) -> list[bytes]:
    return _zrange(keyspace, (*args[:3], b"BYSCORE", *args[3:]))


def _zcount(keyspace: Keyspace, args: Args) -> int:
    return len(_within(_get(keyspace, args[0], Scores) or Scores(), args[1], args[2]))


def _zremrangebyscore(keyspace: Keyspace, args: Args) -> int:
    members = _get(keyspace, args[0], Scores) or Scores()
    return _zrem(keyspace, (args[0], *(m for m, _ in _within(members, args[1], args[2]))))


def _zremrangebyrank(keyspace: Keyspace, args: Args) -> int:
    ranked = (_get(keyspace, args[0], Scores) or Scores()).ranked()
    return _zrem(keyspace, (args[0], *(m for m, _ in ranked[_span(ranked, args[1], args[2])])))


def _within(members: Scores, lowest: bytes, highest: bytes) -> list[tuple[bytes, float]]:
    least, most = _number(lowest.lstrip(b"(")), _number(highest.lstrip(b"("))
    return [
        (member, score)
        for member, score in members.ranked()
        if (score > least if lowest.startswith(b"(") else score >= least)
        and (score < most if highest.startswith(b"(") else score <= most)
    ]


# Strings and keys


def _set(keyspace: Keyspace, args: Args) -> Ok | None:
    if b"NX" in args[2:] and args[0] in keyspace:
        return None
    keyspace[args[0]] = args[1]
    return OK


def _read(keyspace: Keyspace, args: Args) -> bytes | None:
    found: bytes | None = _get(keyspace, args[0], bytes)
    return found


def _incrby(keyspace: Keyspace, args: Args) -> int:
    found = _read(keyspace, args)
    count = _integer(b"0" if found is None else found, _NO_INTEGER)
    count += int(args[1]) if len(args) > 1 else 1
    keyspace[args[0]] = b"%d" % count
    return count


def _del(keyspace: Keyspace, args: Args) -> int:
    return sum(keyspace.pop(key, None) is not None for key in args)


def _exists(keyspace: Keyspace, args: Args) -> int:
    return sum(key in keyspace for key in args)


def _expire(keyspace: Keyspace, args: Args) -> int:
    return int(args[0] in keyspace)


def _pttl(keyspace: Keyspace, args: Args) -> int:
    return 10_000 if args[0] in keyspace else -2


def _type(keyspace: Keyspace, args: Args) -> Ok:
    names = {list: b"list", dict: b"hash", set: b"set", Scores: b"zset", bytes: b"string"}
    found = keyspace.get(args[0])
    return Ok(b"none" if found is None else names[type(found)])


def _time(keyspace: Keyspace, args: Args) -> list[bytes]:
    return [b"%d" % moment_of(keyspace.get(NOW)), b"0"]


def moment_of(time: Any) -> int:
    """Epoch seconds, of what a state has at ``NOW``."""
    return MOMENT if time is None else int(time)


def shown(number: float) -> bytes:
    """A score as Redis writes it."""
    if isinf(number):
        return repr(number).encode()
    return b"%d" % number if number == int(number) else repr(number).encode()


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused("ERR value is not a valid float") from None


def _integer(text: bytes, problem: str) -> int:
    if not re.fullmatch(rb"-?\d+", text):
        raise Refused(problem)
    return int(text)


Handler: TypeAlias = Callable[[Keyspace, Args], Any]

# By name: what does it, and how many of its first arguments are keys (-1: all of them).
READS: Final[dict[bytes, tuple[Handler, int]]] = {
    b"LLEN": (_llen, 1),
    b"LRANGE": (_lrange, 1),
    b"LINDEX": (_lindex, 1),
    b"LPOS": (_lpos, 1),
    b"HGET": (_hget, 1),
    b"HMGET": (_hmget, 1),
    b"HEXISTS": (_hexists, 1),
    b"HLEN": (_hlen, 1),
    b"HKEYS": (_hkeys, 1),
    b"HVALS": (_hvals, 1),
    b"HGETALL": (_hgetall, 1),
    b"SMEMBERS": (_smembers, 1),
    b"SISMEMBER": (_sismember, 1),
    b"SMISMEMBER": (_smismember, 1),
    b"ZSCORE": (_zscore, 1),
    b"ZMSCORE": (_zmscore, 1),
    b"ZCARD": (_zcard, 1),
    b"ZRANK": (_zrank, 1),
    b"ZRANGE": (_zrange, 1),
    b"ZRANGEBYSCORE": (_zrangebyscore, 1),
    b"ZCOUNT": (_zcount, 1),
    b"ZSCAN": (_zscan, 1),
    b"GET": (_read, 1),
    b"EXISTS": (_exists, -1),
    b"PTTL": (_pttl, 1),
    b"TYPE": (_type, 1),
    b"TIME": (_time, 0),
}
REMOVALS: Final[dict[bytes, tuple[Handler, int]]] = {
    b"LPOP": (_lpop, 1),
    b"RPOP": (_rpop, 1),
    b"LTRIM": (_ltrim, 1),
    b"LREM": (_lrem, 1),
    b"HDEL": (_hdel, 1),
    b"SREM": (_srem, 1),
    b"ZREM": (_zrem, 1),
    b"ZREMRANGEBYSCORE": (_zremrangebyscore, 1),
    b"ZREMRANGEBYRANK": (_zremrangebyrank, 1),
    b"DEL": (_del, -1),
    b"EXPIRE": (_expire, 1),
    b"PEXPIRE": (_expire, 1),
    b"GETEX": (_read, 1),
}
# A full server refuses these (OOM), unless the same script has already written.
ADDITIONS: Final[dict[bytes, tuple[Handler, int]]] = {
    b"LPUSH": (_lpush, 1),
    b"RPUSH": (_rpush, 1),
    b"LSET": (_lset, 1),
    b"HSET": (_hset, 1),
    b"HINCRBY": (_hincrby, 1),
    b"SADD": (_sadd, 1),
    b"ZADD": (_zadd, 1),
    b"SET": (_set, 1),
    b"INCRBY": (_incrby, 1),
    b"INCR": (_incrby, 1),
}
COMMANDS: Final = {**READS, **REMOVALS, **ADDITIONS}


def as_sent(command: Args, reply: Any) -> Any:
    """The reply as a process gets it: RESP3 has numbers and pairs where a script gets texts."""
    if isinstance(reply, Refused) or reply is None:
        return reply
    if command[0] == b"HGETALL":
        return Mapped(tuple(zip(reply[::2], reply[1::2], strict=True)))
    if command[0] == b"ZSCORE":
        return float(reply)
    if command[0] == b"ZMSCORE":
        return [None if score is None else float(score) for score in reply]
    if b"WITHSCORES" in command:
        return [
            [member, float(score)] for member, score in zip(reply[::2], reply[1::2], strict=True)
        ]
    return reply
