"""Reading and changing what is in Redis, for ``forkq.api``. Any process; no push needs this."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .limits.rules import Rulebook
from .wire.keys import Keys
from .wire.payload import PayloadBounds

if TYPE_CHECKING:
    from .store.connection import RedisConnection


class Session:
    """One server, as all of ``forkq.api`` sees it.

    ``connection()`` lends a connected RedisConnection, and raises ServerUnavailable if Redis cannot
    be reached or refuses what is asked within. ``bounds`` say what a payload may have, ``rules``
    are those of this process's configuration.
    """

    def __init__(
        self,
        connection: Callable[[], AbstractContextManager[RedisConnection]],
        keys: Keys,
        bounds: PayloadBounds,
        rules: Rulebook | None,
    ) -> None:
        self.connection = connection
        self.keys = keys
        self.bounds = bounds
        self.rules = rules or Rulebook()
