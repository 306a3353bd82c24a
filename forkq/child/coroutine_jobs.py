"""The jobs of an async capsule: the child's event loop takes units, a batch at a time, and runs the
coroutine of each.

Nothing blocks the loop here: what may block is left to a settling thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from typing import Final

from .. import registry
from ..current_job import enter_job, leave_job
from ..errors import MalformedPayload
from ..registry import JobSpec
from ..runtime.deadlines import UnitCells
from ..wire.lease import UnitOfWork
from ..wire.marks import KEY, NEEDS, most_together
from ..wire.payload import loads
from ..wire.printable import keep_texts
from ..wire.times import now
from .async_threads import SettlingThreads, WaitingJobs
from .event_loop import EventLoop
from .failure.settle import Settler, Unread
from .fetch.leases import Leases
from .fetch_turn import FetchParts
from .interrupt import InterruptRegion
from .job_run import JobRun
from .job_task import JobTask
from .job_way import JobWay

# So many jobs begin before the loop does what else is due. The objects of those that never wait are
# then gone before more are made, and Python's garbage collector has less to look through.
_AT_A_TIME: Final = 50
_NEEDS: Final = f'"{NEEDS}"'.encode()


class SuspectGroup:
    """Which suspects run together in a solo child of an async capsule, ``most`` at once.

    The first one says how many: those that were in progress together in a death that says little of
    each run in groups of half as many, so the groups of the guilty one shrink until it runs alone.
    One that does not fit goes back, and nothing more is fetched until the group has ended: then it
    is the first. ``on_room`` is called when more may come. Thread-safe.
    """

    def __init__(self, leases: Leases, most: int, on_room: Callable[[], None]) -> None:
        self._leases = leases
        self._most = most
        self._on_room = on_room
        self._lock = threading.RLock()
        self._bounds: dict[int, int] = {}  # how many may run beside each, by sequence number
        self._is_closed = False
        leases.capacity = 1

    def admit(self, unit: UnitOfWork, bound: int) -> bool:
        """Whether the suspect may run now, beside ``bound`` - 1 others at most."""
        with self._lock:
            self._forget_ended()
            others = self._bounds.values() if unit.sequence not in self._bounds else ()
            is_full = len(others) >= min([bound, self._most, *others])
            self._is_closed = self._is_closed or is_full
            if not self._is_closed:
                self._bounds[unit.sequence] = bound
            self._set_capacity()
            return unit.sequence in self._bounds

    def note_end(self) -> None:
        """Notes that a suspect has ended."""
        with self._lock:
            self._forget_ended()
            self._set_capacity()

    def _forget_ended(self) -> None:
        running = self._leases.units().keys() - self._leases.endings.moving.keys()
        self._bounds = {n: bound for n, bound in self._bounds.items() if n in running}
        self._is_closed = self._is_closed and bool(self._bounds)

    def _set_capacity(self) -> None:
        before, count = self._leases.capacity, len(self._bounds)
        fitting = min([self._most, *self._bounds.values()]) if count else 1
        self._leases.capacity = max(1, count) if self._is_closed else fitting
        if self._leases.capacity > before:
            self._on_room()


class WakeOnce:
    """Wakes the fetching thread when jobs have ended: in the loop's thread once, by ``wake_now``,
    after all that is due in the loop. So one exchange tells of all that end in one turn."""

    def __init__(self, loop: EventLoop, wake_now: Callable[[], None]) -> None:
        self._loop = loop
        self._wake_now = wake_now
        self._is_due = False

    def wake(self) -> None:
        """Wakes it soon; at once if another thread calls."""
        if self._loop.thread is not threading.current_thread():
            self._wake_now()
        elif not self._is_due:
            self._loop.call_started(self._do)  # the next loop calls it if this one dies
            self._is_due = True

    def _do(self) -> None:
        self._is_due = False
        self._wake_now()


class _Batch:
    """Units on their way to the loop. The first ``begun`` ones are dealt with; of these, those that
    must go back to their queues are ``left``."""

    __slots__ = ("begun", "left", "units")

    def __init__(self, units: Sequence[UnitOfWork]) -> None:
        self.units = units
        self.begun = 0
        self.left: list[UnitOfWork] = []


class CoroutineJobs:
    """What the loop runs. ``waiting`` gets the ``def`` jobs, for the threads. What neither runs nor
    waits goes back to the head of its queue, and ``on_full`` gets the names of these queues.
    ``cells``: where the master reads which units are in progress. ``group``: of suspects, in a solo
    child."""

    def __init__(
        self,
        fetch: FetchParts,
        way: JobWay,
        settler: Settler,
        loop: EventLoop,
        waiting: WaitingJobs,
        settling: SettlingThreads,
        cells: UnitCells,
        on_full: Callable[[Iterable[str]], None],
        group: SuspectGroup | None = None,
    ) -> None:
        self._group = group
        self._fetch = fetch
        fetch.leases.wake = WakeOnce(loop, fetch.leases.wake).wake
        self._way = way
        way.pause = self._pause
        self._pauses: deque[tuple[float, object]] = deque()  # until when (monotonic), and whose
        self._settler = settler
        self._loop = loop
        self._waiting = waiting
        self._settling = settling
        self._cells = cells
        self._on_full = on_full
        self._is_quiet = False
        self._coming: dict[_Batch, int] = {}  # how large batches are on their way to the loop
        self._places: dict[int, int] = {}  # in the cells, of all that are here, by sequence number
        self._lock = threading.RLock()  # of all regions
        self._regions: dict[int, InterruptRegion] = {}  # of those that run

    # Any thread may call

    def begin_soon(self, units: Sequence[UnitOfWork]) -> None:
        """Has the loop begin these jobs, the oldest first. One that it knows is left out."""
        batch = _Batch(units)
        self._coming[batch] = len(units)
        self._loop.call_started(partial(self._begin_some, batch))

    def quiet(self) -> None:
        """Lets no job begin any more: those that come, or wait for a thread, go back."""
        self._is_quiet = True
        batch = _Batch(())
        self._coming[batch] = 0
        self._loop.call_started(partial(self._return_waiting, batch))

    def end_pauses(self) -> None:
        """Ends the pauses that are over: their places are free again."""
        while self._pauses and self._pauses[0][0] <= monotonic():
            self._fetch.leases.occupy(self._pauses.popleft()[1], on=False)

    @property
    def regions(self) -> list[InterruptRegion]:
        """The region of each coroutine that runs."""
        return list(self._regions.copy().values())

    @property
    def room(self) -> int:
        """How many more ``def`` jobs may come: some may be on their way."""
        return max(0, self._waiting.room - sum(self._coming.copy().values()))

    @property
    def is_empty(self) -> bool:
        """Whether no job is here, or on its way to the loop."""
        return not self._coming and not self._places

    # In the loop's thread

    def _begin_some(self, batch: _Batch) -> None:
        """Begins some jobs of a batch; more follow once these have done their first steps. What
        must go back waits until all are begun: it goes back in order."""
        with self._not_lost(batch):
            some = batch.units[batch.begun : batch.begun + _AT_A_TIME]
            batch.begun += len(some)
            batch.left += [unit for unit in some if not self._begin(unit)]
            if batch.begun < len(batch.units):
                self._loop.call_started(partial(self._begin_some, batch))
            else:
                self._return(batch.left)
                self._coming.pop(batch, None)

    def _return_waiting(self, batch: _Batch) -> None:
        if any(self._coming.values()):  # they are younger: they go back first
            self._loop.call_started(partial(self._return_waiting, batch))
            return
        batch.units = self._waiting.end()
        with self._not_lost(batch):
            self._return(batch.units)
            self._coming.pop(batch, None)

    @contextmanager
    def _not_lost(self, batch: _Batch) -> Iterator[None]:
        """If an exception of the app strikes the loop in this block, a settling thread returns what
        has no other way."""
        try:
            yield
        except BaseException:
            self._settling.call(0, partial(self._return_lost, batch))
            raise

    def _begin(self, unit: UnitOfWork) -> bool:
        """Begins a job, or has it wait for a thread. False if it must go back."""
        if unit.sequence in self._places or self._waiting.knows(unit):
            return True
        if self._is_quiet:
            return False
        run = self._way.new_run(unit, unit)
        try:
            return self._sort(run) if unit.payload else self._have_read(run)
        except BaseException as error:  # noqa: BLE001 - each job ends with an outcome
            self._break_off(run, error)
        return True

    def _have_read(self, run: JobRun) -> bool:
        self._enter(run)
        self._on_thread(run, self._read)
        return True

    def _sort(self, run: JobRun) -> bool:
        """Runs a coroutine here, and has a ``def`` job wait for a thread. False if it must go
        back."""
        try:
            run.job = loads(run.unit.payload)
        except MalformedPayload as error:
            self._enter(run)
            self._settle(run, error)
            return True
        spec = registry.find(run.job["class"])
        if self._group is not None and not self._is_admitted(self._group, run, spec):
            self._leave(run)
            return False
        if spec is not None and not spec.is_async:
            self._leave(run)
            return not self._is_quiet and self._waiting.offer(run.unit)
        self._enter(run)
        if run.unit.left_bytes or _NEEDS in run.unit.payload:
            self._on_thread(run, self._open)
        else:
            region = InterruptRegion(self._lock)
            if (verdict := self._way.open(run, region)) is None:
                self._run(region, run)
            else:
                self._settle(run, verdict)
        return True

    def _is_admitted(self, group: SuspectGroup, run: JobRun, spec: JobSpec | None) -> bool:
        """Whether the job may run beside those that are here. A ``def`` job that is a suspect runs
        alone."""
        assert run.job is not None
        is_sync = spec is not None and not spec.is_async
        bound = 1 if is_sync else most_together(run.job.get(KEY))
        return group.admit(run.unit, bound)

    def _enter(self, run: JobRun) -> None:
        """Notes that the job is in progress here: the master reads it when this process dies."""
        unit = run.unit
        if unit.sequence not in self._places:
            unit.taken = monotonic()
            self._places[unit.sequence] = self._cells.note(unit.sequence, unit.taken)
            unit.start(unit.sequence, now())

    def _leave(self, run: JobRun) -> None:
        """Notes that the job is settled, or is not one of the loop's."""
        if (place := self._places.pop(run.unit.sequence, None)) is not None:
            self._cells.clear(place)
            run.unit.thread = 0

    def _run(self, region: InterruptRegion, run: JobRun) -> None:
        Context().run(self._run_in_context, region, run)

    def _run_in_context(self, region: InterruptRegion, run: JobRun) -> None:
        job, unit = run.job, run.unit
        assert job is not None
        view = enter_job(job, run)
        coroutine = self._way.perform(run, view)
        task = JobTask(coroutine, view, unit.sequence, partial(self._ended, run, region))
        region.task = task
        region.enter(run.time_limit, run)
        self._regions[unit.sequence] = region
        self._loop.begin_here(task)

    def _ended(self, run: JobRun, region: InterruptRegion, task: JobTask) -> None:
        try:
            if task.error is not None:
                keep_texts(task.error)  # its own code, so the job's limits still count
            cut_short, region.task = region.leave(), None
            self._regions.pop(run.unit.sequence, None)
            run.note_heard(heard=task.was_interrupted)
            self._settle(run, self._way.outcome(run, task.outcome, cut_short))
        except BaseException as error:  # noqa: BLE001 - as above
            self._break_off(run, error)

    def _settle(self, run: JobRun, error: BaseException | None) -> None:
        """Settles a plain job that has ended well. All others ask Redis, or call the app, whose
        handlers have the context of the job."""
        if error is None and run.marks is None:
            self._way.settle(run, None)
            self._leave(run)
        else:
            context = copy_context()
            context.run(leave_job)
            settle = partial(self._settle_there, error=error)
            self._on_thread(run, lambda run: context.run(settle, run))

    def _break_off(self, run: JobRun, error: BaseException) -> None:
        """Settles a job whose way was ended early by an error in forkq."""

        def last_resort(run: JobRun) -> None:
            self._way.last_resort(run, error)
            self._leave(run)

        self._regions.pop(run.unit.sequence, None)
        self._enter(run)
        self._on_thread(run, last_resort)

    def _guarded_in_loop(self, run: JobRun, go_on: Callable[[JobRun], None]) -> None:
        try:
            go_on(run)
        except BaseException as error:  # noqa: BLE001 - each job ends with an outcome
            self._break_off(run, error)

    def _sort_large(self, run: JobRun) -> None:
        if not self._sort(run):
            self._return([run.unit])

    def _return(self, units: Sequence[UnitOfWork]) -> None:
        """Returns these, of which the oldest is the first, to the head of their queues."""
        if not units:
            return
        if not self._is_quiet and self._group is None:
            # First: else a fetch brings the first that are back.
            self._on_full({unit.queue_name for unit in units})
        with self._waiting.closed():
            for unit in reversed(units):
                if unit.left_bytes:
                    unit.payload = b""
                self._fetch.fetcher.done(unit, self._fetch.ends.return_to_queue(unit))

    # In a settling thread

    def _return_lost(self, batch: _Batch) -> None:
        """Returns the units that have neither begun nor ended, and do not wait for a thread."""
        try:
            known = self._fetch.leases.units()
            here = [unit for unit in batch.units if known.get(unit.sequence) is unit]
            begun = {*self._places, *self._fetch.leases.endings.moving}
            self._return(
                [u for u in here if u.sequence not in begun and not self._waiting.knows(u)]
            )
        finally:
            self._coming.pop(batch, None)

    def _on_thread(self, run: JobRun, work: Callable[[JobRun], None]) -> None:
        """Has a settling thread call ``work``."""
        self._settling.call(run.unit.sequence, partial(self._guarded, run, work))

    def _guarded(self, run: JobRun, work: Callable[[JobRun], None]) -> None:
        try:
            work(run)
        except BaseException as error:  # noqa: BLE001 - each job ends with an outcome
            self._way.last_resort(run, error)
            self._leave(run)

    def _read(self, run: JobRun) -> None:
        try:
            run.unit.payload = self._settler.read(run.unit)
        except (Unread, MalformedPayload) as problem:
            self._settle_there(run, problem)
        else:
            self._loop.call_started(partial(self._guarded_in_loop, run, self._sort_large))

    def _open(self, run: JobRun) -> None:
        region = InterruptRegion(self._lock)
        verdict = self._way.open(run, region)
        if verdict is not None:
            self._settle_there(run, verdict)
        else:
            begin = partial(self._run, region)
            self._loop.call_started(partial(self._guarded_in_loop, run, begin))

    def _pause(self, consumer: object, seconds: float) -> None:
        """Keeps the place of a job that has gone elsewhere for that long. No thread waits: others
        settle jobs with it."""
        self._fetch.leases.occupy(consumer, on=True)
        self._pauses.append((monotonic() + seconds, consumer))

    def _settle_there(self, run: JobRun, error: BaseException | None) -> None:
        self._way.settle(run, error)
        self._leave(run)
