"""The claim to publish the periodic jobs of a service: the newest of its children has it.

During a rolling deploy two versions of an app run, and children of both may be replaced at any
time. The order in which they publish must not decide which definitions stay (docs/decisions/008).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...runtime.assignment import Assignment
from ...store.connection import RedisConnection
from ...store.scripts import CRON_CLAIM
from ...wire.keys import Keys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds without a renewal after which a child that watched takes the claim over. Its owner renews
# it each time it publishes.
_EXPIRES_AFTER: Final = 90.0
_TTL: Final = 86_400


class Claim:
    """This child's claim for its ``service``; ``assignment`` tells how new the child is."""

    def __init__(
        self,
        keys: Keys,
        service: str,
        assignment: Assignment,
        log: FilteringBoundLogger,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = keys.cron_claim(service)
        self._generation = assignment.generation
        self._number = assignment.number
        self._log = log
        self._monotonic = monotonic
        self._newer = b""
        self._since = 0.0

    def holds(self, connection: RedisConnection) -> bool:
        """Claims, or renews the claim, with one command. False: a newer child has it. Raises
        ConnectionLost or RedisError."""
        newer = self._claim(connection, b"")
        if newer is None:
            return True
        if not self._newer:
            self._log.debug("a newer child of this app publishes the periodic jobs")
        if newer != self._newer:
            self._newer, self._since = newer, self._monotonic()
        if self._monotonic() - self._since < _EXPIRES_AFTER:
            return False
        return self._claim(connection, newer) is None

    def _claim(self, connection: RedisConnection, expired: bytes) -> bytes | None:
        age = int((self._monotonic() - self._generation.begun) * 1000)
        arguments = (self._generation.token, age, self._number, expired, _TTL)
        newer: bytes | None = connection.script(CRON_CLAIM, (self._key,), arguments)
        return newer
