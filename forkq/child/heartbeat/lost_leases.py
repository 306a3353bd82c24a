"""Leases that were taken from this child because its host seemed lost (clock/sweep.py).

The sweep that took them left a note: the jobs that it names run elsewhere by now, or have run. Only
the note proves that: an acknowledgement that finds no lease may be the second one after a lost
reply.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...runtime.log import LogOnce
from ...store.connection import RedisConnection, ResponseError
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ...wire.printable import class_and_jid
from ...wire.times import now
from ..fetch_turn import FetchParts

_TOLD_FOR = 86_400  # seconds

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class LostLeases:
    """Marks what still runs as lost, and counts what ran twice. Thread-safe.

    The fetcher calls it: when the connection is new, when an acknowledged lease was gone, and when
    a failed job found none. ``lose`` is called for each job that is lost while it runs.
    """

    def __init__(
        self,
        identity: str,
        keys: Keys,
        fetch: FetchParts,
        log: FilteringBoundLogger,
        lose: Callable[[UnitOfWork], None] = lambda unit: None,
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._leases = fetch.leases
        self._channel = fetch.channel
        self._log = log
        self._lose = lose
        self._lock = threading.Lock()
        self._running: dict[int, str] = {}  # what is lost and has not ended: sequence -> job
        self._counted: set[int] = set()
        self._ran_twice: Counter[str] = Counter()
        self._untold: dict[str, float] = {}  # jid -> when that was noticed
        self._log_once = LogOnce(log)
        fetch.fetcher.look_for_lost, fetch.leases.on_lost = self.look, self._failed

    def ran_twice(self) -> dict[str, int]:
        """How many jobs ran here although another child had been given them, by class."""
        with self._lock:
            return dict(self._ran_twice)

    def tell(self, connection: RedisConnection) -> None:
        """Writes a note for each of these jobs, for ``forkq find``. The heartbeat's thread calls
        it. Raises ConnectionLost or RedisError; the next call writes what is left."""
        with self._lock:
            untold = list(self._untold.items())
        for jid, at in untold:
            note = f"{self._identity} {at:.3f}"
            connection.call("SET", self._keys.ran_twice_of(jid), note, "EX", _TOLD_FOR)
            with self._lock:
                self._untold.pop(jid)

    def look(self, connection: RedisConnection) -> None:
        """Takes the note, if there is one, and counts the lost jobs that have ended. Raises
        ConnectionLost; a second look does no harm."""
        try:
            self._take_note(connection)
        except ResponseError as error:
            # Another program's key, say. Jobs must be fetched all the same.
            self._log_once.error("note", "cannot read which leases were lost", error=str(error))
        for sequence, job in list(self._running.items()):
            if sequence not in self._leases.units():
                self._count(sequence, job)

    def _take_note(self, connection: RedisConnection) -> None:
        note: dict[bytes, bytes] = connection.call("HGETALL", self._keys.lost(self._identity))
        ours = {int(field): job for field, job in note.items() if field.isdigit()}
        known = [n for n in sorted(ours) if self._take(n, ours[n].decode("utf-8", "replace"))]
        if known:
            connection.call("HDEL", self._keys.lost(self._identity), *known)

    def _take(self, sequence: int, job: str) -> bool:
        """Deals with one lost lease. False if it is unknown here: the fetch that took it is still
        under way, or its reply was lost."""
        if not self._channel.knows(sequence):
            return False
        unit = self._leases.units().get(sequence)
        if unit is None:
            self._count(sequence, job)
        elif self._leases.drop(unit):
            pass  # leased ahead: it has not begun here
        elif not unit.lost:
            unit.lost = True
            self._running[sequence] = job
            self._log.warning("lease lost: others were given the job", job=job)
            self._lose(unit)
        return True

    def _failed(self, unit: UnitOfWork) -> None:
        self._count(unit.sequence, class_and_jid(unit.payload))

    def _count(self, sequence: int, job: str) -> None:
        with self._lock:
            self._running.pop(sequence, None)
            if sequence in self._counted:
                return
            self._counted.add(sequence)
            name, _, jid = job.rpartition(" ")
            self._ran_twice[name] += 1
            self._untold[jid] = now()
        self._log.warning("ran on two hosts", job=job)
