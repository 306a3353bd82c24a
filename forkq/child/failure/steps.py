"""The steps of one run of a job: what is remembered is read at the first, and each step is saved
when it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any, Final

from ...errors import InvalidJob, IterationStopped, LeaseLost
from ...features.steps import parts
from ...features.steps.parts import (
    STEPS,
    VERSION,
    RememberedStep,
    SignalWait,
    done_without_value,
    read,
    read_all,
)
from ...process_state import stopping
from ...runtime.deadlines import DeadlineTable
from ...store.connection import Call, ConnectionLost, RedisError, ResponseError, refused
from ...store.outage import growing_pause
from ...store.pool import RedisPool
from ...store.scripts import STEP_SAVE, STEP_WAIT
from ...wire.lease import UnitOfWork, lease
from ..job_run import JobRun
from .ends import Ends
from .leased_payload import LeasedPayload

# Seconds between two tries while Redis is away.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


def save_call(
    ends: Ends, unit: UnitOfWork, jid: str, payload: bytes, before: int, name: str, *what: bytes
) -> Call:
    """The call that remembers a step of a job that runs. ``what``: is remembered of it, and the
    same without its value. ``payload``: that of its lease from now on, which has had ``before``
    bytes; empty: it stays."""
    queue, keys = unit.queue_name, ends.keys
    names = (keys.inflight(queue), keys.steps(jid), keys.marked)
    leased = (lease(ends.identity, unit.sequence), queue, payload, before)
    bounds = (parts.MOST, parts.MOST_BYTES)
    return Call(STEP_SAVE, names, (*leased, parts.KEPT_FOR, name, *what, *bounds))


def wait_call(
    ends: Ends, unit: UnitOfWork, jid: str, payload: bytes, before: int, wait: SignalWait
) -> Call:
    """The call that looks whether a wait of a job that runs is over. ``payload``, ``before``: as
    for ``save_call``."""
    queue, keys = unit.queue_name, ends.keys
    names = (keys.inflight(queue), keys.steps(jid), keys.marked, keys.event(wait.event))
    leased = (lease(ends.identity, unit.sequence), queue, payload, before)
    return Call(STEP_WAIT, names, (*leased, parts.KEPT_FOR, wait.name, jid, *wait.times()))


class StepMemory:
    """What a job asks of Redis when it comes to its steps, in its own thread or, of a coroutine, in
    another. While Redis is away it waits: to go on would repeat what is done. Each call raises
    LeaseLost once another process has the job, and IterationStopped if the child is to stop while
    Redis is away."""

    def __init__(
        self, ends: Ends, pool: RedisPool, run: JobRun, table: DeadlineTable | None = None
    ) -> None:
        self._table = table
        self._ends = ends
        self._pool = pool
        self._run = run
        self._jid = str(run.jid or "")
        self._leased = LeasedPayload.of(run)

    def load(self) -> dict[str, RememberedStep]:
        """What the job remembers. Raises InvalidJob for what is no memory of a step."""
        self.check_lease()
        found = self._ask(("HGETALL", self._ends.keys.steps(self._jid)))
        if found:
            self.gain()
        return read_all(found)

    def note_unused(self, unused: Callable[[], list[str]]) -> None:
        """Notes what tells which steps the run has not come to, though the job remembers them."""
        self._run.unused_steps = unused

    @contextmanager
    def in_progress(self, name: str) -> Iterator[None]:
        """Around a step: if the process dies in it, the crash record names the step."""
        place = -1 if self._table is None else self._table.note_step(self._run.unit.sequence, name)
        try:
            yield
        finally:
            if self._table is not None:
                self._table.clear_step(place)

    def gain(self) -> None:
        """Has the payload say that the job has steps, so that its end deletes or keeps them."""
        self._leased.gain(STEPS, True, VERSION)

    def save(self, name: str, remembered: bytes) -> bool:
        """Remembers a step. Returns whether there was room for its value."""
        self.gain()
        short = done_without_value()
        payload, before = self._leased.untold()
        what = (payload, before, name, remembered, short)
        reply = self._ask(save_call(self._ends, self._run.unit, self._jid, *what))
        if not reply:
            self._run.unit.lost = True
        self.check_lease()
        self._leased.told()
        return bool(reply == 1)

    def wait(self, wait: SignalWait) -> RememberedStep | None:
        """How a wait has ended; None if it goes on."""
        self.gain()
        call = wait_call(self._ends, self._run.unit, self._jid, *self._leased.untold(), wait)
        reply = self._ask(call)
        if reply == 0:
            self._run.unit.lost = True
        self.check_lease()
        if reply:
            self._leased.told()
        return read(reply) if reply else None

    def check_lease(self) -> None:
        """Raises LeaseLost if another process has the job: nothing that this run does counts."""
        if self._run.unit.lost:
            raise LeaseLost("another process has the job")

    def _ask(self, what: Call | tuple[Any, ...]) -> Any:
        pauses = 0
        while True:
            try:
                with self._pool.connection() as connection:
                    if isinstance(what, Call):
                        return connection.script(what.script, what.keys, what.arguments)
                    return connection.call(*what)
            except ConnectionLost:
                pass
            except ResponseError as error:
                if not refused(error):
                    raise self._unreadable(error) from None
            except RedisError as error:
                raise self._unreadable(error) from None
            self.check_lease()
            if stopping():
                raise IterationStopped(None)
            sleep(growing_pause(pauses, _FIRST_PAUSE, _LONGEST_PAUSE))
            pauses += 1

    def _unreadable(self, error: Exception) -> InvalidJob:
        key = self._ends.keys.steps(self._jid)
        return InvalidJob(f"its steps {key} in Redis cannot be read or written: {error}")
