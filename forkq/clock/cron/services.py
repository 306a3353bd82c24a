"""Which services run: a clock says so for its own, and the leader asks about the others.

A periodic job of the code or of a forkq.toml ticks only while a tree of its service
(``periodic.service_of``) runs: what a service left behind that is gone, or has another name now,
must not go on for ever. docs/decisions/008.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from ...every import running
from ...store.connection import OutOfMemory, RedisConnection, ResponseError, refused
from ...store.outage import Outage
from ...store.scripts import LEADER_CLAIM
from ...wire.keys import Keys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# All in seconds. Announcements go with the sweep, every 15 s at the latest and now and then sooner.
TTL: Final = 60
_APART: Final = 10.0


class RunningServices:
    """This clock's word for its ``service``, and what it knows of the others; on the clock's wire.

    What the server refuses is logged once. It must not stop anything: our own service runs, since
    we do, and one that cannot be asked about is taken to run.
    """

    def __init__(
        self,
        keys: Keys,
        connection: RedisConnection,
        service: str,
        log: FilteringBoundLogger,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._connection = connection
        self._service = service
        self._monotonic = monotonic
        self._next = 0.0
        self._mute = Outage(
            log,
            "redis refuses to note that this app runs; elsewhere its periodic jobs may seem asleep",
            "redis notes again that this app runs",
        )
        self._deaf = Outage(
            log,
            "redis does not tell which apps run; all periodic jobs tick",
            "redis tells again which apps run",
        )

    def announce(self) -> bool:
        """Says that our service runs: one command, and none if that was just said. Returns whether
        it was time for that. Raises ConnectionLost, and what a failover makes of a command."""
        if self._monotonic() < self._next:
            return False
        self._next = self._monotonic() + _APART
        try:
            self._renew()
            self._mute.end()
        except ResponseError as error:
            if refused(error):
                raise
            self._mute.begin(error)
        return True

    def forget(self) -> None:
        """The connection is new: so may be the server."""
        self._next = 0.0

    def running(self, services: Collection[str]) -> frozenset[str]:
        """Which of these run: one command, and none if there is only ours. Raises as above."""
        known, others = frozenset(services), set(services) - {self._service}
        if not others:
            return known
        try:
            announced = running(self._connection, self._keys, others)
            self._deaf.end()
        except ResponseError as error:
            if refused(error):
                raise
            self._deaf.begin(error)
            return known
        return known & (announced | {self._service})

    def _renew(self) -> None:
        key = self._keys.cron_origin(self._service)
        if self._connection.call("GETEX", key, "EX", TTL) is not None:
            return
        try:
            self._connection.call("SET", key, "runs", "EX", TTL)
        except OutOfMemory:  # a full server lets a script write that removes first
            self._connection.script(LEADER_CLAIM, (key,), ("runs", TTL * 1000, ""))
