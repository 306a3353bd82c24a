"""Finding one job by its jid, wherever it is: in flight, in a queue, or in one of the sets. A queue
has three lists: its own, that of its suspects, and the jobs on their way to another shard.

Any process. The clock calls it before it skips a tick, an app by ``forkq.is_alive``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ..errors import MalformedPayload
from ..limits.patterns import decoded_names
from ..wire.keys import Keys
from ..wire.payload import loads_head
from .scripts import FIND_JOB, FIND_JOB_IN_LIST

if TYPE_CHECKING:
    from .connection import Command, RedisConnection

Location: TypeAlias = Literal["running", "queued", "scheduled", "retrying", "dead"]

ALL: Final[tuple[Location, ...]] = ("running", "queued", "scheduled", "retrying", "dead")
# The locations of a job that runs, or will run.
ALIVE: Final[tuple[Location, ...]] = ("running", "queued", "scheduled", "retrying")

_SETS: Final[tuple[Location, ...]] = ("scheduled", "retrying", "dead")
_BUDGET: Final = 750_000  # what one script may read, as find_job.lua counts: about 1 ms
_WALKS: Final = 2
# Of how many queues one script looks at what is in flight and at both ends.
_CHUNK: Final = 150
_SCAN: Final = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A job and where it was seen.

    ``queue`` is where it waits or came from, or goes to from a set; ``owner`` the identity of who
    runs it, or ""; ``at`` the epoch second at which it is due or died, 0 if in no set.
    ``among_suspects``: it is queued in the list of the queue's suspects.
    """

    location: Location
    queue: str
    payload: bytes
    owner: str = ""
    at: float = 0.0
    among_suspects: bool = False


class _KeyContent(NamedTuple):
    """What one key holds."""

    location: Location
    queue: str = ""
    among_suspects: bool = False


def find(
    connection: RedisConnection,
    keys: Keys,
    jid: str,
    locations: Sequence[Location] = ALL,
    queues: Sequence[str] | None = None,
) -> Found | None:
    """Where the job ``jid`` is, or None if it is in none of ``locations``.

    ``queues`` narrows the search to these; the default is all that were ever pushed to. A
    damaged key, and a name that is no UTF-8, are left out. Raises ConnectionLost.

    The search must not miss a job that moves meanwhile. On most servers one script reads everything
    at one moment, and its result is exact. A server with very many queues is read in parts, twice.
    If too many jobs wait for that, the search walks in the direction in which jobs move: the sets,
    then each list from the left, where jobs enter, the suspects last. Then it repeats the first
    look, which begins with the in-flight jobs and both ends of the lists, where jobs arrive and
    return. So a walk misses a job only if the job runs and fails during the walk; and there are two
    walks. No script blocks the server for more than a few milliseconds, but a walk reads all
    waiting jobs: search for one job, not for thousands.
    """
    search = _Search(connection, keys, jid, locations, queues)
    found, complete = search.look()
    for _ in range(_WALKS):
        if found or complete:
            break
        found = search.walk()
        if not found:
            found, complete = search.look()
    return found


