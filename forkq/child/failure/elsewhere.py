"""Which jobs other processes have: during a deploy a child gets jobs that only newer code knows."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

import msgspec

from ...store.connection import RedisError
from ...store.pool import RedisPool
from ...wire.keys import Keys

# In a process's record: the names of its jobs, as a list in JSON.
JOBS: Final = "jobs"
# Seconds for which what was read counts: a deploy takes minutes, and a queue may have many such.
_KNOWN_FOR: Final = 5.0
_decoder: Final = msgspec.json.Decoder(list[str])


class JobsElsewhere:
    """The names of the jobs that the living processes have, which their records say."""

    def __init__(self, keys: Keys, pool: RedisPool) -> None:
        self._keys = keys
        self._pool = pool
        self._names: frozenset[str] = frozenset()
        self._until = 0.0

    def has(self, name: object) -> bool:
        """Whether a living process has the job of this name. False where Redis does not say."""
        if monotonic() >= self._until:
            self._names = self._read()
            self._until = monotonic() + _KNOWN_FOR
        return name in self._names

    def _read(self) -> frozenset[str]:
        try:
            with self._pool.connection() as connection:
                found = connection.call("SMEMBERS", self._keys.processes)
                records = [self._keys.process(str(each, "utf-8", "replace")) for each in found]
                lists = connection.pipeline([("HGET", each, JOBS) for each in records])
        except RedisError:
            return frozenset()
        return frozenset(name for raw in lists for name in _names_in(raw))


def _names_in(raw: Any) -> list[str]:
    """The names in a list; none if another program has written something else."""
    try:
        return _decoder.decode(raw) if isinstance(raw, bytes) else []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
