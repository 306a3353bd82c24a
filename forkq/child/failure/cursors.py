"""The cursor of one run of an iterable job: read at its start, and saved while it runs."""

from __future__ import annotations

from typing import Final

from ...errors import InvalidJob, IterationStopped
from ...features.iterable.parts import CURSOR, VERSION, Iteration, read
from ...store.connection import ConnectionLost, RedisError, ResponseError
from ...store.pool import RedisPool
from ..job_run import JobRun
from .ends import Ends
from .leased_payload import LeasedPayload

# How often a job asks for its cursor before it goes back to its queue.
_TRIES: Final = 2


class Cursors:
    """What an iterable job asks of Redis while it runs, in its own thread."""

    def __init__(self, ends: Ends, pool: RedisPool, run: JobRun) -> None:
        self._ends = ends
        self._pool = pool
        self._run = run
        self._jid = str(run.jid or "")
        self._leased = LeasedPayload.of(run)

    def load(self) -> Iteration:
        """How far the job had come when it ran last. Raises IterationStopped if Redis does not say:
        to begin again would repeat what is done; InvalidJob for what is no cursor."""
        key = self._ends.keys.iteration(self._jid)
        for _ in range(_TRIES):
            try:
                with self._pool.connection() as connection:
                    found = connection.call("HGETALL", key)
            except ConnectionLost:
                continue
            except ResponseError as error:
                raise InvalidJob(f"its cursor {key} in Redis cannot be read: {error}") from None
            if found:
                self._mark()
            return read(found)
        raise IterationStopped(None)

    def save(self, reached: Iteration) -> bool:
        """Notes in Redis how far the job has come. Returns whether another process has cancelled
        it. Raises IterationStopped if its lease is gone. While Redis is away nothing is noted."""
        self._mark()
        call = self._ends.save(self._run.unit, self._jid, *self._leased.untold(), reached)
        try:
            with self._pool.connection() as connection:
                reply = connection.script(call.script, call.keys, call.arguments)
        except RedisError:
            return False
        if not reply:
            self._run.unit.lost = True
            raise IterationStopped(None)
        self._leased.told()
        return bool(reply[0])

    def _mark(self) -> None:
        """Has the payload say that the job has a cursor, so that its end deletes that."""
        self._leased.gain(CURSOR, True, VERSION)