class _Search:
    """The search for one job on one server. The scripts return candidates, since a jid may be
    anywhere in a payload; each candidate is loaded to see whether it is the job."""

    def __init__(
        self,
        connection: RedisConnection,
        keys: Keys,
        jid: str,
        locations: Sequence[Location],
        queues: Sequence[str] | None,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._jid = jid
        self._text = msgspec.json.encode(jid)
        self._locations = locations
        self._given = queues
        named = {"scheduled": keys.schedule, "retrying": keys.retry, "dead": keys.dead}
        self._sets: dict[Location, str] = {p: named[p] for p in _SETS if p in locations}

    def look(self) -> tuple[Found | None, bool]:
        """The job, if this look finds it, and whether the look was complete. Few queues are read at
        one moment; many are read in parts, twice."""
        queues = self._queues()
        if len(queues) <= _CHUNK:
            return self._look(queues, self._sets)
        parts = [queues[at : at + _CHUNK] for at in range(0, len(queues), _CHUNK)]
        found, complete = self._look_at_parts(parts)
        return self._look_at_parts(parts) if complete and not found else (found, complete)

    def _look_at_parts(self, parts: Sequence[Sequence[str]]) -> tuple[Found | None, bool]:
        """The sets come first and last: so a job is missed only if it fails and is due again
        meanwhile."""
        everything = True
        for part in ((), *parts, ()):
            found, complete = self._look(part, {} if part else self._sets)
            if found:
                return found, True
            everything &= complete
        return None, everything

    def _look(
        self, queues: Sequence[str], sets: Mapping[Location, str]
    ) -> tuple[Found | None, bool]:
        hashes = queues if "running" in self._locations else ()
        lists = queues if "queued" in self._locations else ()
        names = [
            *(self._keys.inflight(queue) for queue in hashes),
            *(self._keys.moving(queue) for queue in lists),
            *(self._keys.queue(queue) for queue in lists),
            *(self._keys.suspects(queue) for queue in lists),
            *sets.values(),
        ]
        places = [
            *(_KeyContent("running", queue) for queue in hashes),
            *(_KeyContent("queued", queue) for queue in (*lists, *lists)),
            *(_KeyContent("queued", queue, among_suspects=True) for queue in lists),
            *(_KeyContent(location) for location in sets),
        ]
        arguments = (self._text, len(hashes), 3 * len(lists), _BUDGET)
        complete, *found = self._connection.script(FIND_JOB, names, arguments)
        triples = zip(found[::3], found[1::3], found[2::3], strict=True)
        candidates = ((places[key - 1], mark, payload) for key, mark, payload in triples)
        return _first(self._found(*candidate) for candidate in candidates), bool(complete)

    def walk(self) -> Found | None:
        """The job, if it is in a set or in a list; reads both a bounded part at a time."""
        return _first(self._in_sets()) or _first(self._in_lists())

    def _in_sets(self) -> Iterator[Found | None]:
        pattern = b"*" + _escaped_glob(self._text) + b"*"
        for location, key in self._sets.items():
            cursor: Any = b"0"
            while True:
                found = self._connection.call(
                    "ZSCAN", key, cursor, "MATCH", pattern, "COUNT", _SCAN
                )
                cursor, members = found
                for at in range(0, len(members), 2):
                    yield self._found(_KeyContent(location), members[at + 1], members[at])
                if cursor == b"0":
                    break

    def _in_lists(self) -> Iterator[Found | None]:
        if "queued" not in self._locations:
            return
        queues = self._queues()
        for queue in queues:
            for key in (self._keys.queue(queue), self._keys.moving(queue)):
                yield from self._in_list(key, _KeyContent("queued", queue))
        for queue in self._with_suspects(queues):
            place = _KeyContent("queued", queue, among_suspects=True)
            yield from self._in_list(self._keys.suspects(queue), place)

    def _in_list(self, key: str, place: _KeyContent) -> Iterator[Found | None]:
        at = 0
        while at >= 0:
            at, *payloads = self._connection.script(
                FIND_JOB_IN_LIST, [key], (self._text, at, _BUDGET)
            )
            for payload in payloads:
                yield self._found(place, b"", payload)

    def _found(self, place: _KeyContent, mark: Any, payload: bytes) -> Found | None:
        """The candidate, if it is the job; ``mark`` is its lease or its score."""
        try:
            job = loads_head(payload)
        except MalformedPayload:
            return None
        if job.get("jid") != self._jid:
            return None
        location, queue = place.location, place.queue
        if location == "running":
            owner = mark.decode("utf-8", "replace").rpartition("/")[0]
            return Found(location, queue, payload, owner=owner)
        if location == "queued":
            return Found(location, queue, payload, among_suspects=place.among_suspects)
        return Found(location, str(job.get("queue", "")), payload, at=float(mark))

    def _queues(self) -> list[str]:
        if self._given is not None:
            return list(self._given)
        # A queue may be deleted while its job is in flight, or waits among its suspects.
        others = [("ZRANGE", self._keys.fetched, 0, -1), ("SMEMBERS", self._keys.suspected)]
        commands: list[Command] = [("SMEMBERS", self._keys.queues), *others]
        known, *more = self._connection.pipeline(commands)
        if isinstance(known, Exception):
            raise known
        readable = (names for names in more if not isinstance(names, Exception))
        return list(decoded_names({*known, *chain.from_iterable(readable)}))

    def _with_suspects(self, queues: Sequence[str]) -> list[str]:
        """The queues that have suspects; all of them if the index cannot be read."""
        [named] = self._connection.pipeline([("SMEMBERS", self._keys.suspected)])
        if isinstance(named, Exception):
            return list(queues)
        having = set(decoded_names(named))
        return [queue for queue in queues if queue in having]


def _first(candidates: Iterable[Found | None]) -> Found | None:
    return next((found for found in candidates if found is not None), None)


def _escaped_glob(text: bytes) -> bytes:
    """``text`` as a glob pattern that matches nothing else."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]^-\\" else bytes([c]) for c in text)
