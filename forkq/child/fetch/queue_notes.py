"""Which queues there are, and Redis's note of those that this child may hold leases of."""

from __future__ import annotations

import time
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Final

from ...limits.patterns import decoded_names
from ...runtime.log import LogOnce
from ...store.connection import Call, DamagedKey, RedisConnection, ResponseError
from ...store.scripts import QUEUES_IN_FLIGHT
from ...wire.keys import Keys
from .damaged_keys import DamagedKeys
from .queue_selector import QueueSelector

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Of how many queues one script notes the names.
_CHUNK: Final = 500
# Seconds. How often new queues are looked for where Redis does not say that there are some.
_LOOK_EVERY: Final = 1.0


class QueueNotes:
    """The fetch connection's. A queue may be deleted while its job is in flight: the sweep of
    another host looks for leases in the queues that are noted."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        selector: QueueSelector,
        damaged: DamagedKeys,
        log: FilteringBoundLogger,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._selector = selector
        self._damaged = damaged
        self._log = LogOnce(log)
        self._look_due = 0.0
        self._noted: Set[str] = frozenset()
        self._must_note_again = True

    def note_again(self) -> None:
        """The note in Redis may be gone. Any thread may call."""
        self._must_note_again = True

    @property
    def is_due(self) -> bool:
        """Whether ``look`` would write or read something."""
        return self._must_note_again

    def look(self, *, tracks: bool) -> None:
        """Finds the queues that the patterns stand for, if there may be new ones, and notes each
        before anything of it is leased. ``tracks``: Redis says when there are new ones."""
        if self._found_new(tracks=tracks) or self._must_note_again:
            self.write()

    def write(self) -> None:
        """Notes the queues that are not noted yet."""
        noted: Collection[str] = () if self._must_note_again else self._noted
        self._must_note_again, self._noted = False, self._selector.names
        new = sorted(self._noted.difference(noted))
        chunks = [new[start : start + _CHUNK] for start in range(0, len(new), _CHUNK)]
        calls = [Call(QUEUES_IN_FLIGHT, (self._keys.fetched,), chunk) for chunk in chunks]
        for reply in self._connection.exchange(calls) if calls else ():
            if isinstance(reply, DamagedKey):
                self._damaged.found([self._keys.fetched])
            elif isinstance(reply, ResponseError):
                self._log.error("note", "cannot note the queues of this child", error=str(reply))
            else:
                self._log.over("note")
                self._damaged.sound([self._keys.fetched])

    def _found_new(self, *, tracks: bool) -> bool:
        selector = self._selector
        if not selector.has_patterns:
            return False
        is_time = not tracks and time.monotonic() >= self._look_due
        if not selector.stale and not is_time:
            return False
        self._look_due = time.monotonic() + _LOOK_EVERY
        if tracks:
            self._connection.call("CLIENT", "CACHING", "YES")
        try:
            selector.learn(decoded_names(self._connection.call("SMEMBERS", self._keys.queues)))
        except DamagedKey:
            selector.stale = False  # the queues that are known are all that can be offered
            self._damaged.found([self._keys.queues])
        else:
            self._damaged.sound([self._keys.queues])
        return True
