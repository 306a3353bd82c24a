"""Held classes (store/held_classes.py): each clock tells its master of them, and the leader's clock
returns the jobs of the released ones to their queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..limits.patterns import decoded_names
from ..runtime.pipe import fitting
from ..store.connection import Command, RedisConnection
from ..store.held_classes import waiting_jobs
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.printable import shown_name
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_ALL_SEEN = -1


class HeldClassWatch:
    """Watches the held classes, in every clock. ``listener`` is called with their names: at first,
    and if they are others than before. Those that do not fit into a message run beside other
    jobs."""

    def __init__(
        self, keys: Keys, connection: RedisConnection, listener: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._listener = listener
        self._told: tuple[str, ...] | None = None

    def load(self, watch: bool) -> None:
        """Reads the names, and reports. With ``watch``, the server reports later changes."""
        replies = _read(self._connection, ("HKEYS", self._keys.held_classes), watch=watch)
        found = fitting(sorted(decoded_names(replies)))
        if found != self._told:
            self._listener(found)
            self._told = found

    def next_due(self) -> float | None:
        """None: there is something to do only when the hash changes."""
        return None

    def work(self) -> None:
        """Does nothing: ``load`` does it all."""


class ClassReturns:
    """Returns jobs of released classes, in the leader's clock, one page of one queue's suspects at
    a time. What a leader has not done when it dies, the next one does."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._released: list[str] = []
        self._queues: list[str] = []  # those that are left, of the first of the classes
        self._at = 0
        self._returned = 0
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads which classes were released."""
        self._watch = watch
        found = decoded_names(
            _read(self._connection, ("SMEMBERS", self._keys.released_classes), watch=watch)
        )
        current = self._released[:1]
        if current and current[0] in found:  # goes on where it is
            self._released = [*current, *sorted(found - set(current))]
        else:
            self._released = sorted(found)
            self._begin()

    def next_due(self) -> float | None:
        """When to go on: at once, while a class is left."""
        return 0.0 if self._released else None

    def work(self) -> None:
        """Returns the jobs of one page, or ends with a class."""
        if not self._queues:
            self._end()
            return
        name, queue = self._released[0], self._queues[0]
        call = waiting_jobs(self._keys, name, queue, self._at, returns=True)
        self._at, returned = self._connection.script(call.script, call.keys, call.arguments)
        self._returned += returned
        if self._at == _ALL_SEEN:
            self._at = 0
            del self._queues[0]

    def _begin(self) -> None:
        self._at = self._returned = 0
        self._queues = []
        if self._released:
            names = self._connection.call("SMEMBERS", self._keys.suspected)
            self._queues = sorted(decoded_names(names))

    def _end(self) -> None:
        """Ends with the class that comes first: it has no jobs left in the lists of suspects."""
        name = self._released[0]
        what = {"released": shown_name(name), "returned": self._returned}
        self._connection.call("SREM", self._keys.released_classes, name)
        self._log.warning("class released: its jobs run beside others again", **what)
        self.load(self._watch)  # the server does not report this clock's own change


def _read(connection: RedisConnection, command: Command, *, watch: bool) -> set[bytes]:
    return set(checked(connection.pipeline(tracked(command, watch)))[-1])
