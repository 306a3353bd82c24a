"""Damaged keys: what one belongs to is left out of the fetch; all else goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...runtime.log import LogOnce
from ...store.connection import DamagedKey, ResponseError
from ...store.damage import about
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .queues import QueueOffer


class DamagedQueues:
    """The damaged keys that one child has met. Not thread-safe: the channel's."""

    def __init__(self, keys: Keys, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._damaged: set[str] = set()
        self._log = LogOnce(log)

    def found(self, keys: Iterable[str]) -> None:
        """Notes that these keys are damaged. Each is logged when it is found, and again if it was
        mended in between."""
        for key in keys:
            self._damaged.add(key)
            self._log.error(key, "damaged key; left out until it is mended", **about(key))

    def found_sound(self, keys: Collection[str], queues: Collection[str] = ()) -> None:
        """Notes that these keys are not damaged, nor is any key of these queues."""
        mended = [key for key in self._damaged if key in keys or self._keys.queue_of(key) in queues]
        for key in mended:
            self._damaged.discard(key)
            self._log.over(key)

    def judge(
        self,
        offer: QueueOffer | None,
        units: Sequence[UnitOfWork],
        damaged: Sequence[bytes],
        reasons: Sequence[Any],
        *,
        complete: bool,
    ) -> None:
        """Notes what fetch.lua says of damage. All keys of a queue are sound if jobs were taken
        from it. Its list is sound too if the fetch looked at all queues (``complete``) and gives no
        reason why this one had none; the in-flight hash of an empty queue it does not look at. No
        ``offer``: it looked at no queue."""
        if not damaged and not self._damaged:
            return
        found = {key.decode("utf-8", "replace") for key in damaged}
        self.found(found)
        if offer is None or offer.count == 0:
            return
        keys, names = {self._keys.paused, self._keys.controlled}, offer.names
        if complete:
            with_reason = {names[number - 1] for number in reasons[::3]}
            empty = set(names[: offer.count]) - with_reason
            keys.update(self._keys.queue(name) for name in empty)
        damaged_queues = {self._keys.queue_of(key) for key in found}
        taken = {unit.queue_name for unit in units}
        self.found_sound(keys - found, {name for name in taken if name not in damaged_queues})

    def noted(self, key: str, reply: object) -> None:
        """Takes Redis's reply to the note of this child's queues."""
        if isinstance(reply, DamagedKey):
            self.found([key])
        elif isinstance(reply, ResponseError):
            self._log.error("note", "cannot note the queues of this child", error=str(reply))
        else:
            self._log.over("note")
            self.found_sound([key])
