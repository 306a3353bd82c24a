"""Leases that were taken from this child because its host seemed lost (clock/sweep.py).

The sweep that took them left a note: the jobs that it names run elsewhere by now, or have run. Only
the note proves that: an acknowledgement that finds no lease may be the second one after a lost
reply.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ...runtime.log import LogOnce
from ...store.connection import RedisConnection, ResponseError
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ...wire.printable import class_and_jid
from .fetcher import Fetcher

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class LostLeases:
    """Marks what still runs as lost, and counts what ran twice. Thread-safe.

    The fetcher calls it: when the connection is new, when an acknowledged lease was gone, and when
    a failed job found none.
    """

    def __init__(
        self, identity: str, keys: Keys, fetcher: Fetcher, log: FilteringBoundLogger
    ) -> None:
        self._key = keys.lost(identity)
        self._fetcher = fetcher
        self._log = log
        self._lock = threading.Lock()
        self._running: dict[int, str] = {}  # what is lost and has not ended: sequence -> job
        self._ran_twice: set[int] = set()
        self._log_once = LogOnce(log)
        fetcher.report_lost(look=self.look, on_lost=self._failed)

    @property
    def count(self) -> int:
        """How many jobs ran here although another child had been given them."""
        return len(self._ran_twice)

    def look(self, connection: RedisConnection) -> None:
        """Takes the note, if there is one, and counts the lost jobs that have ended. Raises
        ConnectionLost; a second look does no harm."""
        try:
            self._take_note(connection)
        except ResponseError as error:
            # Another program's key, say. Jobs must be fetched all the same.
            self._log_once.error("note", "cannot read which leases were lost", error=str(error))
        for sequence, job in list(self._running.items()):
            if self._fetcher.find(sequence) is None:
                self._count(sequence, job)

    def _take_note(self, connection: RedisConnection) -> None:
        note: dict[bytes, bytes] = connection.call("HGETALL", self._key)
        ours = {int(field): job for field, job in note.items() if field.isdigit()}
        known = [n for n in sorted(ours) if self._take(n, ours[n].decode("utf-8", "replace"))]
        if known:
            connection.call("HDEL", self._key, *known)

    def _take(self, sequence: int, job: str) -> bool:
        """Deals with one lost lease. False if it is unknown here: the fetch that took it is still
        under way, or its reply was lost."""
        if not self._fetcher.knows(sequence):
            return False
        unit = self._fetcher.find(sequence)
        if unit is None:
            self._count(sequence, job)
        elif self._fetcher.drop(unit):
            pass  # leased ahead: it has not begun here
        elif not unit.lost:
            unit.lost = True
            self._running[sequence] = job
            self._log.warning("lease lost: others were given the job", job=job)
        return True

    def _failed(self, unit: UnitOfWork) -> None:
        self._count(unit.sequence, class_and_jid(unit.payload))

    def _count(self, sequence: int, job: str) -> None:
        with self._lock:
            self._running.pop(sequence, None)
            if sequence in self._ran_twice:
                return
            self._ran_twice.add(sequence)
        self._log.warning("ran twice", job=job)
