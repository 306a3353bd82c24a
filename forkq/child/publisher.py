"""Publishing the periodic jobs that the app defines: what stands in Redis is all that clocks know.

An *origin* is who defined an entry: this app's code, its file, the API. Each replaces its own, and
leaves the others' alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .. import registry
from ..connection import Wire
from ..cron import Entry
from ..errors import InvalidSchedule
from ..keys import Keys
from ..payload import DEFAULT_QUEUE
from ..scripts import PUBLISH
from ..times import now

# Somebody else may publish at the same moment; the loser looks again.
_ATTEMPTS: Final = 5
# A last tick that lies further ahead of now than this many seconds was noted by a clock that was
# wrong.
_AHEAD: Final = 86_400


@dataclass(frozen=True, slots=True)
class Change:
    """One definition's: ``before`` as it stood, ``after`` as it shall (empty: not at all).
    ``afresh``: its past ticks are not made up for."""

    name: str
    before: bytes
    after: bytes
    afresh: bool = False

    @property
    def kind(self) -> str:
        """What it does, for the log."""
        if not self.after:
            return "removed"
        return "changed" if self.before else "added"


class Publisher:
    """Publishes the entries of this app, by origin; an origin without any loses those it had.

    ``worked_on`` are the queues of this tree: an entry of theirs whose job the app does not know is
    worth a warning.
    """

    def __init__(
        self,
        keys: Keys,
        entries_by_origin: Mapping[str, Sequence[Entry]],
        log: Any,
        *,
        worked_on: Collection[str] = (),
    ) -> None:
        self._keys = keys
        self._origins = frozenset(entries_by_origin)
        self._entries = [entry for entries in entries_by_origin.values() for entry in entries]
        self._worked_on = worked_on
        self._log = log
        self._told: set[str] = set()

    def publish(self, wire: Wire) -> None:
        """Makes the definitions in Redis what this app says. Writes nothing, and so wakes no clock,
        if they are that already. Called by the heartbeat; raises ConnectionLost or RedisError."""
        self._warn_of_unknown_jobs()
        for _ in range(_ATTEMPTS):
            changes = list(self._changes(wire.call("HGETALL", self._keys.cron)))
            if not changes:
                return
            outdone = self._apply(wire, changes)
            self._tell([change for change in changes if change.name not in outdone])
            if not outdone:
                return

    def _changes(self, standing: Mapping[bytes, bytes]) -> Iterator[Change]:
        """What must change; each name once."""
        ours = self._ours()
        for name, entry in ours.items():
            raw = standing.get(name.encode(), b"")
            old = _decoded(raw)
            if old is not None and old.origin not in self._origins:
                self._warn_of_two(entry, old)
            elif old != entry:
                yield Change(name, raw, entry.encode(), afresh=_begins_now(old, entry))
        for raw_name, raw in standing.items():
            old = _decoded(raw)
            if old is None or old.name.encode() != raw_name or old.name in ours:
                continue
            if old.origin in self._origins:
                yield Change(old.name, raw, b"")

    def _ours(self) -> dict[str, Entry]:
        """Our entries by name; of two with one name, the first."""
        ours: dict[str, Entry] = {}
        for entry in self._entries:
            first = ours.setdefault(entry.name, entry)
            if first is not entry:
                self._warn_of_two(entry, first)
        return ours

    def _apply(self, wire: Wire, changes: Sequence[Change]) -> set[str]:
        """Writes the changes in one step. Returns the names that somebody else changed first."""
        arguments: list[object] = []
        for change in changes:
            mode = "afresh" if change.afresh else "on"
            arguments += (change.name, change.before, change.after, mode)
        at = int(now())
        keys = (self._keys.cron, self._keys.cron_last, self._keys.cron_pending)
        outdone = wire.script(PUBLISH, keys, (at, at + _AHEAD, *arguments))
        return {name.decode() for name in outdone}

    def _tell(self, changes: Sequence[Change]) -> None:
        for kind in ("added", "changed", "removed"):
            names = sorted(change.name for change in changes if change.kind == kind)
            if names:
                self._log.info(f"periodic jobs {kind}", names=names)

    def _warn_of_two(self, entry: Entry, older: Entry) -> None:
        self._warn_once(
            "two periodic jobs have one name, and the older one stays; rename one of them, or take "
            "the older one out with forkq.api.cron.remove(name, force=True)",
            name=entry.name,
            older=older.origin,
            newer=entry.origin,
        )

    def _warn_of_unknown_jobs(self) -> None:
        known = set(registry.names())
        unknown = sorted(
            entry.name
            for entry in self._entries
            if entry.job["class"] not in known
            and entry.job.get("queue", DEFAULT_QUEUE) in self._worked_on
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


def _begins_now(old: Entry | None, new: Entry) -> bool:
    """Whether the ticks before now are none of the new entry's."""
    return old is None or old.schedule != new.schedule or (new.enabled and not old.enabled)
