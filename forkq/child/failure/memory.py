"""What the jobs of one child remember from one run to the next."""

from __future__ import annotations

from ...runtime.deadlines import DeadlineTable
from ...store.pool import RedisPool
from ..job_run import JobRun
from .cursors import Cursors
from .ends import Ends
from .steps import StepMemory


class JobMemory:
    """Gives each run what its job remembers. Shared by all processors of a child. ``table``: where
    these note, for the master, which step they do."""

    def __init__(self, ends: Ends, pool: RedisPool) -> None:
        self._ends = ends
        self._pool = pool
        self.table: DeadlineTable | None = None

    def cursors(self, run: JobRun) -> Cursors:
        """The cursor of an iterable job."""
        return Cursors(self._ends, self._pool, run)

    def steps(self, run: JobRun) -> StepMemory:
        """The steps of a job that has come to one."""
        return StepMemory(self._ends, self._pool, run, self.table)
