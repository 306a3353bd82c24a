"""The inside of a child without its process: real fetcher, settler and processors, in threads."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from forkq.child.async_manager import AsyncManager
from forkq.child.async_threads import SettlingThreads, WaitingJobs
from forkq.child.coroutine_jobs import CoroutineJobs
from forkq.child.event_loop import EventLoop
from forkq.child.failure.ends import Ends
from forkq.child.failure.settle import Settler
from forkq.child.fetch.fetcher import Fetcher
from forkq.child.fetch_turn import Hand, UnitSource, make_fetch
from forkq.child.heartbeat.stats import Tally
from forkq.child.job_log import make_job_log
from forkq.child.job_way import JobWay
from forkq.child.manager import Manager
from forkq.child.observers import JobObserver
from forkq.child.processor import Processor
from forkq.child.time_limits import TimeLimits
from forkq.config.capsule import Capsule, Kind, weigh
from forkq.features.cancel.parts import NOTHING, Mark
from forkq.limits.rules import Rulebook, Rules
from forkq.runtime.deadlines import DeadlineTable
from forkq.runtime.done_lines import DoneJob, DoneValues
from forkq.store.connection import RedisConnection
from forkq.store.dead_set import DeadSetLimits
from forkq.store.outage import Outage
from forkq.store.pool import RedisPool
from forkq.wire.keys import Keys
from forkq.wire.lease import UnitOfWork, solo_identity
from tests.support.recorded_log import RecordedLog
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

IDENTITY = "vm:4242:0123456789ab"


def is_waiting(fetcher: Fetcher) -> bool:
    """Whether a processor waits until there are jobs."""
    return fetcher._state == "waiting"


class ProcessorThreads:
    """Processors that hand each unit to `work` instead of running a job."""

    def __init__(
        self,
        url: str,
        work: Callable[[UnitOfWork], None] = lambda unit: None,
        *,
        queues: dict[str, int] | None = None,
        concurrency: int = 2,
        identity: str = IDENTITY,
        rules: dict[str, Rules] | None = None,
    ) -> None:
        self.log = RecordedLog()
        book = Rulebook(rules or {})
        self.capsule = Capsule("c", weigh((queues or {"q": 0}).items()), concurrency, rules=book)
        self.identity = identity
        connection = RedisConnection(url, timeout=5)
        weakref.finalize(self, connection.close)
        self.ends = Ends(identity, Keys(), DeadSetLimits(Keys()))
        self.fetch = make_fetch(self.capsule, self.ends, connection, Outage(self.log), self.log)
        self.fetcher, self.leases = self.fetch.fetcher, self.fetch.leases
        self.order: list[bytes] = []
        self.errors: list[BaseException] = []
        self._work = work
        self._threads = [
            threading.Thread(target=self._run, name=f"child-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Quiet, and wait for all of them."""
        self.fetcher.quiet()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(20)
                assert not thread.is_alive(), f"{thread.name} did not end"
        self.fetch.turn.watch.end()
        wait_until(lambda: not self.fetch.turn.watch.runs, what="the end of the watch")
        assert self.errors == []

    def wait_runs(self, count: int, deadline: float | None = None) -> None:
        """Until so many jobs have been performed."""
        wait_until(
            lambda: len(self.order) >= count or self.errors,
            deadline=deadline,
            what=f"{count} runs of {self.capsule.queue_names}",
        )
        assert self.errors == []

    def take(self, hand: Hand | None = None) -> UnitOfWork | None:
        """The next job, as a processor takes it."""
        return self.fetch.turn.take(hand or Hand())

    def _run(self) -> None:
        hand = Hand()
        try:
            while (unit := self.take(hand)) is not None:
                unit.start(threading.get_ident(), 1.0)
                self._work(unit)
                self.order.append(unit.payload)
                self.fetcher.done(unit)
        except BaseException as error:  # noqa: BLE001 - told by stop()
            self.errors.append(error)


def _until_exit(run: Callable[[], None]) -> Callable[[], None]:
    """What a thread runs that one of its calls may end by SystemExit."""

    def ran() -> None:
        with suppress(SystemExit):
            run()

    return ran


