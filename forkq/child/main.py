"""A child's life: load the app, fetch and perform until told otherwise, leave nothing behind.

The main thread listens to the master and keeps time; it runs no job and never waits for Redis
while jobs run.
"""

from __future__ import annotations

import os
import signal
import time
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final

from setproctitle import setproctitle

from .. import client, registry
from ..config.capsule import Capsule
from ..config.config import Config
from ..errors import ForkqError
from ..every import entries_by_origin, service_of
from ..process_state import announce_stopping, lead
from ..runtime import log
from ..runtime.app_loader import load_app
from ..runtime.assignment import Assignment, listen_to_term
from ..runtime.exit_codes import CANNOT_BOOT, CLEAN, LEASES_LEFT
from ..runtime.pipe import (
    Beat,
    DumpStacks,
    Exiting,
    Lead,
    Order,
    Quiet,
    Reader,
    Ready,
    State,
    send,
    unbootable,
)
from ..runtime.stack_dump import dump_stacks
from ..store.connection import RedisConnection, RedisPool
from ..store.dead_set import DeadSet
from ..store.outage import Outage
from ..wire.keys import Keys
from .boot import BootWatch, start_threads, story
from .cron.claim import Claim
from .cron.outcome import CronOutcomes
from .cron.publish import Publisher
from .failure.settle import Settler
from .fetch.fetch_connection import FetchConnection
from .fetch.fetcher import Fetcher
from .fetch.lost_leases import LostLeases
from .heartbeat.beat import Heartbeat, HeartbeatHooks, Snapshot
from .heartbeat.record import Record, describe
from .heartbeat.stats_flush import StatsFlusher
from .job_log import make_job_log
from .lifecycle import Election, call_handlers
from .manager import Manager
from .processor import Processor

_TICK: Final = 1.0
_BRISK_TICK: Final = 0.02
_FAREWELL: Final = 1.0
# How long a slow reader of the log may hold up a line before it is dropped.
_PATIENCE: Final = 1.0
# How long after its deadline a child that nobody killed ends itself.
_SELF_HELP: Final = 4.0


def main(config: Config, assignment: Assignment) -> int:
    """CronOutcomes a child from the fork to its exit code."""
    woken = listen_to_term(assignment)
    setproctitle(f"forkq child {assignment.name} [booting]")
    log.bind(pid=os.getpid(), capsule=assignment.name)
    log.wait_for_reader(_PATIENCE)
    watch = BootWatch(assignment, woken, log.logger())
    try:
        watch.start()
        call_handlers("fork", log.logger())
        client.serve(config)  # before the app, which may have its own say
        load_app(config.app)
        if not registry.names():
            log.logger().warning("the app has registered no job", app=list(config.app))
        assert assignment.capsule is not None
        child = Child(config, assignment, assignment.capsule, woken, watch.orders)
        for handler in registry.handlers("startup"):
            handler()
        start_threads(child.start)
    except ForkqError as error:
        send(assignment.report, unbootable(str(error)))
        return CANNOT_BOOT
    except BaseException as error:  # noqa: BLE001 - the app may raise anything, SystemExit too
        send(assignment.report, unbootable(story(error)))
        return CANNOT_BOOT
    watch.end()
    return child.run(quiet=watch.quiet)


