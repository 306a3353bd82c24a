"""Tells the master for which of its capsules suspects wait. In every clock: each host takes what it
can begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..config.capsule import Capsule
from ..limits.patterns import decoded_names, is_pattern, matches_any
from ..store.connection import DamagedKey, RedisConnection
from ..store.scripts import SUSPECTS_FORGET
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.times import now
from .tracking import tracked

# Seconds. A list that was deleted by hand leaves the name of its queue behind.
_LOOK_EVERY: Final = 60.0


class SuspectWatch:
    """Reads which queues have suspects: when the server reports that this has changed, when this
    clock may have changed it, and once a minute (task.py). ``listener`` is called with the names of
    the capsules, if they are others than before, and returns whether the master will hear of it.
    ``queues``: those that have suspects, as last read."""

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        capsules: Sequence[Capsule],
        listener: Callable[[tuple[str, ...]], bool],
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._capsules = capsules
        self._listener = listener
        self._told: tuple[str, ...] = ()
        self.queues: Sequence[str] = ()
        self._watch = False
        self._next_look = 0.0  # epoch seconds

    def load(self, watch: bool) -> None:
        """Reads the set, and reports. With ``watch``, the server reports later changes."""
        self._watch, self._next_look = watch, now() + _LOOK_EVERY
        queues, stale = self._read(watch)
        while stale:
            self._forget(stale)  # which ends the registration, and the server does not say so
            queues, stale = self._read(watch)
        self.queues = queues
        found = tuple(c.name for c in self._capsules if _serves(c, queues))
        if found != self._told and self._listener(found):
            self._told = found

    def _served(self) -> set[str]:
        """The queues to look at where the set is damaged: all that the configuration names, and all
        others."""
        names = (name for capsule in self._capsules for name in capsule.queue_names)
        [every] = self._connection.pipeline([("SMEMBERS", self._keys.queues)])
        known = set() if isinstance(every, DamagedKey) else decoded_names(checked([every])[0])
        return {name for name in names if not is_pattern(name)} | known

    def next_due(self) -> float | None:
        """When the set is read again although no change was reported."""
        return self._next_look

    def work(self) -> None:
        """Reads the set again."""
        self.load(self._watch)

    def _read(self, watch: bool) -> tuple[list[str], list[str]]:
        """The queues that have suspects, and those that are named without a list: it was deleted by
        hand."""
        *_, reply = self._connection.pipeline(tracked(("SMEMBERS", self._keys.suspected), watch))
        is_damaged = isinstance(reply, DamagedKey)
        names = self._served() if is_damaged else decoded_names(checked([reply])[0])
        lists = [("EXISTS", self._keys.suspects(name)) for name in sorted(names)]
        there = checked(self._connection.pipeline(lists)) if lists else []
        pairs = list(zip(sorted(names), there, strict=True))
        stale = [name for name, exists in pairs if not exists and not is_damaged]
        return [name for name, exists in pairs if exists], stale

    def _forget(self, stale: Sequence[str]) -> None:
        keys = (self._keys.suspected, *(self._keys.suspects(name) for name in stale))
        self._connection.script(SUSPECTS_FORGET, keys, stale)


def _serves(capsule: Capsule, queues: Sequence[str]) -> bool:
    return any(matches_any(name, capsule.queue_names) for name in queues)
