"""Has Redis return leases of this child to the head of their queues.

Redis does not tell a connection of its own changes: the caller forgets what it knows of the queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...store.connection import DamagedKey, RedisConnection
from ...store.scripts import PUT_BACK, REQUEUE, Script
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Of how many queues one script returns leases, and about how many bytes of their payloads.
_QUEUES: Final = 500
_BYTES: Final = 4 << 20


class LeaseReturns:
    """The fetch connection's. Each method raises ConnectionLost or RedisError."""

    def __init__(
        self, owner: str, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger
    ) -> None:
        self._owner = owner
        self._keys = keys
        self._connection = connection
        self._log = log

    def put_back(self, units: Sequence[UnitOfWork]) -> bool:
        """Returns these, the youngest first. A lease that is gone changes nothing. False if a queue
        is damaged: the leases of others may stay, too."""
        queues = {unit.queue_name: None for unit in units}
        numbers = {name: number for number, name in enumerate(queues, 1)}
        moves = [part for unit in units for part in (numbers[unit.queue_name], unit.sequence)]
        keys = self._keys.lists_and_leases(list(queues))
        return self._tried(PUT_BACK, (self._keys.queues, *keys), (self._owner, *moves)) is not None

    def requeue(self, queues: Sequence[str], before: int, keep: Iterable[int]) -> bool:
        """Returns each lease with a sequence number below ``before``, but those that ``keep``
        names. False if a queue is damaged: its leases stay."""
        complete = True
        arguments = (self._owner, before, _BYTES, *keep)
        for start in range(0, len(queues), _QUEUES):
            lists = self._keys.lists_and_leases(queues[start : start + _QUEUES])
            complete = self._requeue(lists, arguments) and complete
        return complete

    def _requeue(self, lists: Sequence[str], arguments: Sequence[Any]) -> bool:
        """Some queues, a bounded number of bytes at a time."""
        keys = (self._keys.queues, *lists)
        while (reply := self._tried(REQUEUE, keys, arguments)) is not None:
            if not reply[1]:
                return True
        return False

    def _tried(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The script's reply; None if a queue is damaged."""
        try:
            return self._connection.script(script, keys, arguments)
        except DamagedKey as error:
            self._log.error("jobs cannot go back", error=str(error))
            return None
