"""The keys whose next change the server will tell us of.

A registration lasts until the key changes, however many fetches come in between: so a child that
comes back to wait for the same things need not register them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class TrackedKeys:
    """The line's. It hears what the server tells as the connection comes across the news."""

    def __init__(self) -> None:
        self._keys: set[str] = set()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that are not registered."""
        return [key for key in keys if key not in self._keys]

    def add(self, keys: Iterable[str]) -> None:
        """The server has answered that these are registered."""
        self._keys.update(keys)

    def discard(self, keys: Iterable[str]) -> None:
        """We may have changed these ourselves: that ends a registration, and is not told to us."""
        self._keys.difference_update(keys)

    def hear(self, keys: Collection[bytes] | None) -> None:
        """The server says that these changed; None: all may have."""
        if keys is None:
            self._keys.clear()
        else:
            self._keys.difference_update(key.decode("utf-8", "replace") for key in keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys
