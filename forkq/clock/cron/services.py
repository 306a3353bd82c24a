"""Which services run: each clock announces its own, and the leader's clock reads the others.

A periodic job of the code or of a forkq.toml ticks only while a tree of its service runs
(cron/service.py). Otherwise the jobs of a service that was removed or renamed would tick for ever.
docs/decisions/008.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from ...store.connection import OutOfMemory, RedisConnection, ResponseError, refused
from ...store.outage import Outage
from ...store.process_info import running_services
from ...store.scripts import LEADER_CLAIM
from ...wire.keys import Keys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# All in seconds. The clock announces its service with each sweep, which may come more often.
_TTL: Final = 60
_SHORTEST_INTERVAL: Final = 10.0


class RunningServices:
    """Announces this clock's ``service``, and reads which others run, on the clock's connection.

    A refusal by the server is logged once and stops nothing: this clock's service runs, since the
    clock does, and a service about which Redis gives no answer counts as running.
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
        self._next_announcement = 0.0
        self._write_refusal = Outage(
            log,
            "redis refuses to note that this app runs; elsewhere its periodic jobs may seem asleep",
            "redis notes again that this app runs",
        )
        self._read_refusal = Outage(
            log,
            "redis refuses to say which apps run; all periodic jobs tick",
            "redis says again which apps run",
        )

    def announce(self) -> bool:
        """Announces that this clock's service runs, unless it did so just now. Returns whether that
        was due. Raises ConnectionLost, and the errors of a failover."""
        if self._monotonic() < self._next_announcement:
            return False
        self._next_announcement = self._monotonic() + _SHORTEST_INTERVAL
        try:
            self._renew()
            self._write_refusal.end()
        except ResponseError as error:
            if refused(error):
                raise
            self._write_refusal.begin(error)
        return True

    def announce_again(self) -> None:
        """Makes ``announce`` due at once: on a new connection the server may be another one."""
        self._next_announcement = 0.0

    def running(self, services: Collection[str]) -> frozenset[str]:
        """The services among ``services`` that run, in one command at most. Raises ConnectionLost,
        and the errors of a failover."""
        asked, others = frozenset(services), set(services) - {self._service}
        if not others:
            return asked
        try:
            announced = running_services(self._connection, self._keys, others)
            self._read_refusal.end()
        except ResponseError as error:
            if refused(error):
                raise
            self._read_refusal.begin(error)
            return asked
        return asked & (announced | {self._service})

    def _renew(self) -> None:
        key = self._keys.cron_origin(self._service)
        if self._connection.call("GETEX", key, "EX", _TTL) is not None:
            return
        try:
            self._connection.call("SET", key, "runs", "EX", _TTL)
        except OutOfMemory:  # a full server accepts a script that first removes a key
            self._connection.script(LEADER_CLAIM, (key,), ("runs", _TTL * 1000, ""))
