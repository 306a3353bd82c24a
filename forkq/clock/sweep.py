"""The sweep: finds leases whose owner is dead and whose master is not there to rescue them.

Where we can see its process, an owner is dead when that is gone, and alive as long as it is not,
however long it has not beaten. Elsewhere it is dead when its record, which expires after a minute
without a beat, was missing twice in a row.
"""

from __future__ import annotations

from typing import Any

from ..connection import Wire
from ..keys import Keys
from ..recovery import Crash, Recovery
from ..whereabouts import fate


class Sweep:
    """Remembers whom it missed the last time, and of which oddities it has spoken."""

    def __init__(self, keys: Keys, wire: Wire, recovery: Recovery, log: Any) -> None:
        self._keys = keys
        self._wire = wire
        self._recovery = recovery
        self._log = log
        self._missing: set[str] = set()
        self._told: set[bytes] = set()

    def run(self) -> None:
        """Looks at every owner once."""
        missing = set()
        for identity, queues in self._owners().items():
            place, has_record = self._look(identity)
            seen = fate(place)
            if seen == "dead":
                self._recover(identity, queues, "its host's master was gone too")
            elif seen == "unknown" and not has_record:
                missing.add(identity)
                if identity in self._missing:
                    self._recover(identity, queues, "host lost")
        self._missing = missing

    def _owners(self) -> dict[str, list[str]]:
        """Who holds leases, and in which queues."""
        queues = self._queues()
        commands = [("HKEYS", self._keys.inflight(queue)) for queue in queues]
        owners: dict[str, list[str]] = {}
        replies = self._wire.pipeline(commands) if commands else []
        for queue, leases in zip(queues, replies, strict=True):
            if isinstance(leases, Exception):
                self._tell_once(queue.encode(), str(leases))
                continue
            identities = {lease.decode("utf-8", "replace").rpartition("/")[0] for lease in leases}
            for identity in identities - {""}:
                owners.setdefault(identity, []).append(queue)
        return owners

    def _queues(self) -> list[str]:
        names = []
        for name in self._wire.call("SMEMBERS", self._keys.queues):
            try:
                names.append(name.decode())
            except UnicodeDecodeError as error:
                self._tell_once(name, str(error))
        return sorted(names)

    def _tell_once(self, queue: bytes, why: str) -> None:
        """A queue that cannot be looked at must not keep the others from it."""
        if queue not in self._told:
            self._told.add(queue)
            self._log.error("queue left out of the sweep", queue=repr(queue), error=why)

    def _look(self, identity: str) -> tuple[str, bool]:
        """Where the owner lives, as far as it has said, and whether its record stands."""
        place, record = self._wire.pipeline(
            [
                ("GET", self._keys.place(identity)),
                ("EXISTS", self._keys.process(identity)),
            ]
        )
        for reply in (place, record):
            if isinstance(reply, Exception):
                raise reply
        return (place or b"").decode("utf-8", "replace"), bool(record)

    def _recover(self, identity: str, queues: list[str], reason: str) -> None:
        done = self._recovery.recover(self._wire, queues, identity, Crash(reason=reason))
        self._recovery.forget(self._wire, identity)
        done.tell(self._log, "jobs of a dead process recovered", owner=identity)
