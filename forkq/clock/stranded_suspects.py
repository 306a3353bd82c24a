"""Suspects of a queue that no process of forkq serves: it was renamed, say, or only Sidekiq serves
it. In the leader's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ..limits.patterns import matches_any
from ..store.connection import RedisConnection, ResponseError
from ..store.process_info import live_queues
from ..store.scripts import SUSPECTS_RETURN
from ..wire.keys import Keys
from ..wire.printable import shown_name
from ..wire.times import now

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds without a process of forkq for a queue: then its suspects go back to its own list.
_STRANDED_AFTER: Final = 3600.0
_LOOK_EVERY: Final = 60.0  # seconds
_PAGE: Final = 500  # jobs


class StrandedSuspects:
    """Returns suspects to a queue that no process of forkq serves, a page at a time: another
    program may serve the queue. They keep their flags, so an ordinary child that meets one moves it
    to the list of suspects again. ``suspected`` tells which queues have suspects; while none has,
    nothing is asked."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        suspected: Callable[[], Sequence[str]],
        log: FilteringBoundLogger,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._suspected = suspected
        self._log = log
        self._since: dict[str, float] = {}  # epoch seconds, as all times here
        self._due: list[str] = []
        self._returned = 0
        self._next_look = 0.0

    def load(self, watch: bool) -> None:
        """Does nothing: ``suspected`` tells what is needed."""

    def next_due(self) -> float | None:
        """When to go on: at once, while a queue is left."""
        if self._due:
            return 0.0
        return self._next_look if self._suspected() else None

    def work(self) -> None:
        """Returns one page of one queue, or looks which queues are stranded."""
        if self._due:
            self._return_page(self._due[0])
        else:
            self._look()

    def _look(self) -> None:
        if now() > self._next_look + _LOOK_EVERY:
            self._since.clear()  # another clock led meanwhile, or no suspect waited
        self._next_look = now() + _LOOK_EVERY
        served = live_queues(self._connection, self._keys, of_forkq=True)
        names = [name for name in self._suspected() if not matches_any(name, served)]
        self._since = {name: self._since.get(name, now()) for name in names}
        self._due = [name for name in names if now() >= self._since[name] + _STRANDED_AFTER]

    def _return_page(self, queue: str) -> None:
        keys = self._keys
        lists = (keys.suspects(queue), keys.queue(queue), keys.suspected, keys.queues)
        try:
            moved, left = self._connection.script(SUSPECTS_RETURN, lists, (queue, _PAGE))
        except ResponseError:
            self._end(queue)  # the next try comes after another hour
            raise
        self._returned += moved
        if not left:
            self._end(queue)

    def _end(self, queue: str) -> None:
        if self._returned:
            self._log.warning(
                "suspects returned to their queue: no process of forkq serves it",
                queue=shown_name(queue),
                jobs=self._returned,
            )
        self._returned = 0
        self._due.remove(queue)
        del self._since[queue]
