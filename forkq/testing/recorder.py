"""Takes the pushes of this process, keeps the jobs, and runs them."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from ..features.cancel.parts import fields_about
from ..features.marked import stamped
from ..features.ways import BY_NAME
from ..store.loop.in_thread import in_thread
from ..store.route import EncodedJob, Wait
from ..values import replace
from ..wire.payload import Payload
from ..wire.times import now
from .batches import FakeBatches
from .fake_connection import FakeConnection
from .flows import FakeFlows
from .locks import Locks
from .loops import in_loop_of_test
from .recorded_job import RecordedJob
from .results import RecordedResults
from .steps import MemoryOfTest

if TYPE_CHECKING:
    from .kills import Kills


class Recorder:
    """The channel of all clients while a test records. Thread-safe."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.performed: list[RecordedJob] = []
        self.dead: list[RecordedJob] = []
        self.cancelled: list[RecordedJob] = []
        self._waiting: list[RecordedJob] = []
        self.locks = Locks()
        batches = FakeBatches(self._add_callback)
        self.flows = FakeFlows(batches, self._add_callback, self._call_back)
        self._callbacks: list[RecordedJob] = []  # to be performed at once
        self.results = RecordedResults()
        self.watch, self.unwatch = self.results.tell, self.results.forget
        self.remembered = MemoryOfTest()
        self._given_up: list[tuple[RecordedJob, BaseException]] = []
        self._running: list[str] = []  # the locks of the jobs that run inline
        self._at_once = at_once
        self._lock = threading.RLock()

    def channel(self, url: str) -> Recorder:
        """Returns itself: all pushes come here, for each server."""
        return self

    def push(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """Records the jobs of a push, and performs those that are due if that is the mode. Returns
        that the replicas have them, if it was to wait for that. ``duplicates``: as a
        RedisChannel."""
        self._perform_all(self._added(jobs, duplicates))
        return None if wait is None else True

    async def apush(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """``push``, awaited: a coroutine that is performed runs in the loop of the push, all else
        in a thread of its own. The threads of ``asyncio.to_thread`` are few: jobs that await pushes
        of others would wait for each other."""
        if due := self._added(jobs, duplicates):
            with in_loop_of_test():
                await in_thread(partial(copy_context().run, self._perform_all, due))
        return None if wait is None else True

    def _added(
        self, jobs: Sequence[EncodedJob], duplicates: dict[str, str] | None
    ) -> list[RecordedJob]:
        """Records the jobs of a push. Returns those that are to be performed at once."""
        fresh = self._taken(jobs, {} if duplicates is None else duplicates)
        for job in fresh:
            self.add(job)
        return [job for job in fresh if self._at_once and job.at is None]

    def _perform_all(self, jobs: Sequence[RecordedJob]) -> None:
        for job in jobs:
            if self._may_run(job) and self._take(partial(is_, job), 0.0):
                self._perform_at_once(job)

    def _taken(self, jobs: Sequence[EncodedJob], duplicates: dict[str, str]) -> list[RecordedJob]:
        at = now()
        kept = [job for job in jobs if self.locks.take(job, at, duplicates)]
        for each in kept:
            self.results.await_job(each)
        return [self._recorded(job, at) for job in kept]

    def _recorded(self, job: EncodedJob, at: float) -> RecordedJob:
        """The job of a push at this moment. A debounced one is due when Redis would say so."""
        quiet = job.needs and job.needs.debounce
        if quiet is None:
            index = self.flows.batches.join(job.needs.batch) if job.needs and job.needs.batch else 0
            return RecordedJob.of(stamped(job.payload, job.needs, at, index), job.at)
        first = at
        for place, before in enumerate(self._waiting):
            if before.debounced == job.lock:
                if at < before.first + quiet.most:
                    first = before.first
                else:  # it waits for no further pushes
                    self._waiting[place] = replace(before, first=0.0)
        due = min(at + quiet.after, first + quiet.most)
        return replace(RecordedJob.of(stamped(job.payload, job.needs, due), due), first=first)

    def _may_run(self, job: RecordedJob) -> bool:
        """Whether no job runs after which this one must wait."""
        return not (job.is_latest and job.ticket in self._running)

    def _perform_at_once(self, job: RecordedJob) -> None:
        """Performs a job, and then the newest one that was pushed meanwhile, where at most one of
        these runs."""
        self._running.append(job.ticket)
        try:
            error = self._perform(job)
        finally:
            self._running.remove(job.ticket)
        self._call_back()
        if job.is_latest and (newest := self._take(lambda one: one.ticket == job.ticket, 0.0)):
            self._perform_at_once(newest)
        if error is not None:
            self._given_up.clear()  # the caller of the push learns of it
            raise error

    def connection(self) -> AbstractContextManager[Any]:
        """What stands in the place of a connection: it can cancel jobs, and make batches."""
        return nullcontext(FakeConnection(self))

    def cancel(self, field: str) -> None:
        """Ends the waiting jobs of a field of ``forkq:cancelled``, as the leader does. One that
        runs now goes on: no thread of a test is interrupted."""
        with self._lock:
            ended = [job for job in self._waiting if field in fields_about(job.payload)]
            self._waiting = [job for job in self._waiting if job not in ended]
        for job in ended:
            self.leave(job.payload, "cancelled")
        self.cancelled += ended

    def leave(self, marked: Payload | None, way: str) -> None:
        """Does with what the features of a job have what the table says of this way."""
        self.locks.leave(marked, way)
        self.results.end(marked, way)
        self.flows.batches.end(marked, way)
        self.flows.end(marked, way)
        if marked is not None and BY_NAME[way].cursor == "deleted":
            self.remembered.end(str(marked["jid"]))

    def signal(self, arguments: Sequence[Any]) -> int:
        """What signal_send.lua does, and the leader after it: the jobs that waited are due now."""
        event, data, stays, for_one = arguments
        found = self.remembered.signal(event, data, float(stays), for_one=bool(for_one))
        if found is None:
            return 0
        with self._lock:
            woken = [job for job in self._waiting if job.jid in found]
            self._waiting = [job for job in self._waiting if job.jid not in found]
        for job in woken:
            self.add(job.stamped(now()))
        self._perform_all([job for job in self._waiting if self._at_once and job.jid in found])
        return 1

    def change_batch(self, keys: Sequence[str], arguments: Sequence[Any]) -> bytes:
        """What batch_change.lua does. Performs the callbacks at once if that is the mode."""
        state = self.flows.batches.change(keys, arguments)
        self._call_back()
        return state

    def _add_callback(self, raw: bytes) -> None:
        job = RecordedJob.of(raw)
        self.add(job)
        if self._at_once:
            self._callbacks.append(job)

    def _call_back(self) -> None:
        while self._callbacks:
            self._perform_all([self._callbacks.pop(0)])

    def holder(self, digest: str) -> str:
        """The jid of the job that has that lock, or that waits where at most one does; "" if none
        does."""
        waiting = (job.jid for job in self._waiting if digest in (job.ticket, job.debounced))
        return next(waiting, "") or self.locks.holder(digest)

    def add(self, job: RecordedJob) -> None:
        """Adds ``job`` to those that wait: in the place of the one before it, where at most one
        waits, or that is debounced."""
        with self._lock:
            before = self._waiting_like(job)
            if before is not None:
                self.results.end(self._waiting[before].payload, "replaced")
            if before is not None and self._waiting[before].at is None and job.at is None:
                self._waiting[before] = job
                return
            if before is not None:
                del self._waiting[before]
            insort(self._waiting, job, key=_due_time)

    def add_again(self, job: RecordedJob) -> None:
        """Adds a ``job`` that was run before, unless a newer one waits in its place."""
        with self._lock:
            if self._waiting_like(job) is None:
                self.add(job)

    def _waiting_like(self, job: RecordedJob) -> int | None:
        """The place of the job that waits, where at most one does."""
        lock = job.ticket or job.debounced
        found = (
            place
            for place, other in enumerate(self._waiting)
            if lock and lock in (other.ticket, other.debounced)
        )
        return next(found, None)

    def give_up(self, job: RecordedJob, error: BaseException) -> None:
        """Notes that ``job`` was given up after ``error``."""
        self._given_up.append((job, error))

    def _take(self, fits: Callable[[RecordedJob], bool], until: float) -> RecordedJob | None:
        with self._lock:
            for place, job in enumerate(self._waiting):
                if _due_time(job) > until:
                    return None
                if fits(job):
                    return self._waiting.pop(place)
            return None

    def _perform(self, job: RecordedJob) -> BaseException | None:
        from .perform import perform  # noqa: PLC0415 - most tests need nothing of the child

        kills = self._kills_of_run()
        error = perform(job, self, kills)
        if kills is None or not kills.has_struck:
            return error
        return self._perform_again(job)

    def _kills_of_run(self) -> Kills | None:
        """Where the run that begins now is killed; None if nowhere."""
        return None

    def _perform_again(self, job: RecordedJob) -> BaseException | None:
        """Runs a job as the next child does: the process of its first run was killed."""
        from .perform import perform  # noqa: PLC0415 - as above

        return perform(job, self, None)


def _due_time(job: RecordedJob) -> float:
    return 0.0 if job.at is None else job.at
