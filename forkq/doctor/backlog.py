"""Checks of the waiting jobs: whether the app knows their class, and none is left between shards.

Each command reads a bounded number of names or jobs, but the set of queues is read at once, as by
every child with a pattern.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from ..config.config import Config
from ..config.shards import parts_of
from ..errors import MalformedPayload
from ..limits.overrides import in_force
from ..limits.patterns import matches_any
from ..limits.rules import NO_RULES
from ..wire.keys import keys_of
from ..wire.payload import loads_head
from ..wire.printable import shown_name
from ..wire.queue_moves import moves_under_way
from .finding import Finding, listed, unchecked
from .probe import AppReport
from .server import ExaminedServer

# Queues that one round trip asks for their lengths.
_CHUNK: Final = 500
# Jobs that are read at each end of a queue, and the bytes and seconds that all of them may take.
_SAMPLE: Final = 10
_MOST_BYTES: Final = 32 << 20
_MOST_SECONDS: Final = 5.0


# By queue: the keys of its own list and of that of its suspects, and how many jobs each has.
_Waiting: TypeAlias = dict[str, dict[bytes, int]]


def classes(server: ExaminedServer, config: Config, report: AppReport | None) -> Finding:
    """Which classes wait in a queue of this configuration, and are not registered by its app."""
    if report is None or report.error:
        return unchecked("classes", "no app was imported")
    every = _waiting(server)
    waiting = {n: each for n, each in every.items() if matches_any(n, config.queue_names)}
    if not waiting:
        return Finding("ok", "classes", "no job waits in a queue of this configuration")
    found = Counter(_classes(server, waiting))
    unknown = {name: count for name, count in found.items() if name not in report.jobs}
    seen = f"looked at {found.total():,} of {sum(_totals(waiting).values()):,} waiting jobs"
    if not unknown:
        return Finding("ok", "classes", f"{seen}; the app registers all their classes")
    what = f"the app does not register {listed(_sizes(unknown))} ({seen})"
    remedy = "import their modules in the app that -r names, or delete the jobs"
    return Finding("fail", "classes", what, "these jobs fail until they are dead", remedy)


def moves(server: ExaminedServer) -> Finding:
    """Which queues have jobs between this shard and another one: `forkq shards move` moves them."""
    [states] = server.connection.pipeline([("HGETALL", server.keys.moves)])
    if isinstance(states, Exception):
        raise states
    queues = moves_under_way(states)
    if not queues:
        return Finding("ok", "moves", "no job is on its way to another shard")
    replies = server.connection.pipeline([("LLEN", server.keys.moving(name)) for name in queues])
    sizes = dict(zip(queues, map(_length, replies), strict=True))
    what = f"jobs are on their way to another shard: {listed(_sizes(sizes))}"
    remedy = "if no `forkq shards move` runs for them, run it again: it goes on where it stopped"
    return Finding("warn", "moves", what, "no worker sees them", remedy)


def strays(server: ExaminedServer, config: Config) -> Finding:
    """Which queues have jobs here although the configuration has them on other shards."""
    elsewhere = {
        name: size
        for name, size in _totals(_waiting(server)).items()
        if config.shard not in [shard.name for shard in parts_of(config.shards, name)]
    }
    if not elsewhere:
        return Finding("ok", "strays", "no job waits here of a queue that is on another shard")
    what = f"jobs wait here of queues that are on another shard: {listed(_sizes(elsewhere))}"
    why = "a child that works on the queue here runs them; without one they wait for ever"
    target = parts_of(config.shards, name := min(elsewhere))[0].name
    return Finding("warn", "strays", what, why, f"forkq shards move {shown_name(name)} {target}")


def spread(server: ExaminedServer, config: Config) -> Finding:
    """Which queues have a part here, and whether a rule that was set at run time counts in that
    part alone."""
    queues = config.queues_in_parts
    found = server.connection.pipeline([("HGETALL", server.keys.control(name)) for name in queues])
    ruled = [name for name, rules in zip(queues, found, strict=True) if _has_rule(rules)]
    if ruled:
        what = f"a limit or a rate was set at run time for {listed(map(shown_name, ruled))}"
        why = "it counts the jobs of this part alone, as each part does for itself"
        return Finding("warn", "spread", what, why, f"forkq limits reset {shown_name(ruled[0])}")
    what = f"parts of {listed(map(shown_name, queues))}: order holds within this part, not over all"
    return Finding("ok", "spread", what if queues else "no spread queue has a part here")


def _has_rule(reply: Any) -> bool:
    """Whether the rules of a queue that were changed at run time have a limit or a rate."""
    if isinstance(reply, Exception):
        raise reply
    rules = in_force(NO_RULES, reply)
    return rules.limit is not None or rules.rate is not None


def _sizes(counts: Mapping[str, int]) -> Iterator[str]:
    """Names with their numbers of jobs, the most first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return (f"{shown_name(name)} (jobs: {count:,})" for name, count in ordered)


def _waiting(server: ExaminedServer) -> _Waiting:
    """The queues with jobs: how many each of their lists has."""
    connection, keys = server.connection, server.keys
    pushed, suspected = connection.pipeline(
        [("SMEMBERS", keys.queues), ("SMEMBERS", keys.suspected)]
    )
    if isinstance(pushed, Exception):
        raise pushed
    known = sorted({*pushed, *(() if isinstance(suspected, Exception) else suspected)})
    # Without the index, each queue may have suspects.
    alone = known if isinstance(suspected, Exception) else sorted(suspected)
    lists = [
        *zip(known, keys_of(keys.queue, known), strict=True),
        *zip(alone, keys_of(keys.suspects, alone), strict=True),
    ]
    found: _Waiting = {}
    for at in range(0, len(lists), _CHUNK):
        chunk = lists[at : at + _CHUNK]
        replies = connection.pipeline([("LLEN", key) for _, key in chunk])
        for (name, key), size in zip(chunk, map(_length, replies), strict=True):
            if size:
                # A name that is no UTF-8 is none of forkq's.
                found.setdefault(name.decode("utf-8", "surrogateescape"), {})[key] = size
    return found


def _length(reply: Any) -> int:
    """A damaged key, which is no list, has no jobs."""
    if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
        raise reply
    return reply if type(reply) is int else 0


def _totals(waiting: _Waiting) -> dict[str, int]:
    return {name: sum(lists.values()) for name, lists in waiting.items()}


def _classes(server: ExaminedServer, waiting: _Waiting) -> Iterator[str]:
    """The classes of the jobs at both ends of each list, until enough was read."""
    end, read = time.monotonic() + _MOST_SECONDS, 0
    for key, size in (one for lists in waiting.values() for one in lists.items()):
        for payload in _sample(server, key, size):
            read += len(payload)
            try:
                yield str(loads_head(payload)["class"])
            except MalformedPayload:
                continue  # it is buried when it is fetched
        if read > _MOST_BYTES or time.monotonic() > end:
            return


def _sample(server: ExaminedServer, key: bytes, size: int) -> list[bytes]:
    """The jobs that are next, and those that came last. LRANGE at the ends of a list is quick,
    however long the list is."""
    commands: list[tuple[Any, ...]] = [("LRANGE", key, -_SAMPLE, -1)]
    if size > _SAMPLE:
        commands.append(("LRANGE", key, 0, min(_SAMPLE, size - _SAMPLE) - 1))
    replies = server.connection.pipeline(commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return [payload for reply in replies for payload in reply]
