"""Finding jobs by their jids, wherever they are: in flight, in a queue, or in one of the sets. A
queue has three lists: its own, that of its suspects, and the jobs on their way to another shard.

Any process. ``find`` looks for one job: the clock calls it before it skips a tick, an app by
``forkq.is_alive``. ``JobSearch`` looks for many: the jobs that have locks.
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
from ..wire.payload import bounded, loads_head
from .process_info import UNREADABLE, process_info
from .scripts import FIND_JOB, FIND_JOB_IN_LIST, FIND_JOBS

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
# What one script of a pass looks at: so small that it delays others by some milliseconds at most.
# Nothing bounds the bytes of a page of a set.
_PAGE: Final = 1000
_PAGE_OF_SET: Final = 100
_BYTES: Final = 1 << 20
_PROCESSES: Final = 100  # whose records are read at once


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
        pattern = b"*" + escaped_glob(self._text) + b"*"
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


class JobSearch:
    """One pass for the jobs with these ``jids``, over all sets, lists and leases, a page at a time.

    A pass follows the direction in which jobs move: a job that goes back during it (it fails, or is
    returned to another queue) may be missed. Who must be sure makes two.

    ``found``: where each was seen first. ``sees_ruby``: a process that is none of forkq's is there;
    such a process tells every few seconds only what it runs.
    """

    def __init__(self, connection: RedisConnection, keys: Keys, jids: Iterable[str]) -> None:
        self._connection = connection
        self._keys = keys
        self._wanted = set(jids)
        self.found: dict[str, Found] = {}
        self.sees_ruby = False

    def steps(self) -> Iterator[None]:
        """Makes the pass, one call of Redis after the other. It ends early if all jobs are
        found."""
        for step in (self._in_sets, self._in_queues, self._in_ruby):
            for _ in step():
                yield
                if len(self.found) == len(self._wanted):
                    return

    def _in_sets(self) -> Iterator[None]:
        sets: tuple[tuple[str, Location], ...] = (
            (self._keys.schedule, "scheduled"),
            (self._keys.retry, "retrying"),
        )
        for key, location in sets:
            at = b"0"
            while at:
                at, triples = self._look("set", [key], at, _PAGE_OF_SET)
                for _, score, payload in triples:
                    self._note(location, "", payload, at=float(score))
                yield

    def _in_queues(self) -> Iterator[None]:
        keys, queues = self._keys, all_queues(self._connection, self._keys)
        for queue in queues:
            for key, is_alone in ((keys.queue(queue), False), (keys.suspects(queue), True)):
                yield from self._in_list([key, keys.inflight(queue)], queue, is_alone)
            yield from self._in_list([keys.moving(queue)], queue, is_alone=False)

    def _in_list(self, names: Sequence[str], queue: str, is_alone: bool) -> Iterator[None]:
        at = b"0"
        while at:
            at, triples = self._look("list", names, at, _PAGE)
            for number, lease, payload in triples:
                if number == 1:
                    self._note("queued", queue, payload, among_suspects=is_alone)
                else:
                    owner = lease.decode("utf-8", "replace").rpartition("/")[0]
                    self._note("running", queue, payload, owner=owner)
            yield

    def _in_ruby(self) -> Iterator[None]:
        """What Sidekiq's processes run: their jobs have no lease."""
        keys = self._keys
        identities = sorted(decoded_names(self._connection.call("SMEMBERS", keys.processes)))
        for first in range(0, len(identities), _PROCESSES):
            part = identities[first : first + _PROCESSES]
            infos = self._connection.pipeline([("HGET", keys.process(i), "info") for i in part])
            ruby = [i for i, info in zip(part, infos, strict=True) if _is_of_ruby(info)]
            self.sees_ruby |= bool(ruby)
            works = [(i, key) for i in ruby for key in keys.works(i)]
            replies = self._connection.pipeline([("HVALS", key) for _, key in works])
            for (identity, _), reply in zip(works, replies, strict=True):
                for work in reply if isinstance(reply, list) else ():
                    self._note("running", *_work(work), owner=identity)
            yield

    def _look(
        self, kind: str, names: Sequence[str], at: bytes, most: int
    ) -> tuple[bytes, Iterable[tuple[int, bytes, bytes]]]:
        """Where to go on, and the jobs of a page that may be wanted."""
        arguments: list[Any] = [kind, at, most, _BYTES, *self._wanted]
        at, *flat = self._connection.script(FIND_JOBS, names, arguments)
        return at, zip(flat[::3], flat[1::3], flat[2::3], strict=True)

    def _note(self, location: Location, queue: str, payload: bytes, **more: Any) -> None:
        try:
            job = loads_head(payload)
        except MalformedPayload:
            return
        jid = job.get("jid")
        if type(jid) is str and jid in self._wanted and jid not in self.found:
            queue = queue or str(job.get("queue", ""))
            self.found[jid] = Found(location, queue, payload, **more)


def all_queues(connection: RedisConnection, keys: Keys) -> list[str]:
    """The names of all queues that may have a job: one may be deleted while its jobs run, wait
    among its suspects, or move."""
    from .steps import checked  # noqa: PLC0415 - loads redis-py, which forkq.api must not

    found = checked(
        connection.pipeline(
            [
                ("SMEMBERS", keys.queues),
                ("ZRANGE", keys.fetched, 0, -1),
                ("SMEMBERS", keys.suspected),
                ("ZRANGE", keys.marked, 0, -1),
                ("HKEYS", keys.moves),
            ]
        )
    )
    return sorted(decoded_names({name for names in found for name in names}))


def _first(candidates: Iterable[Found | None]) -> Found | None:
    return next((found for found in candidates if found is not None), None)


def escaped_glob(text: bytes) -> bytes:
    """``text`` as a glob pattern that matches nothing else."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]^-\\" else bytes([c]) for c in text)


def _is_of_ruby(info: object) -> bool:
    try:
        return info is not None and not process_info(info).master
    except UNREADABLE:
        return True


def _work(raw: bytes) -> tuple[str, bytes]:
    """The queue and the payload of what a process of Sidekiq runs. Older ones than 7.2 write the
    job itself in the place of its text."""
    try:
        work = msgspec.json.decode(bounded(raw))
        payload = work["payload"]
        text = payload.encode() if type(payload) is str else msgspec.json.encode(payload)
        return str(work["queue"]), text
    except (KeyError, *UNREADABLE):
        return "", b""
