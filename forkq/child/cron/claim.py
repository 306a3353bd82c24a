"""The claim to publish the periodic jobs of a service: of all its children, the newest has it.

While a deploy is rolling, two versions of an app run side by side, and a child of either may be
respawned at any time. The order in which they publish must not decide which definitions stand.
docs/decisions/008.
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

# A claim that was not renewed for so many seconds, in which we looked, is left behind. Its owner
# renews it with every fourth beat.
_LEFT_BEHIND: Final = 90.0
_KEPT: Final = 86_400


class Claim:
    """This child's claim for its ``service``; ``post`` says how new the child is."""

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
        """Claims, or renews, with one command. False: a newer child has the claim. Raises
        ConnectionLost or RedisError."""
        newer = self._claim(connection, b"")
        if newer is None:
            return True
        if not self._newer:
            self._log.debug("a newer child of this app publishes the periodic jobs")
        if newer != self._newer:
            self._newer, self._since = newer, self._monotonic()
        if self._monotonic() - self._since < _LEFT_BEHIND:
            return False
        return self._claim(connection, newer) is None

    def _claim(self, connection: RedisConnection, left_behind: bytes) -> bytes | None:
        age = int((self._monotonic() - self._generation.begun) * 1000)
        arguments = (self._generation.token, age, self._number, left_behind, _KEPT)
        newer: bytes | None = connection.script(CRON_CLAIM, (self._key,), arguments)
        return newer
