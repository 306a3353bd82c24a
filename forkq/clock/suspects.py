"""Tells the master for which of its capsules suspects wait. In every clock: each host takes what it
can begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ..config.capsule import Capsule
from ..limits.patterns import decoded_names, is_pattern, matches_any
from ..store.connection import DamagedKey, RedisConnection
from ..store.scripts import SUSPECTS_FORGET
from ..store.steps import checked
from ..wire.keys import Keys


class SuspectWatch:
    """Reads which queues have suspects, when the server reports that this has changed (task.py).
    ``report`` is called with the names of the capsules, if they are others than before."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        capsules: Sequence[Capsule],
        report: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._capsules = capsules
        self._report = report
        self._reported: tuple[str, ...] = ()

    def load(self, watch: bool) -> None:
        """Reads the set, and reports. With ``watch``, the server reports later changes."""
        caching = [("CLIENT", "CACHING", "YES")] if watch else []
        *_, reply = self._connection.pipeline([*caching, ("SMEMBERS", self._keys.suspected)])
        names = (
            self._served() if isinstance(reply, DamagedKey) else decoded_names(checked([reply])[0])
        )
        queues = self._with_suspects(sorted(names))
        found = tuple(c.name for c in self._capsules if _serves(c, queues))
        if found != self._reported:
            self._report(found)
            self._reported = found

    def _served(self) -> set[str]:
        """Where the set is damaged: all queues that the configuration names."""
        names = (name for capsule in self._capsules for name in capsule.queue_names)
        return {name for name in names if not is_pattern(name)}

    def next_due(self) -> float | None:
        """Never: there is something to do only when the set changes."""
        return None

    def work(self) -> None:
        """Nothing: ``load`` does it all."""

    def _with_suspects(self, queues: Sequence[str]) -> list[str]:
        """Those that have a list. A list that was deleted by hand leaves its name behind."""
        lists = [self._keys.suspects(name) for name in queues]
        replies = checked(self._connection.pipeline([("EXISTS", key) for key in lists]))
        stale = [name for name, exists in zip(queues, replies, strict=True) if not exists]
        if stale:
            keys = (self._keys.suspected, *(self._keys.suspects(name) for name in stale))
            with suppress(DamagedKey):  # then nothing is to be removed
                self._connection.script(SUSPECTS_FORGET, keys, stale)
        return [name for name in queues if name not in stale]


def _serves(capsule: Capsule, queues: Sequence[str]) -> bool:
    return any(matches_any(name, capsule.queue_names) for name in queues)
