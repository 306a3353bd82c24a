"""A connection that remembers which keys the server has reported as changed."""

from __future__ import annotations

import msgspec

from ..store.connection import Command, RedisConnection
from ..wire.password_source import PasswordSource


def tracked(command: Command, watch: bool) -> list[Command]:
    """The command, and before it, with ``watch``, what has Redis report changes of its key. The
    reply to the command comes last."""
    return [("CLIENT", "CACHING", "YES"), command] if watch else [command]


class ChangedKeys(msgspec.Struct, frozen=True):
    """Which keys have changed; ``all_keys``: the server reports all as changed (FLUSHALL)."""

    keys: frozenset[bytes] = frozenset()
    all_keys: bool = False

    def include(self, *names: str) -> bool:
        """Whether any of these keys has changed."""
        return self.all_keys or any(name.encode() in self.keys for name in names)


class TrackingConnection(RedisConnection):
    """Once ``track`` was called, no invalidation is lost, also if it arrives among the replies to
    other commands."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        password_source: PasswordSource | None = None,
    ) -> None:
        super().__init__(
            url,
            prefix=prefix,
            timeout=timeout,
            connect_timeout=connect_timeout,
            password_source=password_source,
        )
        self._changed: set[bytes] = set()
        self._all_changed = False
        self.on_change(self._add_changes)

    def wait(self, timeout: float, *wakes: int) -> bool:
        """Waits until the server sends something, or one of the descriptors ``wakes`` is readable;
        returns at once if a key changed. Reads all that was sent."""
        if self._changed or self._all_changed:
            return True
        readable = super().wait(timeout, *wakes)
        self.read_changes()
        return readable

    def take_changes(self) -> ChangedKeys:
        """Returns what has changed since the last call."""
        changes = ChangedKeys(frozenset(self._changed), self._all_changed)
        self._changed.clear()
        self._all_changed = False
        return changes

    def _add_changes(self, keys: list[bytes] | None) -> None:
        if keys is None:
            self._all_changed = True
        else:
            self._changed.update(keys)