class Child:
    """The parts of one child, and its main loop."""

    def __init__(
        self,
        config: Config,
        assignment: Assignment,
        capsule: Capsule,
        woken: int,
        told: Reader[Order],
    ) -> None:
        self._assignment = assignment
        self._capsule = capsule
        self._woken = woken
        self._timeout = config.timeout
        self._beat_every = config.beat_every
        self._log = log.logger()
        self._orders = told
        self._identity = assignment.identity
        self._state: State = "running"
        self._deadline: float | None = None
        self._interrupted = False
        self._told: Beat | None = None
        self._next_beat = 0.0
        self._election = Election(self._log)
        self._assemble(config)
        self._selector = DefaultSelector()
        self._selector.register(self._orders, EVENT_READ)
        self._selector.register(woken, EVENT_READ)

    def _assemble(self, config: Config) -> None:
        """Makes the parts and hands each what it needs of the others."""
        capsule, keys, outage = self._capsule, Keys(config.redis.prefix), Outage(self._log)
        dead_set = DeadSet(keys, config.dead_max, config.dead_days)
        job_log = make_job_log(self._log)
        pool = RedisPool(size=capsule.concurrency, **_connecting(config))
        observers = [job_log, CronOutcomes(keys, pool, self._log)]
        line = FetchConnection(
            capsule, self._identity, keys, RedisConnection(**_connecting(config)), self._log
        )
        self._fetcher = Fetcher(capsule, line, outage)
        self._settler = Settler(
            self._identity, keys, pool, self._fetcher, dead_set, outage, on_parked=self._hurry
        )
        self._manager = Manager(
            capsule.concurrency,
            self._fetcher,
            lambda name, tally: Processor(
                name, self._fetcher, self._settler, observers, job_log.complain, tally
            ),
            self._log,
        )
        self._losses = LostLeases(self._identity, keys, self._fetcher, self._log)
        self._heartbeat = self._make_heartbeat(config, keys, outage)
        self._fetcher.report_gaps(self._heartbeat.soon)

    def _make_heartbeat(self, config: Config, keys: Keys, outage: Outage) -> Heartbeat:
        household = HeartbeatHooks(
            snapshot=self._snapshot,
            on_signal=self._obey_web,
            on_gap=self._find_gap,
            publish=_publisher(config, keys, self._assignment, self._log).publish,
            chores=self._chores,
        )
        return Heartbeat(
            RedisConnection(**_connecting(config)),
            Record(self._identity, keys, describe(self._identity, config, self._capsule)),
            StatsFlusher(self._identity, keys, self._log),
            household,
            outage,
            Outage(self._log, "redis takes no heartbeat", "redis takes heartbeats again"),
            self._log,
        )

    def _snapshot(self) -> Snapshot:
        tally = self._manager.tally(self._losses.count)
        return Snapshot(self._fetcher.in_flight(), tally, self._state != "running")

    def start(self) -> None:
        """Starts all threads. The processors fetch nothing before ``run``: a child that is short of
        threads must not hold a lease. Raises RuntimeError."""
        self._heartbeat.start()
        self._manager.start()

    def run(self, *, quiet: bool) -> int:
        """Performs jobs until the master, a signal or the master's death ends it."""
        if quiet:
            self._go_quiet("quiet")
        send(self._assignment.report, Ready(self._identity))  # before a job can end this process
        self._tell()
        self._manager.open()
        while not self._over():
            self._listen()
            self._enforce()
            self._tell()
            log.catch_up()
        return self._leave()

    def _over(self) -> bool:
        return self._state in ("stopping", "retiring") and (self._manager.idle or self._hopeless())

    def _hopeless(self) -> bool:
        """Whether jobs ignore the stop, and the master did not end them for us."""
        return self._deadline is not None and time.monotonic() > self._deadline + _SELF_HELP

    def _listen(self) -> None:
        """Waits for an order, a signal or the next tick, and obeys."""
        tick = min(_TICK, self._beat_every)
        pause = tick if self._state in ("running", "quiet") else _BRISK_TICK
        for key, _ in self._selector.select(pause):
            if key.fd == self._woken:
                self._obey_signals()
            else:
                for order in self._orders.read():
                    self._obey(order)
                if self._orders.over:
                    self._orphaned()

    def _obey(self, order: Order) -> None:
        if isinstance(order, Quiet):
            self._go_quiet("quiet")
        elif isinstance(order, DumpStacks):
            dump_stacks(self._fetcher.in_flight(), self._log)
        elif isinstance(order, Lead):
            self._lead(order.until)
        elif order.deadline is None:
            self._go_quiet("retiring")
        else:
            self._stop(order.deadline)

    def _lead(self, until: float) -> None:
        if lead(until):
            self._log.info("leading: this child is the leader of all")
            self._election.won()

    def _obey_signals(self) -> None:
        if signal.SIGTERM in os.read(self._woken, 4096):
            self._stop(time.monotonic() + self._timeout)

    def _obey_web(self, name: str) -> None:
        """A web UI's order, found by the heartbeat: passed on as the signal that it names."""
        self._log.info("signal from the web UI", signal=name)
        if name == "TERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif name == "TSTP":
            self._go_quiet("quiet")
        elif name == "TTIN":
            dump_stacks(self._fetcher.in_flight(), self._log)

    def _orphaned(self) -> None:
        self._selector.unregister(self._orders)
        self._log.error("the master is gone; stopping")
        self._stop(time.monotonic() + self._timeout)

    def _go_quiet(self, state: State) -> None:
        first = self._state == "running"
        if self._state != "stopping":  # nothing comes after a stop
            self._state = state
        if first:
            announce_stopping()
            self._manager.quiet()
            self._heartbeat.soon()
            call_handlers("quiet", self._log)

    def _stop(self, deadline: float) -> None:
        """Quiet first; what still runs at ``deadline`` is interrupted. The earliest one counts."""
        if self._deadline is not None:
            self._deadline = min(self._deadline, deadline)
            return
        self._deadline = deadline
        self._go_quiet("stopping")
        call_handlers("shutdown", self._log)

    def _enforce(self) -> None:
        self._manager.replace_the_dead()
        late = self._deadline is not None and time.monotonic() >= self._deadline
        if late and not self._interrupted:
            self._interrupted = True
            count = self._manager.interrupt()
            if count:
                self._log.warning("deadline reached; jobs interrupted", jobs=count)

    def _tell(self) -> None:
        """Tells the master, and whoever lists processes, how this child stands: when that has
        changed, and often enough for the master to know that this loop goes on."""
        busy = self._manager.busy
        beat = Beat(busy, self._state, *self._manager.counts())
        if beat == self._told and time.monotonic() < self._next_beat:
            return
        if not send(self._assignment.report, beat):
            return
        self._told, self._next_beat = beat, time.monotonic() + self._beat_every
        running = f"{busy} of {self._capsule.concurrency} busy"
        note = running if self._state == "running" else f"{running}, {self._state}"
        setproctitle(f"forkq child {self._assignment.name} [{note}]")

    def _hurry(self) -> None:
        self._heartbeat.soon()

    def _find_gap(self, connection: RedisConnection) -> None:
        """Our record was gone: so may be the rest of what we wrote, and our leases."""
        self._fetcher.note_queues_again()
        self._losses.look(connection)

    def _chores(self) -> bool:
        """What Redis would not do before. Returns whether there is more to try soon."""
        self._fetcher.flush()
        return self._settler.again_in_time()

    def _leave(self) -> int:
        """Leaves nothing behind: jobs go back, counters are written, the record goes."""
        if not self._manager.idle:
            said = "jobs ignored the stop" if self._manager.busy else "processors did not end"
            self._log.error(f"{said}; leaving the rest to the rescue", jobs=self._manager.busy)
            send(self._assignment.report, Exiting())
            return LEASES_LEFT
        returned = self._fetcher.give_back()
        self._tell()  # should the last flush fail, the master adds what it knows from here
        left = self._heartbeat.stop(time.monotonic() + _FAREWELL, gone=returned)
        call_handlers("exit", self._log)
        send(self._assignment.report, Exiting())
        return CLEAN if returned and left else LEASES_LEFT


def _publisher(config: Config, keys: Keys, assignment: Assignment, logger: Any) -> Publisher:
    """Publishes the app's periodic jobs. Raises ForkqError if they contradict each other."""
    claim = Claim(keys, service_of(config), assignment, logger)
    return Publisher(
        keys, entries_by_origin(config), logger, worked_on=config.queue_names, newest=claim.holds
    )


def _connecting(config: Config) -> dict[str, Any]:
    """How this child's connections are made."""
    return {
        "url": client.address(config),
        "timeout": config.redis.timeout,
        "connect_timeout": config.redis.connect_timeout,
    }
