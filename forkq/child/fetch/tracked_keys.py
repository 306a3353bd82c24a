"""The keys of which Redis will say when they change.

A registration lasts until the key changes, however many fetches come in between. So a child that
waits for the same keys again need not register them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ...wire.keys import Keys
from ...wire.lease import UnitOfWork


def changed_by(
    keys: Keys, done: Sequence[UnitOfWork], taken: Sequence[UnitOfWork]
) -> Iterable[str]:
    """The keys that fetch.lua has changed, of those that may be registered, but new marks."""
    if not done:
        return keys.lists_and_leases({unit.queue_name for unit in taken})
    freed = Counter([unit.queue_name for unit in done])
    freed.subtract([unit.queue_name for unit in taken])
    changed = keys.lists_and_leases({unit.queue_name for unit in taken})
    for name, count in freed.items():
        changed.append(keys.inflight(name))
        if count > 0:
            changed += (keys.full(name), keys.busy(name))
    return changed


class TrackedKeys:
    """The fetch connection's. It learns of changes when the connection reads them."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that are not registered."""
        return [key for key in keys if key not in self._keys]

    def add(self, keys: Iterable[str]) -> None:
        """Redis has replied that these are registered."""
        self._keys.update(keys)

    def discard(self, keys: Iterable[str]) -> None:
        """This connection may have changed these: that ends a registration, and Redis does not say
        so."""
        self._keys.difference_update(keys)

    def changed(self, keys: Collection[bytes] | None) -> None:
        """Redis says that these changed; None: all may have."""
        if keys is None:
            self._keys.clear()
        else:
            self._keys.difference_update(key.decode("utf-8", "replace") for key in keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys
