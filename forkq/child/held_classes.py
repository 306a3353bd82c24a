"""A solo child releases a held class when one of its jobs has ended well there."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ..store.connection import RedisError
from ..store.held_classes import release
from ..store.pool import RedisPool
from ..wire.keys import Keys
from .job_run import JobRun
from .observers import JobObserver

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class ReleaseClasses(JobObserver):
    """Releases classes, in a solo child. ``held`` are the classes that are held, as the master has
    told."""

    def __init__(
        self, held: AbstractSet[str], keys: Keys, pool: RedisPool, log: FilteringBoundLogger
    ) -> None:
        self._held = held
        self._keys = keys
        self._pool = pool
        self._log = log

    def done(self, run: JobRun) -> None:
        name = run.shown_class
        if not self._held or type(name) is not str or name not in self._held:
            return
        call = release(self._keys, name)
        try:
            with self._pool.connection() as connection:
                connection.script(call.script, call.keys, call.arguments)
        except RedisError as error:  # the next job that ends well does it
            self._log.warning("a held class was not released", held=name, error=str(error))
