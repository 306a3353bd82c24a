"""The damaged keys that fetches meet: each is logged when it is found, and again if it was mended
in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ...runtime.log import LogOnce
from ...store.damage import about
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from .fetch_request import FetchRequest

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class DamagedKeys:
    """The fetch connection's. What a damaged key belongs to is left out; all else goes on."""

    def __init__(self, keys: Keys, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._log = LogOnce(log)
        self._found: set[str] = set()

    @property
    def any(self) -> bool:
        """Whether some key was found damaged, and not sound since."""
        return bool(self._found)

    def found(self, keys: Iterable[str]) -> None:
        """These are damaged."""
        for key in keys:
            self._found.add(key)
            self._log.error(key, "damaged key; left out until it is mended", **about(key))

    def sound(self, keys: Collection[str], queues: Collection[str] = ()) -> None:
        """These keys are not damaged, nor is any key of these queues."""
        mended = [key for key in self._found if key in keys or self._keys.queue_of(key) in queues]
        for key in mended:
            self._found.discard(key)
            self._log.over(key)

    def update(
        self,
        request: FetchRequest,
        units: Sequence[UnitOfWork],
        damaged: Sequence[bytes],
        reasons: Sequence[Any],
        *,
        complete: bool,
    ) -> None:
        """What fetch.lua says of damage. All keys of a queue are sound if jobs were taken from it.
        Its list is sound too if the fetch looked at all queues (``complete``) and gives no reason
        why this one had none; the in-flight hash of an empty queue it does not look at."""
        found = {key.decode("utf-8", "replace") for key in damaged}
        self.found(found)
        if request.want == 0 or request.offer.count == 0:  # it looked at no queue
            return
        keys, names = {self._keys.paused, self._keys.controlled}, request.offer.names
        if complete:
            with_reason = {names[number - 1] for number in reasons[::3]}
            empty = set(names[: request.offer.count]) - with_reason
            keys.update(self._keys.queue(name) for name in empty)
        damaged_queues = {self._keys.queue_of(key) for key in found}
        taken = {unit.queue_name for unit in units}
        self.sound(keys - found, {name for name in taken if name not in damaged_queues})
