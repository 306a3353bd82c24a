"""The locks of unique jobs: which job has each, since when and until when; freeing one by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...errors import ForkqError
from ...features.expire.parts import EXPIRES_AT
from ...features.unique.parts import lock_in
from ...servers import Server
from ...store.find_job import Found, JobSearch, escaped_glob
from ...store.scripts import LOCK_FREE
from ...wire.marks import KEY, needs_in
from ...wire.times import now
from ..door import server as default_server
from ..entry import JobEntry
from ..filters import is_named

_SCAN: Final = 1000  # keys that one command looks at
# So many keys are looked at for a list: about half a second.
MOST_KEYS: Final = 1_000_000
_PART: Final = 500  # locks that are read at once
_FIELDS: Final = ("jid", "class", "at", "sure", "next_jid", "due", "latest")


@dataclass(frozen=True, slots=True)
class UniqueLock:
    """The lock ``digest``, which the job ``jid`` of the class ``job`` has; "": no job has it.

    Since when, and until when at the latest: epoch seconds, None if that is unknown. Until ``sure``
    the job is surely there. Later, a push that meets the lock has the leader look for the job.
    ``newest``: the jid of the job that waits in the lock itself, if one does
    (``on_duplicate="latest"``). ``due`` and ``latest``: when a debounced job is due if no further
    push takes its place, and at the latest; None for any other job.
    """

    digest: str
    job: str
    jid: str
    since: float | None
    until: float | None
    sure: float | None
    newest: str
    due: float | None
    latest: float | None
    server: Server = field(repr=False, compare=False)

    @property
    def is_doubted(self) -> bool:
        """Whether nothing has confirmed for a minute that the job is there."""
        return self.sure is None or self.sure < now()

    def free(self) -> bool:
        """Frees the lock, so that the next push of such a job succeeds; its job stays where it is.
        If a newest job waits in the lock, it gets a place of its own, and the lock. False if the
        job ``jid`` has the lock no more. Raises ServerUnavailable."""
        keys = self.server.keys
        names = (keys.unique(self.digest), keys.tickets, keys.schedule)
        return bool(self.server.run(LOCK_FREE, names, (self.jid,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFilter:
    """Locks that have everything that is given here; ``LockFilter()`` is every lock. ``job`` is as
    in ``Filter``; ``digests`` are those of a selection. ``older_than`` is in seconds."""

    job: str | None = None
    jid: str | None = None
    older_than: float | None = None
    digests: Sequence[str] = ()

    def matches(self, lock: UniqueLock) -> bool:
        """Whether ``lock`` is one of these."""
        return (
            (self.job is None or is_named(self.job, lock.job))
            and (self.jid is None or self.jid == lock.jid)
            and (self.older_than is None or now() - (lock.since or now()) > self.older_than)
            and (not self.digests or lock.digest in self.digests)
        )


def unique_locks(
    where: LockFilter = LockFilter(),
    server: Server | None = None,
    most_keys: int = MOST_KEYS,
) -> list[UniqueLock]:
    """The locks that are held, the oldest first. Looks at ``most_keys`` keys of Redis at most, of
    which locks are some. Raises ServerUnavailable."""
    server = server or default_server()
    asked: Iterable[str] = dict.fromkeys(where.digests)
    digests = asked if where.digests else _digests(server, most_keys)
    found = (lock for part in _parts(digests) for lock in _read(server, part) if lock.jid)
    chosen = [lock for lock in found if where.matches(lock)]
    return sorted(chosen, key=lambda lock: (lock.since or 0.0, lock.digest))


def places_of(locks: Iterable[UniqueLock], seconds: float = 5.0) -> dict[str, Found | None]:
    """Where the jobs are that have these locks, by their jids: None for one that is nowhere.
    Searches for so many ``seconds`` about; a job that was not found by then is left out. Raises
    ServerUnavailable."""
    until, found = time.monotonic() + seconds, dict[str, "Found | None"]()
    by_server: dict[int, list[UniqueLock]] = {}
    for lock in locks:
        by_server.setdefault(id(lock.server), []).append(lock)
    for group in by_server.values():
        found |= _places(group[0].server, {lock.jid for lock in group}, until)
    return found


def _places(server: Server, jids: set[str], until: float) -> dict[str, Found | None]:
    """Two passes, since a job may move during the first one."""
    found: dict[str, Found | None] = {}
    for _ in range(2):
        with server.connection() as connection:
            search = JobSearch(connection, server.keys, jids - found.keys())
            is_whole = all(time.monotonic() < until for _ in search.steps())
        found |= search.found
        if not is_whole or found.keys() == jids:
            return found
    return found | dict.fromkeys(jids - found.keys())


def lock_with_newest(server: Server, jid: str) -> UniqueLock | None:
    """The lock in which the job ``jid`` waits itself, without an entry (``on_duplicate="latest"``);
    None if it waits in none on this server. It may get its entry at any moment: ask this before
    ``find``. Raises ServerUnavailable."""
    [names] = server.ask_leniently(("ZRANGE", server.keys.tickets, 0, -1))
    digests = [str(name, "utf-8", "surrogateescape").rpartition(":")[2] for name in names or ()]
    found = (lock for part in _parts(digests) for lock in _read(server, part))
    lock = next((lock for lock in found if lock.newest == jid), None)
    if lock is None:
        return None
    [payload] = server.ask_leniently(("HGET", server.keys.unique(lock.digest), "next"))
    return lock if payload else None  # it has ended, and only its ticket is left


def lock_of(entry: JobEntry) -> UniqueLock | None:
    """The lock that a unique job needs, or a debounced one that waits in the schedule; its ``jid``
    says which job has it, if any. None if the job is neither, or is no job. Raises
    ServerUnavailable."""
    lock = lock_in(needs_in(entry.job.get(KEY)))
    if lock is None or (lock.debounce is not None and entry.location != "scheduled"):
        return None
    return _read(entry.server, [lock.digest])[0]


def expiry_of(entry: JobEntry) -> float | None:
    """When the job expires, epoch seconds; None if it does not."""
    found = needs_in(entry.job.get(KEY)).get(EXPIRES_AT)
    return float(found) if isinstance(found, int | float) else None


def _digests(server: Server, most_keys: int) -> Iterator[str]:
    """The names of all locks. SCAN may name one twice."""
    before, doubted = server.keys.unique("").encode(), server.keys.doubted.encode()
    pattern, cursor, seen = escaped_glob(before) + b"*", b"0", set[bytes]()
    for _ in range(0, most_keys, _SCAN):
        [(cursor, names)] = server.ask(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN))
        for name in names:
            if name not in seen and name != doubted:
                seen.add(name)
                yield name.removeprefix(before).decode("utf-8", "surrogateescape")
        if cursor == b"0":
            return


def _parts(digests: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for digest in digests:
        part.append(digest)
        if len(part) == _PART:
            yield part
            part = []
    if part:
        yield part


def _read(server: Server, digests: Sequence[str]) -> list[UniqueLock]:
    names = [server.keys.unique(one).encode("utf-8", "surrogateescape") for one in digests]
    asked = (command for name in names for command in (("HMGET", name, *_FIELDS), ("PTTL", name)))
    replies = server.ask_leniently(*asked)
    pairs = zip(digests, replies[::2], replies[1::2], strict=True)
    return [
        _lock(server, digest, fields or (None,) * len(_FIELDS), left)
        for digest, fields, left in pairs
    ]


def _lock(server: Server, digest: str, fields: Sequence[bytes | None], left: int) -> UniqueLock:
    jid, job, at, sure, newest, *wait = (str(one or b"", "utf-8", "replace") for one in fields)
    until = now() + left / 1000 if left >= 0 else None
    since, surely, due, latest = map(_seconds, (at, sure, *wait))
    return UniqueLock(digest, job, jid, since, until, surely, newest, due, latest, server)


def _seconds(milliseconds: str) -> float | None:
    """Epoch seconds; None for what no script of forkq writes."""
    is_number = milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) < 16
    return int(milliseconds) / 1000 if is_number else None


def free_lock(digest_or_jid: str, server: Server | None = None) -> UniqueLock:
    """Frees the lock of that digest, or the one that the job of that jid has. Raises ForkqError if
    there is none, and ServerUnavailable."""
    found = unique_locks(LockFilter(digests=(digest_or_jid,)), server)
    found = found or unique_locks(LockFilter(jid=digest_or_jid), server)
    for lock in found:
        if lock.free():
            return lock
    raise ForkqError(f"there is no lock {digest_or_jid!r}, and no job of that jid has one")
