"""Publishes the periodic jobs that the app defines. Clocks know only what is published in Redis.

An *origin* is what defined an entry: this app's code, its file, the API. Each replaces its own
entries, and leaves those of another origin alone while its service runs (clock/cron/services.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from ...config.config import Config
from ...config.shards import shard_of
from ...cron.entry import MAX_CLOCK_ERROR, Entry
from ...errors import InvalidSchedule
from ...runtime.assignment import Assignment
from ...runtime.log import LogOnce
from ...runtime.unserved import UNKNOWN_JOBS, with_unknown_jobs
from ...store.connection import RedisConnection
from ...store.process_info import running_services
from ...store.scripts import CRON_CLAIM, CRON_PUBLISH
from ...wire.keys import Keys
from ...wire.payload import DEFAULT_QUEUE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_Entries: TypeAlias = Mapping[str, Sequence[Entry]]

# Seconds without a renewal after which a child that watched takes the claim over. Its owner renews
# it each time it publishes.
_EXPIRES_AFTER: Final = 90.0
_TTL: Final = 86_400

# Another child may publish at the same moment; the one that comes second reads again.
_ATTEMPTS: Final = 5

_REMOVED: Final = (
    "periodic jobs removed: this app no longer defines them; if another service does whose app has "
    "the same name, give the two different tags"
)
_REPAIRED: Final = (
    "periodic jobs repaired: their definitions in redis had been changed or removed; if another "
    "service does that whose app has the same name, give the two different tags"
)
_HELD: Final = (
    "periodic jobs not published: another app has defined these names, and runs; they are taken "
    "over within a minute after it has ended, as after a change of this app's name or tag; if both "
    "shall run, rename them"
)
_ADDED_BY_HAND: Final = (
    "periodic jobs not published: these names were added at run time; rename them, or remove those "
    "(forkq cron remove NAME)"
)


class EntryChange(msgspec.Struct, frozen=True):
    """The change of one entry: ``before`` is its JSON in Redis, ``after`` its new JSON (empty: it
    is removed). ``afresh``: ticks that have passed are not enqueued. ``taken``: another origin had
    it. ``repaired``: this child had published it before."""

    name: str
    before: bytes
    after: bytes
    afresh: bool = False
    taken: bool = False
    repaired: bool = False

    @property
    def event(self) -> str:
        """The event of the log line about this change."""
        if not self.after:
            return _REMOVED
        if self.taken:
            return "periodic jobs taken over from an app that does not run"
        if self.repaired:
            return _REPAIRED
        return "periodic jobs changed" if self.before else "periodic jobs added"


class Publisher:
    """Publishes the entries of this app, by origin, and removes the others of these origins.

    ``worked_on``: the queues of this tree. An entry for one of them is logged if the app does not
    know its job. ``newest`` asks whether this child must publish: another child of the app may have
    loaded newer code.
    """

    def __init__(
        self,
        keys: Keys,
        entries_by_origin: _Entries,
        log: FilteringBoundLogger,
        *,
        worked_on: Collection[str] = (),
        newest: Callable[[RedisConnection], bool] = lambda connection: True,
    ) -> None:
        self._keys = keys
        self._origins = frozenset(entries_by_origin)
        ours = (entry for entries in entries_by_origin.values() for entry in entries)
        self._entries = {entry.name: entry for entry in ours}
        self._worked_on = worked_on
        self._newest = newest
        self._has_published = False
        self._log = log
        self._log_once = LogOnce(log)

    def publish(self, connection: RedisConnection) -> bool:
        """Makes the entries in Redis what this app defines. Writes nothing, and so wakes no clock,
        if they are, or if a newer child publishes. Returns whether to try again soon: another app
        that runs has a name of ours. Called by the heartbeat; raises ConnectionLost or
        RedisError."""
        self._warn_of_unknown_jobs()
        for _ in range(_ATTEMPTS):
            if not self._newest(connection):
                return False
            published = connection.call("HGETALL", self._keys.cron)
            foreign = self._foreign(connection, published)
            changes = list(self._changes(published, foreign))
            refused = self._apply(connection, changes) if changes else set()
            self._log_changes([change for change in changes if change.name not in refused])
            if not refused:
                self._has_published = True
                self._warn_of_foreign(foreign)
                return bool(foreign)
        return True

    def _foreign(
        self, connection: RedisConnection, published: Mapping[bytes, bytes]
    ) -> dict[str, str]:
        """The names of ours that another origin has published and its service runs, by name."""
        others = {
            name: old
            for name in self._entries
            if (old := _decoded(published.get(name.encode(), b""))) is not None
            and old.origin not in self._origins
        }
        services = {old.service for old in others.values() if old.service is not None}
        gone = services - running_services(connection, self._keys, services)
        return {name: old.origin for name, old in others.items() if old.service not in gone}

    def _changes(
        self, published: Mapping[bytes, bytes], foreign: Mapping[str, str]
    ) -> Iterator[EntryChange]:
        """The changes to make, one for each name."""
        for name, entry in self._entries.items():
            raw = published.get(name.encode(), b"")
            old = _decoded(raw)
            if name not in foreign and old != entry:
                taken = old is not None and old.origin not in self._origins
                restored = self._has_published and old is None
                afresh = entry.restarts(old) and not restored
                yield EntryChange(
                    name, raw, entry.encode(), afresh, taken, repaired=self._has_published
                )
        for raw_name, raw in published.items():
            old = _decoded(raw)
            if old is None or old.name.encode() != raw_name or old.name in self._entries:
                continue
            if old.origin in self._origins:
                yield EntryChange(old.name, raw, b"")

    def _apply(self, connection: RedisConnection, changes: Sequence[EntryChange]) -> set[str]:
        """Writes the changes in one step. Returns the names of the entries that another process
        changed first."""
        arguments: list[object] = []
        for change in changes:
            mode = "afresh" if change.afresh else "on"
            arguments += (change.name, change.before, change.after, mode)
        keys = (self._keys.cron, self._keys.cron_last, self._keys.cron_pending)
        refused = connection.script(CRON_PUBLISH, keys, (MAX_CLOCK_ERROR, *arguments))
        return {name.decode() for name in refused}

    def _log_changes(self, changes: Sequence[EntryChange]) -> None:
        for event, names in _by_event(changes).items():
            write = self._log.warning if event in (_REMOVED, _REPAIRED) else self._log.info
            write(event, names=names)

    def _warn_of_foreign(self, foreign: Mapping[str, str]) -> None:
        """One line for each origin that has names of ours."""
        for origin in sorted(set(foreign.values())):
            names = sorted(name for name, holder in foreign.items() if holder == origin)
            event = _ADDED_BY_HAND if origin == "api" else _HELD
            self._log_once.warning((event, *names, origin), event, names=names, origin=origin)

    def _warn_of_unknown_jobs(self) -> None:
        unknown = with_unknown_jobs(self._entries.values(), self._worked_on)
        if unknown:
            self._log_once.warning(("unknown jobs", *unknown), UNKNOWN_JOBS, names=unknown)


def _decoded(raw: bytes) -> Entry | None:
    """The entry in ``raw``; None if this version of forkq cannot read it."""
    try:
        return Entry.decode(raw)
    except InvalidSchedule:
        return None


def _by_event(changes: Sequence[EntryChange]) -> dict[str, list[str]]:
    """The names of the changed entries, by the event of their log line."""
    found: dict[str, list[str]] = {}
    for change in sorted(changes, key=lambda change: change.name):
        found.setdefault(change.event, []).append(change.name)
    return found


class Claim:
    """This child's claim to publish the periodic jobs of its ``service``: the newest child has it.
    ``assignment`` tells how new the child is.

    During a rolling deploy two versions of an app run, and children of both may be replaced at any
    time. The order in which they publish must not decide which definitions stay
    (docs/decisions/008).
    """

    def __init__(
        self,
        keys: Keys,
        service: str,
        assignment: Assignment,
        log: FilteringBoundLogger,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = keys.cron_claim(service)
        self._generation = assignment.generation
        self._number = assignment.number
        self._log = log
        self._monotonic = monotonic
        self._newer = b""
        self._since = 0.0

    def renew(self, connection: RedisConnection) -> bool:
        """Takes or renews the claim, with one command. False: a newer child has it. Raises
        ConnectionLost or RedisError."""
        newer = self._claim(connection, b"")
        if newer is None:
            return True
        if not self._newer:
            self._log.debug("a newer child of this app publishes the periodic jobs")
        if newer != self._newer:
            self._newer, self._since = newer, self._monotonic()
        if self._monotonic() - self._since < _EXPIRES_AFTER:
            return False
        return self._claim(connection, newer) is None

    def _claim(self, connection: RedisConnection, expired: bytes) -> bytes | None:
        age = int((self._monotonic() - self._generation.begun) * 1000)
        arguments = (self._generation.token, age, self._number, expired, _TTL)
        newer: bytes | None = connection.script(CRON_CLAIM, (self._key,), arguments)
        return newer


def of_shard(entries: _Entries, config: Config, log: FilteringBoundLogger) -> _Entries:
    """The entries that the child of this ``config`` publishes: where there are shards, those whose
    queue its shard has. The clock of that shard then pushes them, without another Redis."""
    if not config.shards:
        return entries
    _warn_of_missed(entries, config, log)
    return {
        origin: [entry for entry in listed if _shard(entry, config) == config.shard]
        for origin, listed in entries.items()
    }


def _shard(entry: Entry, config: Config) -> str:
    """The shard of a periodic job: of a spread queue always the same part, so that ``overlap`` and
    its last tick hold."""
    return shard_of(config.shards, entry.job.get("queue", DEFAULT_QUEUE), entry.name).name


def _warn_of_missed(entries: _Entries, config: Config, log: FilteringBoundLogger) -> None:
    """The children of one capsule name the entries whose shard has no child of this tree."""
    served = [capsule.shard for capsule in config.capsules]
    missed = sorted(
        entry.name
        for listed in entries.values()
        for entry in listed
        if _shard(entry, config) not in served
    )
    if missed and config.shard == served[0]:
        log.warning(
            "periodic jobs not published: no capsule of this tree has a queue on their shard; add "
            "their queue to one",
            names=missed,
        )
