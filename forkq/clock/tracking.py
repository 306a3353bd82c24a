"""A wire that remembers what the server tells it of changes."""

from __future__ import annotations

from dataclasses import dataclass

from ..store.connection import RedisConnection


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Which keys have changed; ``everything``, if the server says that all have (FLUSHALL)."""

    keys: frozenset[bytes] = frozenset()
    everything: bool = False

    def of(self, *names: str) -> bool:
        """Whether there is news of any of these keys."""
        return self.everything or any(name.encode() in self.keys for name in names)


class TrackingConnection(RedisConnection):
    """Once ``track`` was called, no invalidation is lost: not those that arrive among the replies
    to other commands either."""

    def __init__(self, url: str, *, timeout: float = 5.0, connect_timeout: float = 2.0) -> None:
        super().__init__(url, timeout=timeout, connect_timeout=connect_timeout)
        self._changed: set[bytes] = set()
        self._everything = False
        self.on_change(self._note)

    def wait(self, timeout: float, *wakes: int) -> bool:
        """As RedisConnection.wait; returns at once if a key changed. Reads all that was sent."""
        if self._changed or self._everything:
            return True
        spoke = super().wait(timeout, *wakes)
        self.hear()
        return spoke

    def news(self) -> ChangedKeys:
        """What has changed since the last call."""
        news = ChangedKeys(frozenset(self._changed), self._everything)
        self._changed.clear()
        self._everything = False
        return news

    def _note(self, keys: list[bytes] | None) -> None:
        if keys is None:
            self._everything = True
        else:
            self._changed.update(keys)
