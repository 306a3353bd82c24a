"""Publishing the periodic jobs that the app defines: what stands in Redis is all that clocks know.

An *origin* is who defined an entry: this app's code, its file, the API. Each replaces its own, and
leaves the others' alone, as long as a tree of theirs runs (clock/cron/services.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ... import registry
from ...cron.entry import ASTRAY, Entry
from ...errors import InvalidSchedule
from ...limits.patterns import among
from ...store.connection import RedisConnection
from ...store.scripts import CRON_PUBLISH
from ...store.services import running_services
from ...wire.keys import Keys
from ...wire.payload import DEFAULT_QUEUE

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Somebody else may publish at the same moment; the loser looks again.
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


@dataclass(frozen=True, slots=True)
class Change:
    """One definition's: ``before`` as it stood, ``after`` as it shall (empty: not at all).
    ``afresh``: its past ticks are not made up for. ``taken``: it was another origin's.
    ``repaired``: this child had published it before."""

    name: str
    before: bytes
    after: bytes
    afresh: bool = False
    taken: bool = False
    repaired: bool = False

    @property
    def event(self) -> str:
        """What it does, for the log."""
        if not self.after:
            return _REMOVED
        if self.taken:
            return "periodic jobs taken over from an app that does not run"
        if self.repaired:
            return _REPAIRED
        return "periodic jobs changed" if self.before else "periodic jobs added"


class Publisher:
    """Publishes the entries of this app, by origin; an origin without any loses those it had.

    ``worked_on`` are the queues of this tree: an entry of theirs whose job the app does not know is
    worth a warning. ``newest`` asks whether this child is to publish: another child of the app may
    have loaded newer code.
    """

    def __init__(
        self,
        keys: Keys,
        entries_by_origin: Mapping[str, Sequence[Entry]],
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
        self._stood = False  # our definitions have stood there before
        self._log = log
        self._told: set[str] = set()

    def publish(self, connection: RedisConnection) -> bool:
        """Makes the definitions in Redis what this app says, or repairs them. Writes nothing, and
        so wakes no clock, if they are that already or a newer child publishes. Returns whether it
        should be tried again: a name is held by an app that runs. Called by the heartbeat; raises
        ConnectionLost or RedisError."""
        self._warn_of_unknown_jobs()
        for _ in range(_ATTEMPTS):
            if not self._newest(connection):
                return False
            standing = connection.call("HGETALL", self._keys.cron)
            held = self._held(connection, standing)
            changes = list(self._changes(standing, held))
            outdone = self._apply(connection, changes) if changes else set()
            self._tell([change for change in changes if change.name not in outdone])
            if not outdone:
                self._stood = True
                self._warn_of_held(held)
                return bool(held)
        return True

    def _held(self, connection: RedisConnection, standing: Mapping[bytes, bytes]) -> dict[str, str]:
        """Those of our names which somebody else has defined who is there: name -> origin."""
        others = {
            name: old
            for name in self._entries
            if (old := _decoded(standing.get(name.encode(), b""))) is not None
            and old.origin not in self._origins
        }
        services = {old.service for old in others.values() if old.service is not None}
        gone = services - running_services(connection, self._keys, services)
        return {name: old.origin for name, old in others.items() if old.service not in gone}

    def _changes(
        self, standing: Mapping[bytes, bytes], held: Mapping[str, str]
    ) -> Iterator[Change]:
        """What must change; each name once."""
        for name, entry in self._entries.items():
            raw = standing.get(name.encode(), b"")
            old = _decoded(raw)
            if name not in held and old != entry:
                taken = old is not None and old.origin not in self._origins
                restored = self._stood and old is None
                afresh = entry.begins_anew(old) and not restored
                yield Change(name, raw, entry.encode(), afresh, taken, repaired=self._stood)
        for raw_name, raw in standing.items():
            old = _decoded(raw)
            if old is None or old.name.encode() != raw_name or old.name in self._entries:
                continue
            if old.origin in self._origins:
                yield Change(old.name, raw, b"")

    def _apply(self, connection: RedisConnection, changes: Sequence[Change]) -> set[str]:
        """Writes the changes in one step. Returns the names that somebody else changed first."""
        arguments: list[object] = []
        for change in changes:
            mode = "afresh" if change.afresh else "on"
            arguments += (change.name, change.before, change.after, mode)
        keys = (self._keys.cron, self._keys.cron_last, self._keys.cron_pending)
        outdone = connection.script(CRON_PUBLISH, keys, (ASTRAY, *arguments))
        return {name.decode() for name in outdone}

    def _tell(self, changes: Sequence[Change]) -> None:
        for event, names in _by_event(changes).items():
            say = self._log.warning if event in (_REMOVED, _REPAIRED) else self._log.info
            say(event, names=names)

    def _warn_of_held(self, held: Mapping[str, str]) -> None:
        """One line for each of those who hold names of ours."""
        for origin in sorted(set(held.values())):
            names = sorted(name for name, holder in held.items() if holder == origin)
            self._warn_once(
                _ADDED_BY_HAND if origin == "api" else _HELD, names=names, origin=origin
            )

    def _warn_of_unknown_jobs(self) -> None:
        known = set(registry.names())
        unknown = sorted(
            entry.name
            for entry in self._entries.values()
            if entry.job["class"] not in known
            and among(entry.job.get("queue", DEFAULT_QUEUE), self._worked_on)
        )
        if unknown:
            self._warn_once(
                "periodic jobs name jobs that this app has not registered; they will fail",
                names=unknown,
            )

    def _warn_once(self, event: str, **details: Any) -> None:
        """A heartbeat publishes again and again; one line is enough."""
        told = f"{event} {details}"
        if told not in self._told:
            self._told.add(told)
            self._log.warning(event, **details)


def _decoded(raw: bytes) -> Entry | None:
    """The entry in ``raw``; None if there is none that this forkq can read."""
    try:
        return Entry.decode(raw)
    except InvalidSchedule:
        return None


def _by_event(changes: Sequence[Change]) -> dict[str, list[str]]:
    """The names for each line of the log."""
    found: dict[str, list[str]] = {}
    for change in sorted(changes, key=lambda change: change.name):
        found.setdefault(change.event, []).append(change.name)
    return found
