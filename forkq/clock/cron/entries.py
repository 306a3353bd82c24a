"""What the clock knows of periodic jobs: definitions, pauses and last ticks, as Redis has them.

A definition that nobody can read is told of once, and keeps none of the others from ticking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...cron.entry import ASTRAY, Entry
from ...errors import InvalidSchedule
from ...store.connection import Command, RedisConnection
from ...store.scripts import CRON_REBASE
from ...wire.keys import Keys
from .services import RunningServices
from .ticks import Timed

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# One that lies so far ahead is worth a word: hosts' clocks differ by less.
_NOTABLE: Final = 60


class CronEntries:
    """The entries that tick: those that are neither disabled nor paused, and whose service runs.
    ``clock`` tells the wall time."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        origins: RunningServices,
        log: FilteringBoundLogger,
        clock: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._origins = origins
        self._log = log
        self._clock = clock
        self._entries: dict[str, Timed] = {}
        self._known: dict[tuple[bytes, bytes], Entry | None] = {}
        self._resting: set[str] = set()
        self._services: set[str] = set()
        self._running: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._silent: set[str] = set()

    def load(self, watch: bool) -> None:
        """Reads everything anew, in one round trip; in two if others' entries are there. With
        ``watch`` the server tells the wire when definitions or pauses have changed since. Raises
        ConnectionLost, and ResponseError if something else is in their place."""
        definitions, paused, lasts = self._read(watch)
        entries = self._understood(definitions)
        awake = [e for e in entries if e.enabled and e.name.encode() not in paused]
        self._services = {e.service for e in entries if e.service is not None}
        self._running = self._origins.running(self._services)
        self._entries = self._placed([e for e in awake if self._has_a_tree(e)], lasts)
        self._resting = {e.name for e in entries} - {e.name for e in awake}

    def outdated(self) -> bool:
        """Whether a service has begun or ended to run since ``load``. One command, and none if all
        entries are our own service's. Raises ConnectionLost."""
        return self._origins.running(self._services) != self._running

    def entries(self) -> Sequence[Timed]:
        """All that tick."""
        return tuple(self._entries.values())

    def forget(self, timed: Timed) -> None:
        """Its definition is gone."""
        self._entries.pop(timed.entry.name, None)

    def tell_once(self, event: str, **details: Any) -> None:
        """One error line, however often this is met."""
        told = f"{event} {sorted(details.items())}"
        if told not in self._told:
            self._told.add(told)
            self._log.error(event, **details)

    def _read(self, watch: bool) -> tuple[dict[bytes, bytes], set[bytes], dict[bytes, bytes]]:
        caching: list[Command] = [("CLIENT", "CACHING", "YES")] if watch else []
        commands: list[Command] = [
            *caching,
            ("HGETALL", self._keys.cron),
            *caching,
            ("SMEMBERS", self._keys.cron_paused),
            ("HGETALL", self._keys.cron_last),
        ]
        replies = self._connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        definitions, paused, lasts = (r for r in replies if r != b"OK")
        return definitions, set(paused), lasts

    def _understood(self, definitions: Mapping[bytes, bytes]) -> list[Entry]:
        """The entries among the definitions. What has not changed is not read again."""
        known = self._known
        self._known = {
            item: known[item] if item in known else self._decoded(*item)
            for item in definitions.items()
        }
        return [entry for entry in self._known.values() if entry is not None]

    def _decoded(self, name: bytes, definition: bytes) -> Entry | None:
        try:
            entry = Entry.decode(definition)
        except InvalidSchedule as error:
            why = str(error)
        else:
            if entry.name.encode() == name:
                return entry
            why = f"it calls itself {entry.name!r}"
        self._log.error("periodic job left out: cannot be read", name=_text(name), error=why)
        return None

    def _has_a_tree(self, entry: Entry) -> bool:
        """Whether somebody runs the app that defines it. While nobody does, its last tick stays: it
        is missed ticks that it will meet again, not a pause."""
        return entry.service is None or entry.service in self._running

    def _placed(self, awake: Sequence[Entry], lasts: Mapping[bytes, bytes]) -> dict[str, Timed]:
        """The entries with their last ticks. Those that begin only now get this moment for one."""
        at = int(self._clock())
        placed: dict[str, Timed] = {}
        begun: list[object] = []
        for entry in awake:
            noted = lasts.get(entry.name.encode(), b"")
            last = _whole(noted)
            if last is None or self._begins_now(entry.name, last, at):
                begun += (entry.name, noted, at)
                last = at
            if last > at + _NOTABLE:
                self._tell_of_silence(entry.name, last - at)
            placed[entry.name] = self._timed(entry, last)
        if begun:
            self._connection.script(CRON_REBASE, (self._keys.cron_last,), begun)
        return placed

    def _timed(self, entry: Entry, last: int) -> Timed:
        """With its next tick; not computed again if nothing has changed."""
        known = self._entries.get(entry.name)
        if known is not None and known.entry is entry and known.last == last:
            return known
        return Timed(entry, last)

    def _tell_of_silence(self, name: str, ahead: int) -> None:
        """Rather a silent entry than ticks that come twice; but somebody should know."""
        if name not in self._silent:
            self._silent.add(name)
            self._log.warning(
                "a clock was wrong: its ticks of the future are done already; "
                "none comes until then; pause and resume it to begin now",
                name=name,
                seconds=ahead,
            )

    def _begins_now(self, name: str, last: int, at: int) -> bool:
        """Whether the entry has just woken, or would not tick for long because the clock
        that noted its last tick was wrong."""
        if astray(last, at):
            self._log.warning(
                "a clock was wrong: a last tick lay in the future; ticking from now on",
                name=name,
                ahead=last - at,
            )
            return True
        return name in self._resting and last < at


def astray(last: int, at: float) -> bool:
    """Whether a last tick lies too far ahead of the wall clock ``at`` to be true."""
    return last > at + ASTRAY


def _whole(stamp: bytes | None) -> int | None:
    """A last tick as it was read; None if there is none, or something else in its place."""
    try:
        last = int(stamp or b"")
    except ValueError:
        return None
    return last if last >= 0 else None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
