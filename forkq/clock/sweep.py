"""The sweep: finds leases whose owner is dead and whose master is not there to rescue them.

Two ways to be dead: the record says where the process lived, and it is not there any more; or there
is no record, twice in a row: it expires when a process has not beaten for a minute.
"""

from __future__ import annotations

from typing import Any

from ..connection import Wire
from ..keys import Keys
from ..recovery import Crash, Recovery
from ..whereabouts import surely_dead


class Sweep:
    """Remembers whom it missed the last time."""

    def __init__(self, keys: Keys, wire: Wire, recovery: Recovery, log: Any) -> None:
        self._keys = keys
        self._wire = wire
        self._recovery = recovery
        self._log = log
        self._missing: set[str] = set()

    def run(self) -> None:
        """Looks at every owner once."""
        owners = self._owners()
        places = {identity: self._place(identity) for identity in owners}
        missing = {identity for identity, place in places.items() if place is None}
        gone = {i for i, place in places.items() if place is not None and surely_dead(place)}
        for identity in gone:
            self._recover(identity, owners[identity], "its host's master was gone too")
        for identity in missing & self._missing:
            self._recover(identity, owners[identity], "host lost")
        self._missing = missing

    def _owners(self) -> dict[str, list[str]]:
        """Who holds leases, and in which queues."""
        queues = sorted(name.decode() for name in self._wire.call("SMEMBERS", self._keys.queues))
        commands = [("HKEYS", self._keys.inflight(queue)) for queue in queues]
        owners: dict[str, list[str]] = {}
        replies = self._wire.pipeline(commands) if commands else []
        for queue, leases in zip(queues, replies, strict=True):
            if isinstance(leases, Exception):
                raise leases
            for identity in {lease.decode().rpartition("/")[0] for lease in leases}:
                owners.setdefault(identity, []).append(queue)
        return owners

    def _place(self, identity: str) -> str | None:
        """Where the owner lives; None if it has no record, "" if the record does not say."""
        place, beat = self._wire.call("HMGET", self._keys.process(identity), "place", "beat")
        if beat is None:
            return None
        return "" if place is None else str(place.decode())

    def _recover(self, identity: str, queues: list[str], reason: str) -> None:
        done = self._recovery.recover(self._wire, queues, identity, Crash(reason=reason))
        self._recovery.forget(self._wire, identity)
        done.tell(self._log, "jobs of a dead process recovered", owner=identity)