class InProcessChild:
    """A whole child but for its process and heartbeat: jobs of the registry are really run. One of
    the ``kind`` "async" has an event loop, and two threads for ``def`` jobs."""

    def __init__(
        self,
        url: str,
        *,
        queue: str = "default",
        concurrency: int = 2,
        dead_max: int = 10_000,
        observers: Sequence[JobObserver] = (),
        job_timeout: float = 0.0,
        job_hard_timeout: float = 0.0,
        table: DeadlineTable | None = None,
        solo: bool = False,
        held: set[str] | None = None,
        rules: dict[str, Rules] | None = None,
        cancelled: Mapping[str, Mark] = NOTHING,
        prefix: str = "",
        kind: Kind = "threads",
    ) -> None:
        self.log = RecordedLog()
        self.keys = Keys(prefix)
        self._solo = solo
        self._held = set() if held is None else held
        book = Rulebook(rules or {})
        capsule = Capsule("c", ((queue, 0),), concurrency, rules=book, kind=kind, threads=2)
        outage = Outage(self.log)
        pool = RedisPool(url, size=concurrency, prefix=prefix, timeout=5, connect_timeout=2)
        self.job_log = make_job_log(self.log, self._write_done)
        self._observers = (self.job_log, *observers)
        self._connection = RedisConnection(url, prefix=prefix)
        identity = solo_identity(IDENTITY) if solo else IDENTITY
        ends = Ends(identity, self.keys, DeadSetLimits(self.keys, dead_max), self._held)
        parts = (capsule, ends, self._connection, outage, self.log)
        self.fetch = make_fetch(*parts, solo=solo, ahead=kind == "threads")
        self.fetcher, self.leases = self.fetch.fetcher, self.fetch.leases
        self.parked = threading.Event()
        self.settler = Settler(self.fetch, pool, on_parked=self.parked.set)
        self.loop = EventLoop(self.log)
        self.limits = TimeLimits(self.log, job_timeout, job_hard_timeout, table, self.loop)
        self.limits.cancelled.update(cancelled)
        self.processors: list[Processor] = []
        self._source: UnitSource | None = None  # of the processors; None: they fetch
        self.settling = SettlingThreads(2, lambda: [0, 0], self.job_log.log_problem)
        for one in self.settling._threads:
            one._thread = threading.Thread(target=_until_exit(one._run), name="settle")
        self._async = self._make_async_manager(capsule) if kind == "async" else None
        if self._async is None:
            self.manager = Manager(concurrency, self.fetch, self._make_processor, self.log)
        else:  # it has what a Manager has
            self.manager = cast("Manager", self._async)
        self._pool = pool

    def _make_async_manager(self, capsule: Capsule) -> AsyncManager:
        tally, portions = Tally(), self.fetch.channel.queues.portions
        self._source = waiting = WaitingJobs(capsule.threads, self.fetch, portions.free)
        log_problem = self.job_log.log_problem
        way = JobWay(
            *(self.fetch, self.settler, self._observers, log_problem, self.limits, tally),
            held=self._held,
        )
        cells, settling = self.limits.unit_cells(capsule.concurrency), self.settling
        parts = (self.settler, self.loop, waiting, settling, cells, portions.begin)
        jobs = CoroutineJobs(self.fetch, way, *parts)
        portions.size = lambda: jobs.room
        threads = Manager(capsule.threads, self.fetch, self._make_processor, self.log, waiting)
        return AsyncManager(self.fetch, jobs, threads, settling, tally, self.log)

    def _write_done(self, done: DoneValues) -> None:
        self.log.info("done", **DoneJob(*done).values())

    def _make_processor(self, name: str, tally: Tally) -> Processor:
        processor = Processor(
            name,
            self.fetch,
            self.settler,
            self._observers,
            self.job_log.log_problem,
            self.limits,
            self.loop,
            tally,
            role="solo" if self._solo else "ordinary",
            held=self._held,
            source=self._source,
        )
        self.processors.append(processor)
        return processor

    def __enter__(self) -> Self:
        self.manager.start()
        self.manager.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def again(self) -> bool:
        """Has Redis told again what it has refused, as the heartbeat does after a pause. Whether
        anything is left."""
        self.leases.endings.hurry()

        def is_told() -> bool:
            count = self.leases.count()
            return not (count.ended or count.due) or not self.fetcher.flush()

        wait_until(is_told, what="Redis to be told")
        return self.leases.count().parked > 0

    def close(self) -> bool:
        """Quiet, interrupt what does not end, give back what is left. Whether Redis took it."""
        self.manager.quiet()
        try:
            wait_until(lambda: self.manager.idle, deadline=20, what="the end of all processors")
        finally:
            returned = self.fetcher.give_back()
            self.fetch.turn.watch.end()
            wait_until(lambda: not self.fetch.turn.watch.runs, what="the end of the watch")
            self.loop.close()
            if self._async is not None:
                self._end_threads(self._async)
            self._pool.close()
            self._connection.close()
        return returned

    def _end_threads(self, manager: AsyncManager) -> None:
        """Ends the threads that in a child end with their process."""
        threads = [one._thread for one in self.settling._threads]
        for _ in threads:
            self.settling.call(0, sys.exit)
        fetching = manager._fetching
        fetching._news.set()  # it looks whether anything runs
        for thread in (*threads, fetching._thread):
            thread.join(20)
            assert not thread.is_alive(), f"{thread.name} did not end"
