"""Telling the history of periodic jobs how each of them ended, and making way for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from ...cron import history
from ...store.connection import ConnectionLost, RedisError
from ...store.pool import RedisPool
from ...store.scripts import CRON_ENDED
from ...wire.keys import Keys
from ...wire.payload import Payload

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Outcome: TypeAlias = Literal["done", "retry", "dead", "dropped"]


class CronOutcomes:
    """Used by all processors, once a job has been settled."""

    def __init__(self, keys: Keys, pool: RedisPool, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._pool = pool
        self._log = log

    def ended(self, job: Payload, outcome: Outcome, elapsed: float) -> None:
        """``job`` ran for ``elapsed`` seconds. Does nothing for a job that no entry has enqueued.

        Never raises: what Redis does not take is a line less in the history, and a note that stays
        is seen through by the clock, which looks for the job itself. A job that the stop has
        interrupted has not ended: it runs again.
        """
        marks = job.get("forkq")
        if type(marks) is dict and "cron" in marks:
            self._tell(marks["cron"], job.get("jid"), outcome, elapsed)

    def _tell(self, name: object, jid: object, outcome: Outcome, elapsed: float) -> None:
        if type(name) is not str or type(jid) is not str:
            return  # a stranger wrote that
        keys = (self._keys.cron_pending, self._keys.cron_runs(name))
        line = history.line(outcome, jid=jid, elapsed=round(elapsed, 3))
        try:
            with self._pool.connection() as connection:
                connection.script(
                    CRON_ENDED, keys, (name, jid, line, history.KEEP, history.EXPIRES)
                )
        except (*ConnectionLost, RedisError, ValueError) as error:
            self._log.debug("the end of a periodic job was not noted", name=name, error=str(error))
