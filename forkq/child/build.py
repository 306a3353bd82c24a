"""Makes the parts of a child, and gives each what it needs of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import msgspec

from .. import default_client, middleware
from ..config.capsule import SETTLING_THREADS, Capsule
from ..config.config import Config
from ..cron.service import service_name
from ..current_job import tell_of_progress
from ..errors import ForkqError
from ..every import entries_by_origin
from ..runtime.assignment import Assignment
from ..runtime.deadlines import DeadlineTable
from ..runtime.log import done_writer
from ..store.connection import RedisConnection
from ..store.dead_set import DeadSetLimits
from ..store.outage import Outage
from ..store.pool import RedisPool
from ..wire.keys import Keys
from ..wire.password_source import PasswordSource
from .async_manager import AsyncManager
from .async_threads import SettlingThreads, WaitingJobs
from .coroutine_jobs import CoroutineJobs, SuspectGroup
from .cron.outcome import CronOutcomes
from .cron.publish import Claim, Publisher, of_shard
from .debugger import NoTimeLimits
from .event_loop import EventLoop
from .failure.ends import Ends
from .failure.retry import AddProblem
from .failure.settle import Settler
from .fetch.channel import FetchChannel
from .fetch.fetcher import Fetcher
from .fetch.leases import Leases
from .fetch_turn import FetchParts, UnitSource, make_fetch
from .heartbeat.beat import Heartbeat, News
from .heartbeat.cancelled import WatchCancelled
from .heartbeat.lost_leases import LostLeases
from .heartbeat.record import Record, describe
from .heartbeat.round_trip import RoundTrip
from .heartbeat.stats import Tally
from .heartbeat.stats_flush import StatsFlusher
from .heartbeat.tasks import (
    FindLostLeases,
    FlushStats,
    HeartbeatTask,
    HoldLocks,
    MeasureServerTime,
    PublishCron,
    PublishParameters,
    Snapshot,
    TakeOrder,
    TellRanTwice,
    WriteRecord,
)
from .job_log import StepsLog, make_job_log
from .job_way import JobWay, Role
from .manager import Manager
from .observers import JobObserver, ReleaseClasses, SoloRuns
from .processor import Processor
from .time_limits import TimeLimits

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


AnyManager: TypeAlias = Manager | AsyncManager


class Parts(msgspec.Struct, frozen=True):
    """What the child's main loop drives. ``runs`` are the runs of suspects, in a child that runs
    some."""

    fetcher: Fetcher
    leases: Leases
    manager: AnyManager
    heartbeat: Heartbeat
    limits: TimeLimits
    runs: SoloRuns


class _Also(TypedDict):
    role: Role
    held: set[str]
    source: UnitSource | None


# What a JobWay is told of, and calls, besides the fetcher.
_WayParts: TypeAlias = "tuple[Settler, list[JobObserver], AddProblem, TimeLimits]"


class Builder:
    """Makes the parts of one child.

    ``on_order`` gets what a web UI asked of this child, in the heartbeat's thread; ``is_quiet``
    tells whether the child fetches nothing more; ``held`` are the classes whose jobs run alone;
    ``loop`` runs the coroutines of jobs.
    """

    def __init__(
        self,
        config: Config,
        assignment: Assignment,
        capsule: Capsule,
        log: FilteringBoundLogger,
        *,
        on_order: Callable[[str], None],
        is_quiet: Callable[[], bool],
        held: set[str],
        loop: EventLoop,
    ) -> None:
        self._config = config
        self._assignment = assignment
        self._capsule = capsule
        self._log = log
        self._on_order = on_order
        self._is_quiet = is_quiet
        self._held = held
        self._loop = loop
        self._identity = assignment.identity
        self._keys = Keys(config.redis.prefix)
        self._outage = Outage(log)
        self._news = News()  # makes the heartbeat beat at once
        tell_of_progress(self._news.note_progress)

    def build(self) -> Parts:
        """Makes all parts. Raises ForkqError if the app's periodic jobs contradict each other."""
        pool = RedisPool(size=self._capsule.job_threads, **_how_to_connect(self._config))
        fetch = self._make_fetch()
        settler = Settler(fetch, pool, on_parked=self._news.set)
        limits = self._make_limits(settler)
        runs = SoloRuns(limits.waker)
        manager = self._make_manager(fetch, settler, pool, limits, runs)
        heartbeat = self._make_heartbeat(fetch, settler, manager, limits)
        return Parts(fetch.fetcher, fetch.leases, manager, heartbeat, limits, runs)

    def _connection(self) -> RedisConnection:
        return RedisConnection(**_how_to_connect(self._config))

    def _make_fetch(self) -> FetchParts:
        fetch = make_fetch(
            self._capsule,
            self._make_ends(),
            self._connection(),
            self._outage,
            self._log,
            solo=self._assignment.solo,
            ahead=not self._capsule.is_async,
        )
        fetch.channel.on_writes_lost = self._news.set
        return fetch

    def _make_limits(self, settler: Settler) -> TimeLimits:
        soft, hard = self._capsule.job_timeout, self._capsule.job_hard_timeout
        files = self._assignment.files
        if self._config.development.foreground:
            return NoTimeLimits(self._log)
        processors = None if self._assignment.substitute else self._capsule.places
        table = None if files is None else DeadlineTable(files.deadlines, processors)
        if table is not None:
            self._loop.note_in(table)
        settler.memory.table = table
        return TimeLimits(self._log, soft, hard, table, self._loop)

    def _make_ends(self) -> Ends:
        dead_set = DeadSetLimits(self._keys, self._config.dead_max, self._config.dead_days)
        return Ends(self._identity, self._keys, dead_set, self._held)

    def _make_manager(
        self,
        fetch: FetchParts,
        settler: Settler,
        pool: RedisPool,
        limits: TimeLimits,
        runs: SoloRuns,
    ) -> AnyManager:
        job_log = make_job_log(self._log, done_writer(), self._config.log.done_every)
        observers: list[JobObserver] = [
            job_log,
            StepsLog(self._log),
            CronOutcomes(self._keys, pool, self._log),
        ]
        role: Role = "ordinary"
        if self._assignment.solo:
            role = "sole" if self._assignment.sole else "solo"
            observers.append(ReleaseClasses(self._held, self._keys, pool, self._log))
            observers.append(runs)
        parts = (settler, observers, job_log.log_problem, limits)
        if self._capsule.is_async:
            return self._make_async_manager(fetch, parts, role, runs)
        return self._make_threads(self._capsule.concurrency, fetch, parts, role)

    def _make_threads(
        self,
        count: int,
        fetch: FetchParts,
        parts: _WayParts,
        role: Role,
        source: UnitSource | None = None,
    ) -> Manager:
        def make_processor(name: str, tally: Tally) -> Processor:
            also: _Also = {"role": role, "held": self._held, "source": source}
            return Processor(name, fetch, *parts, self._loop, tally, **also)

        return Manager(count, fetch, make_processor, self._log, source)

    def _make_async_manager(
        self, fetch: FetchParts, parts: _WayParts, role: Role, runs: SoloRuns
    ) -> AsyncManager:
        _refuse_middleware(self._capsule.name)
        settler, _, log_problem, limits = parts
        capsule, portions, tally = self._capsule, fetch.channel.queues.portions, Tally()
        waiting = WaitingJobs(capsule.threads, fetch, portions.free)
        way = JobWay(fetch, *parts, tally, role=role, held=self._held)
        settling = SettlingThreads(SETTLING_THREADS, lambda: limits.start_cells()[0], log_problem)
        cells = limits.unit_cells(capsule.concurrency)
        group = self._make_group(fetch, role, runs)
        jobs = CoroutineJobs(
            fetch, way, settler, self._loop, waiting, settling, cells, portions.begin, group
        )
        portions.size = lambda: jobs.room
        threads = self._make_threads(capsule.threads, fetch, parts, role, waiting)
        return AsyncManager(fetch, jobs, threads, settling, tally, self._log)

    def _make_group(self, fetch: FetchParts, role: Role, runs: SoloRuns) -> SuspectGroup | None:
        """The group of suspects that a solo child runs; beside a sole one nothing runs."""
        if role == "ordinary":
            return None
        most = 1 if role == "sole" else self._capsule.concurrency
        group = SuspectGroup(fetch.leases, most, fetch.channel.queues.portions.free)
        runs.on_end = group.note_end
        return group

    def _make_heartbeat(
        self, fetch: FetchParts, settler: Settler, manager: AnyManager, limits: TimeLimits
    ) -> Heartbeat:
        lost_leases = LostLeases(self._identity, self._keys, fetch, self._log, manager.lose)

        def snapshot() -> Snapshot:
            totals = manager.tally(lost_leases.ran_twice(), self._assignment.ended)
            units = list(fetch.leases.units().values())
            return Snapshot(units, totals, self._is_quiet(), self._outage.refused)

        def retry_parked() -> bool:
            if self._is_quiet():
                fetch.fetcher.flush()
            return settler.again_in_time()

        info = describe(self._identity, self._config, self._capsule)
        crowded = self._capsule.is_async
        blocks = self._loop.blocks
        blocks.listeners.append(self._news.set)
        blocking = lambda: blocks.now  # noqa: E731
        record = Record(self._identity, self._keys, info, crowded=crowded, blocking=blocking)
        end_cancelled = lambda: limits.end_cancelled(manager.regions)  # noqa: E731
        known = (self._keys, limits.cancelled, self._log)
        cancelled = WatchCancelled(*known, end_cancelled, limits.paused)
        return Heartbeat(
            self._connection(),
            [*self._make_tasks(record, fetch.channel, lost_leases), cancelled],
            self._outage,
            self._outage.add_refusal("redis takes no heartbeat", "redis takes heartbeats again"),
            self._log,
            snapshot=snapshot,
            retry_parked=retry_parked,
            send_progress=lambda connection, now: record.write_progress(connection, now.units),
            news=self._news,
            cancelled=cancelled,
        )

    def _make_tasks(
        self, record: Record, channel: FetchChannel, lost_leases: LostLeases
    ) -> list[HeartbeatTask]:
        """Makes the tasks of the heartbeat. The record comes first: all else can wait."""
        round_trip = RoundTrip(self._log)

        def find_lost(connection: RedisConnection) -> None:
            channel.note_queues_again()
            lost_leases.look(connection)

        find = FindLostLeases(find_lost, self._log)
        tell = TellRanTwice(lost_leases.tell, self._log)
        flush = FlushStats(StatsFlusher(self._identity, self._keys, self._log))
        publish = PublishCron(self._make_publisher().publish, self._log)
        parameters = PublishParameters(self._keys, self._identity, self._log)
        return [
            MeasureServerTime(),
            WriteRecord(record, round_trip, after_gap=(find, flush, publish, parameters)),
            HoldLocks(self._keys, self._log),
            find,
            tell,
            TakeOrder(record, round_trip, self._on_order),
            flush,
            publish,
            parameters,
        ]

    def _make_publisher(self) -> Publisher:
        config = self._config
        claim = Claim(self._keys, service_name(config.tag, config.app), self._assignment, self._log)
        return Publisher(
            self._keys,
            of_shard(entries_by_origin(config), config, self._log),
            self._log,
            worked_on=config.queue_names,
            newest=claim.renew,
        )


def _refuse_middleware(capsule: str) -> None:
    """Raises ForkqError for middleware that calls the job, and so cannot wait for a coroutine."""
    if odd := middleware.server.with_call():
        raise ForkqError(
            f"the capsule {capsule!r} is async, and the server middleware {', '.join(odd)} runs "
            "jobs by call(), so it cannot be around a coroutine: write a generator function of "
            "(job) that yields once, or serve the queues by a capsule of threads"
        )


class _HowToConnect(TypedDict):
    url: str
    prefix: str
    timeout: float
    connect_timeout: float
    password_source: PasswordSource | None


def _how_to_connect(config: Config) -> _HowToConnect:
    """The function that makes this child's connections."""
    return {
        "url": default_client.address(config),
        "prefix": config.redis.prefix,
        "timeout": config.redis.timeout,
        "connect_timeout": config.redis.connect_timeout,
        "password_source": config.redis.password_source,
    }
