"""The payload of a lease whose job gains needs while it runs: what the end of the job must know."""

from __future__ import annotations

from ...wire.marks import needs_in, with_gained
from ...wire.payload import loads
from ..job_run import JobRun
from .retry import encoded


class LeasedPayload:
    """What Redis has of the payload of one run, and what it does not have yet. The script that
    first needs it writes it there.

    Threads of the job may call it at once, without a lock. Those that gain the same need write the
    same payload. Of two needs the lease may lack the second: the end of this run knows both, and
    after a kill the next run finds what is remembered, and says so again."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._bytes = len(run.unit.payload)
        self._is_told = True

    @classmethod
    def of(cls, run: JobRun) -> LeasedPayload:
        """The payload of this run, which all features of its job share."""
        found = getattr(run, "leased", None)
        if not isinstance(found, cls):
            found = run.leased = cls(run)
        return found

    def gain(self, need: str, value: object, version: int) -> None:
        """Has the payload say that the job needs this, so that its end knows it."""
        run = self._run
        if needs_in(run.marks).get(need) != value:
            job = with_gained(loads(run.unit.payload), need, value, version)
            run.marked_again(job, encoded(run.unit, job))
            self._is_told = False

    def untold(self) -> tuple[bytes, int]:
        """The payload that a script is to write into the lease, empty if it need not; and how many
        bytes the lease has until then."""
        return b"" if self._is_told else self._run.unit.payload, self._bytes

    def told(self) -> None:
        """Notes that Redis has it."""
        self._is_told, self._bytes = True, len(self._run.unit.payload)
