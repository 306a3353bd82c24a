"""The periodic jobs as Redis has them: definitions, pauses and last ticks.

A definition that cannot be read is logged once, and the other entries go on ticking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ...cron.entry import MAX_CLOCK_ERROR, Entry
from ...errors import InvalidSchedule
from ...runtime.log import LogOnce
from ...store.connection import Command, RedisConnection
from ...store.scripts import CRON_REBASE
from ...store.steps import checked
from ...wire.keys import Keys
from ..tracking import tracked
from .services import RunningServices
from .ticks import EntryTicks

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds. A last tick that lies further ahead is logged: hosts' clocks differ by less.
_LOGGED_AHEAD: Final = 60


class CronEntries:
    """The entries that tick: those that are neither disabled nor paused, and whose service runs.
    ``clock`` returns the wall time."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        services: RunningServices,
        log: FilteringBoundLogger,
        clock: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._services = services
        self._log = log
        self._log_once = LogOnce(log)
        self._clock = clock
        self._ticking: dict[str, EntryTicks] = {}
        self._decoded: dict[tuple[bytes, bytes], Entry | None] = {}
        self._paused: set[str] = set()  # names; a disabled entry counts as paused
        self._known_services: set[str] = set()
        self._running_services: frozenset[str] = frozenset()

    def load(self, watch: bool) -> None:
        """Reads everything, in one round trip; in two if entries of other services are there. With
        ``watch`` the server reports when definitions or pauses change later. Raises ConnectionLost,
        and ResponseError if one of the keys holds another type."""
        definitions, paused, lasts = self._read(watch)
        entries = self._entries_in(definitions)
        active = [e for e in entries if e.enabled and e.name.encode() not in paused]
        self._known_services = {e.service for e in entries if e.service is not None}
        self._running_services = self._services.running(self._known_services)
        self._ticking = self._with_ticks([e for e in active if self._service_runs(e)], lasts)
        self._paused = {e.name for e in entries} - {e.name for e in active}

    def outdated(self) -> bool:
        """Whether a service has started or stopped since ``load``. One command; none if every entry
        belongs to this clock's service. Raises ConnectionLost."""
        return self._services.running(self._known_services) != self._running_services

    def ticking(self) -> Sequence[EntryTicks]:
        """All entries that tick."""
        return tuple(self._ticking.values())

    def remove(self, ticks: EntryTicks) -> None:
        """Leaves out an entry whose definition is no longer in Redis."""
        self._ticking.pop(ticks.entry.name, None)

    def _read(self, watch: bool) -> tuple[dict[bytes, bytes], set[bytes], dict[bytes, bytes]]:
        commands: list[Command] = [
            *tracked(("HGETALL", self._keys.cron), watch),
            *tracked(("SMEMBERS", self._keys.cron_paused), watch),
            ("HGETALL", self._keys.cron_last),
        ]
        replies = checked(self._connection.pipeline(commands))
        definitions, paused, lasts = (r for r in replies if r != b"OK")
        return definitions, set(paused), lasts

    def _entries_in(self, definitions: Mapping[bytes, bytes]) -> list[Entry]:
        """The entries among the definitions. A definition that has not changed is not decoded
        again."""
        before = self._decoded
        self._decoded = {
            item: before[item] if item in before else self._decode(*item)
            for item in definitions.items()
        }
        return [entry for entry in self._decoded.values() if entry is not None]

    def _decode(self, name: bytes, definition: bytes) -> Entry | None:
        try:
            entry = Entry.decode(definition)
        except InvalidSchedule as error:
            why = str(error)
        else:
            if entry.name.encode() == name:
                return entry
            why = f"its definition has the name {entry.name!r}"
        self._log.error("periodic job left out: cannot be read", name=_text(name), error=why)
        return None

    def _service_runs(self, entry: Entry) -> bool:
        """Whether a tree runs the app that defines the entry. Without one, the entry's last tick
        stays: the ticks until the app is back are missed ticks, and not those of a pause."""
        return entry.service is None or entry.service in self._running_services

    def _with_ticks(
        self, entries: Sequence[Entry], lasts: Mapping[bytes, bytes]
    ) -> dict[str, EntryTicks]:
        """The entries with their last ticks. A new or resumed entry starts from now."""
        now = int(self._clock())
        ticking: dict[str, EntryTicks] = {}
        rebased: list[object] = []
        for entry in entries:
            stored = lasts.get(entry.name.encode(), b"")
            last = _whole(stored)
            if last is None or self._starts_now(entry.name, last, now):
                rebased += (entry.name, stored, now)
                last = now
            ticking[entry.name] = self._ticks_of(entry, last)
            self._log_if_ahead(entry.name, last - now)
        if rebased:
            self._connection.script(CRON_REBASE, (self._keys.cron_last,), rebased)
        return ticking

    def _ticks_of(self, entry: Entry, last: int) -> EntryTicks:
        """The ticks of an entry. The next one is not computed again if nothing has changed."""
        known = self._ticking.get(entry.name)
        if known is not None and known.entry is entry and known.last == last:
            return known
        return EntryTicks(entry, last)

    def _log_if_ahead(self, name: str, seconds: int) -> None:
        """Logs a last tick that lies far in the future. The entry stays silent until that time: no
        tick may come twice."""
        if seconds <= _LOGGED_AHEAD:
            return
        self._log_once.warning(
            ("ahead", name),
            "a clock was wrong: it has enqueued ticks of the future; this periodic job ticks again "
            "when they have passed; pause and resume it to start now",
            name=name,
            seconds=seconds,
        )

    def _starts_now(self, name: str, last: int, now: int) -> bool:
        """Whether the entry was paused or disabled until now, or would not tick for long because
        the clock that noted its last tick was wrong."""
        if far_ahead(last, now):
            self._log.warning(
                "a clock was wrong: a last tick lay in the future; ticking from now on",
                name=name,
                ahead=last - now,
            )
            return True
        return name in self._paused and last < now


def far_ahead(last: int, now: float) -> bool:
    """Whether a last tick lies too far ahead of the wall clock to be right."""
    return last > now + MAX_CLOCK_ERROR


def _whole(stored: bytes | None) -> int | None:
    """A last tick as it is stored; None if there is none, or the value is not a tick."""
    try:
        last = int(stored or b"")
    except ValueError:
        return None
    return last if last >= 0 else None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
