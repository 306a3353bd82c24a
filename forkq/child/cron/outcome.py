"""The history of periodic jobs: a child notes how each run ended, which lets the next tick in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ...cron import history
from ...features.marked import EndOutcome
from ...store.connection import RedisError
from ...store.pool import RedisPool
from ...store.scripts import CRON_ENDED
from ...wire.keys import Keys
from ..failure.retry import Bury, Decision, Drop, End, Retry, Snoozed
from ..job_run import JobRun
from ..observers import JobObserver, Said

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Outcome: TypeAlias = Literal["done", "retry", "dead", "dropped"] | EndOutcome

_OUTCOMES: Final[dict[type[Decision], Outcome]] = {Retry: "retry", Bury: "dead", Drop: "dropped"}


def _outcome(decision: Decision) -> Outcome:
    return decision.outcome if isinstance(decision, End) else _OUTCOMES[type(decision)]


class CronOutcomes(JobObserver):
    """Shared by all processors of a child. A job that no entry has enqueued costs nothing.

    An interrupted job has not ended: it runs again. A unit whose lease is lost runs elsewhere, and
    its entry waits for that run.
    """

    only_marked = True

    def __init__(self, keys: Keys, pool: RedisPool, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._pool = pool
        self._log = log

    def done(self, run: JobRun) -> None:
        self._note(run, "done")

    def failed(self, run: JobRun, error: BaseException, decision: Decision) -> None:
        if run.marks is not None:
            self._note(run, _outcome(decision))

    def ended(self, run: JobRun, outcome: EndOutcome) -> None:
        self._note(run, outcome)

    def decided(self, run: JobRun, said: Said, decision: Snoozed | End) -> None:
        if run.marks is not None:
            self._note(run, said.outcome)

    def _note(self, run: JobRun, outcome: Outcome) -> None:
        name = run.marks.get("cron") if type(run.marks) is dict else None
        if type(name) is not str or type(run.jid) is not str or run.unit.lost:
            return  # not a periodic job, or not written by forkq
        line = history.line(outcome, jid=run.jid, elapsed=round(run.elapsed, 3))
        self._write(name, run.jid, line)

    def _write(self, name: str, jid: str, line: bytes) -> None:
        """If Redis does not take it, the history lacks a line, and the entry's latest jid stays
        noted. The clock does not rely on that note: it looks for the job."""
        keys = (self._keys.cron_pending, self._keys.cron_runs(name))
        try:
            with self._pool.connection() as connection:
                connection.script(
                    CRON_ENDED, keys, (name, jid, line, history.KEEP, history.EXPIRES)
                )
        except (RedisError, ValueError) as error:
            self._log.debug("the end of a periodic job was not noted", name=name, error=str(error))
