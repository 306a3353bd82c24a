"""What is cancelled, as this child knows it: a task of the heartbeat.

Redis reports a change of it, and the heartbeat waits for that report, so that a child hears of it
although all its processors are busy. While nothing is cancelled, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from ...features.batch.pause import BatchPause, read_pauses
from ...features.cancel.parts import Mark, read_marks
from ...runtime.log import LogOnce
from ...store.connection import Command, RedisConnection, ResponseError
from ...wire.keys import Keys
from .tasks import HeartbeatTask, Snapshot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

T = TypeVar("T")
_UNREAD: Final = "it is not known what is cancelled: jobs that are will run"
_UNTRACKED: Final = "redis does not report changes; the child asks at each beat what is cancelled"


class WatchCancelled(HeartbeatTask):
    """Keeps ``marks`` and ``pauses`` as Redis has them; processors read these meanwhile. ``act`` is
    called after each change, and while something is cancelled once a second."""

    def __init__(
        self,
        keys: Keys,
        marks: dict[str, Mark],
        log: FilteringBoundLogger,
        act: Callable[[], None] = lambda: None,
        pauses: dict[str, BatchPause] | None = None,
    ) -> None:
        super().__init__()
        self._pauses = {} if pauses is None else pauses
        self._key = keys.cancelled
        self._marks = marks
        self._log_once = LogOnce(log)
        self._act = act
        self._opened, self._stale, self._tracks = 0, True, True

    @property
    def wants_attention(self) -> bool:
        """Whether something may have changed, or is cancelled."""
        return self._stale or bool(self._marks)

    @property
    def is_open(self) -> bool:
        """Whether something is cancelled."""
        return bool(self._marks)

    def attend(self, connection: RedisConnection, now: Snapshot) -> None:
        """Does what ``refresh`` does, with each beat."""
        self.refresh(connection)

    def refresh(self, connection: RedisConnection) -> bool:
        """Reads what is cancelled if it may have changed: after a report, and on a new connection,
        on which Redis reports only what is read there. Then acts on it. Returns whether Redis was
        asked. Raises ConnectionLost."""
        before: list[Command] = []
        if connection.opened != self._opened:
            connection.on_change(self._note_change)
            self._opened, self._stale = connection.opened, True
            before = [("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")]
        if is_asked := self._stale or not self._tracks:
            self._read(connection, before)
        if self._marks:
            self._act()
        return is_asked

    def hears(self, connection: RedisConnection) -> bool:
        """Whether Redis reports changes on this connection."""
        return self._tracks and connection.connected and connection.opened == self._opened

    def _note_change(self, keys: list[bytes] | None) -> None:
        self._stale = True

    def _read(self, connection: RedisConnection, before: list[Command]) -> None:
        if self._tracks:
            before = [*before, ("CLIENT", "CACHING", "YES")]
        self._stale = False  # a change that is reported from here on is read later
        *tracking, found = connection.pipeline([*before, ("HGETALL", self._key)])
        if any(isinstance(reply, ResponseError) for reply in tracking):
            self._tracks = False
            self._log_once.warning("untracked", _UNTRACKED)
        if isinstance(found, ResponseError):
            self._log_once.error("unread", _UNREAD, error=str(found))
        else:
            _keep(self._marks, read_marks(found))
            _keep(self._pauses, read_pauses(found))


def _keep(known: dict[str, T], found: Mapping[str, T]) -> None:
    known.update(found)  # before the others go: a processor may look meanwhile
    for name in known.keys() - found.keys():
        del known[name]
