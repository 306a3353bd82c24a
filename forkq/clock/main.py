"""The clock's process: sweeps up after dead processes and, while it leads, moves due jobs and
enqueues periodic ones at their time.

The clock does not poll. It knows when the next thing is due, sleeps until then, and is woken when
the server reports a change. Where the server reports no changes, the clock reads again regularly.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from setproctitle import setproctitle

from .. import default_client
from ..config.config import Config
from ..cron.service import service_name
from ..errors import ForkqError
from ..runtime import log
from ..runtime.app_loader import is_lasting
from ..runtime.assignment import Assignment, install_signals
from ..runtime.exit_codes import CANNOT_BOOT, CLEAN
from ..runtime.log import LogOnce
from ..runtime.pipe import (
    Beat,
    ClassesHeld,
    DumpStacks,
    Exiting,
    LeaseHeld,
    Order,
    PipeReader,
    Quiet,
    Ready,
    Stop,
    SuspectsWait,
    make_unbootable,
    orders,
    send,
)
from ..runtime.stack_dump import dump_stacks
from ..store.connection import ConnectionLost, RedisError, ResponseError
from ..store.damage import about
from ..store.dead_set import DeadSetLimits
from ..store.outage import Outage, ended_idle, reconnect_backoff
from ..store.recovery import Recovery
from ..wire.keys import Keys, new_secret
from .cancelled_jobs import CancelledJobs
from .cron.enqueue import CronEnqueuer
from .cron.services import RunningServices
from .doubted_locks import DoubtedLocks
from .due_jobs import DueJobMover
from .ended_results import EndedResults
from .expired_jobs import ExpiredJobs
from .held_classes import ClassReturns, HeldClassWatch
from .leader import LeaderLease
from .master_liveness import MasterLiveness
from .notes import NoteCarrier
from .other_shards import OtherShards
from .signalled_jobs import SignalledJobs
from .standing_batches import StandingBatches
from .stranded_suspects import StrandedSuspects
from .suspects import SuspectWatch
from .sweep import Sweep
from .task import ScheduledTask, Shares, Work
from .tracking import TrackingConnection
from .unfinished_flows import UnfinishedFlows

# Seconds after which a sweep that the server refused is tried again.
_RETRY_SWEEP: Final = 15.0
_NO_NOTES: Final = "redis refuses what the web UI reads: forkq:dead:bounds or forkq:secret"


def main(config: Config, assignment: Assignment) -> int:
    """Runs the clock from the fork to its exit code."""
    term_fd = install_signals(assignment)
    setproctitle(f"forkq {assignment.name}")
    log.bind(pid=os.getpid(), capsule=assignment.name)
    try:
        clock = Clock(config, assignment, term_fd)
    except ForkqError as error:
        send(assignment.report, make_unbootable(str(error), lasting=is_lasting(error)))
        return CANNOT_BOOT
    return clock.run()


class Clock:
    """The clock's parts and its loop. ``term_fd`` becomes readable when a TERM arrives."""

    def __init__(self, config: Config, assignment: Assignment, term_fd: int) -> None:
        self._assignment = assignment
        self._orders: PipeReader[Order] = PipeReader(assignment.control, orders)
        self._term_fd = term_fd
        self._log = log.logger()
        self._log_once = LogOnce(self._log)
        self._redis = Outage(self._log)
        self._outage = self._redis.part(
            "redis refuses the clock's commands", "redis accepts the clock's commands again"
        )
        self._next_sweep = 0.0
        self._beat_every = config.beat_every
        self._next_beat = 0.0
        self._redis_at = 0.0
        self._master_liveness = MasterLiveness(config, self._log)
        self._tracking = True
        self._stopping = False
        self._keys = Keys(config.redis.prefix)
        self._connection = TrackingConnection(
            default_client.address(config),
            prefix=config.redis.prefix,
            timeout=config.redis.timeout,
            connect_timeout=config.redis.connect_timeout,
            password_source=config.redis.password_source,
        )
        self._backoff = reconnect_backoff(self._connection)
        self._build_parts(config)

    def _build_parts(self, config: Config) -> None:
        """Makes the clock's parts, which share its connection."""
        keys, connection = self._keys, self._connection
        self._dead_set = DeadSetLimits(keys, config.dead_max, config.dead_days)
        recovery = Recovery(self._dead_set)
        self._sweep = Sweep(keys, connection, recovery, self._log, on_step=self._beat)
        own = self._assignment.identity
        self._lease = LeaderLease(own, keys, connection, self._report_lease, self._log)
        service = service_name(config.tag, config.app)
        self._services = RunningServices(keys, connection, service, self._log)
        in_redis = (keys, connection, self._services, self._log)
        self._enqueuer = CronEnqueuer(*in_redis, expire=config.expire)
        periodic = (keys.cron, keys.cron_paused)
        self._cron_task = ScheduledTask("periodic jobs", self._enqueuer, periodic, self._redis)
        watch = SuspectWatch(keys, connection, config.capsules_here, self._report_suspects)
        held = HeldClassWatch(keys, connection, self._report_held_classes)
        self._watches = (
            self._shared_task("suspects", watch, keys.suspected),
            self._shared_task("held classes", held, keys.held_classes),
        )
        returns = ClassReturns(keys, connection, self._log)
        stranded = StrandedSuspects(keys, connection, lambda: watch.queues, self._log)
        self._tasks = (
            self._mover_task("scheduled jobs", keys.schedule, shares="with others"),
            self._mover_task("retries", keys.retry),
            self._cron_task,
            ScheduledTask("released classes", returns, (keys.released_classes,), self._redis),
            ScheduledTask("suspects without a process", stranded, (), self._redis),
            *self._tasks_of_features(config),
        )

    def _tasks_of_features(self, config: Config) -> tuple[ScheduledTask, ...]:
        """What marked jobs ask of the leader."""
        keys, connection, others = self._keys, self._connection, OtherShards(config)
        shared = (keys, connection, self._log)
        standing = StandingBatches(keys, connection, others, self._log)
        notes = NoteCarrier(keys, connection, others, self._log)
        return (
            self._shared_task("expired jobs", ExpiredJobs(*shared), keys.marked),
            self._shared_task("cancelled jobs", CancelledJobs(*shared), keys.cancelled),
            self._shared_task("doubted locks", DoubtedLocks(*shared), keys.doubted),
            ScheduledTask("batches that stand still", standing, (keys.batches,), self._redis),
            self._shared_task("notes for other shards", notes, keys.notes),
            self._shared_task("signals", SignalledJobs(*shared), keys.signalled),
            self._shared_task("results", EndedResults(keys, connection), keys.results_ended),
            self._shared_task("flows", UnfinishedFlows(keys, connection), keys.flows_unfinished),
        )

    def _shared_task(self, name: str, work: Work, key: str) -> ScheduledTask:
        return ScheduledTask(name, work, (key,), self._redis, shares="always")

    def _mover_task(self, name: str, key: str, shares: Shares = "never") -> ScheduledTask:
        mover = DueJobMover(self._keys, self._connection, (key,), self._log_damaged_queues)
        return ScheduledTask(name, mover, (key,), self._redis, shares=shares)

    def _log_damaged_queues(self, queues: Sequence[str]) -> None:
        """Logs each queue once; its jobs are tried again every minute."""
        for queue in queues:
            self._log_once.error(
                queue,
                "due jobs wait: their queue's key holds another type",
                **about(self._keys.queue(queue)),
            )

    def run(self) -> int:
        """Runs until the master says stop, a TERM arrives or the master is gone. Returns the exit
        code. At the end only the lease is given up: every move is one atomic script."""
        send(self._assignment.report, Ready(self._assignment.identity))
        if self._assignment.quiet:
            self._resign()
        while not self._stopping:
            try:
                self._turn()
            except RedisError as error:
                self._connection.close()
                self._outage.begin(error)
                self._back_off(self._backoff.pause())
        self._resign()
        send(self._assignment.report, Exiting())
        return CLEAN

    def _turn(self) -> None:
        """Does what is due, and sleeps until something else may be: one turn of the loop."""
        self._beat()
        self._connect()
        has_swept = self._sweep_if_due()
        self._lease.attend(self._tracking)
        worked = self._attend_tasks()
        if has_swept or worked:
            for task in (*self._tasks, *self._watches):
                task.note_own_changes(by_others=has_swept or worked != [task])
        for watch in self._watches:
            watch.attend(self._tracking)
        self._outage.end()
        self._backoff.reset()
        self._sleep()
        self._note_changes()
        self._read_orders(0)

    def _attend_tasks(self) -> list[ScheduledTask]:
        """Does the work of a leader. Returns the tasks that have done something."""
        worked = []
        for task in self._tasks:
            if not self._lease.does_the_work:
                task.reload()
            elif task.attend(self._tracking):
                worked.append(task)
        return worked

    def _sleep(self) -> None:
        began = time.monotonic()
        try:
            self._connection.wait(self._time_to_sleep(), self._assignment.control, self._term_fd)
        except ConnectionLost as error:
            if not ended_idle(error, began):
                raise
            self._connection.close()

    def _connect(self) -> None:
        """Connects if there is no connection. On a new one the server reports no change of what was
        read before, so everything is read again."""
        if self._connection.connected:
            return
        self._connection.connect()
        self._track()
        self._next_sweep = 0.0  # a sweep also notes that a clock watches over this host
        self._services.announce_again()
        self._lease.try_now()
        for task in (*self._tasks, *self._watches):
            task.reload()

    def _sweep_if_due(self) -> bool:
        """Announces this clock's service, writes its notes for people, and sweeps. Returns whether
        that was due. What the server refuses of it must not delay due jobs."""
        if time.monotonic() < self._next_sweep:
            return False
        self._next_sweep = 0.0  # if the connection ends now: after an outage the sweep comes first
        pause = _RETRY_SWEEP
        if self._services.announce():
            self._note_for_people()
            if self._lease.does_the_work and self._enqueuer.outdated():
                self._cron_task.reload()
        try:
            pause = self._sweep.run()
        except ResponseError as error:
            self._log.error("the sweep failed", error=str(error))
        self._redis_at = time.monotonic()
        self._next_sweep = self._redis_at + pause
        return True

    def _note_for_people(self) -> None:
        """Notes what the API reads, and perhaps may not write: a user of Redis for people who may
        only look has few rights."""
        replies = self._dead_set.note_bounds(self._connection)
        replies += self._connection.pipeline([("SET", self._keys.secret, new_secret(), "NX")])
        refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
        if refusal is None:
            self._log_once.over("notes")
        else:
            self._log_once.warning("notes", _NO_NOTES, error=str(refusal))

    def _time_to_sleep(self) -> float:
        """Seconds until something is due, if nothing is reported before."""
        now = time.monotonic()
        pauses = [self._next_beat - now, self._next_sweep - now, self._lease.pause()]
        pauses += [watch.pause() for watch in self._watches]
        if self._lease.does_the_work:
            pauses += [task.pause() for task in self._tasks]
        return max(0.0, min(pauses))

    def _note_changes(self) -> None:
        """Passes on which keys the server has reported as changed."""
        changes = self._connection.take_changes()
        if changes.include(self._keys.leader_left):
            self._lease.try_now()
        for task in (*self._tasks, *self._watches):
            task.mark_stale(changes)

    def _report_lease(self, until: float) -> None:
        send(self._assignment.report, LeaseHeld(until))

    def _report_suspects(self, capsules: tuple[str, ...]) -> bool:
        return send(self._assignment.report, SuspectsWait(capsules))

    def _report_held_classes(self, names: tuple[str, ...]) -> None:
        send(self._assignment.report, ClassesHeld(names))

    def _resign(self) -> None:
        """Lets another clock lead: this clock stops, or the children of its tree fetch no more."""
        with suppress(RedisError):  # then the lease expires
            self._lease.resign()

    def _back_off(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._stopping and (left := deadline - time.monotonic()) > 0:
            self._beat()
            self._read_orders(min(left, self._beat_every))

    def _beat(self) -> None:
        """Sends the master a beat when one is due, and looks for the master's own."""
        if time.monotonic() >= self._next_beat:
            redis_lost, refused = self._redis.reason, self._redis.refused
            beat = Beat(0, "running", 0, 0, self._redis_at, redis_lost=redis_lost, refused=refused)
            send(self._assignment.report, beat)
            self._next_beat = time.monotonic() + self._beat_every
            self._master_liveness.check()

    def _read_orders(self, seconds: float) -> None:
        """Waits up to ``seconds`` for an order of the master or a TERM, and obeys."""
        poller = select.poll()  # select() cannot watch descriptors from 1024 on
        for fd in (self._assignment.control, self._term_fd):
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(seconds * 1000)]
        if self._term_fd in ready:
            self._stopping = True
        if self._assignment.control in ready:
            self._obey(self._orders.read())

    def _obey(self, received: Sequence[Order]) -> None:
        self._stopping |= self._orders.ended or any(isinstance(order, Stop) for order in received)
        if any(isinstance(order, Quiet) for order in received):
            self._resign()
        if any(isinstance(order, DumpStacks) for order in received):
            dump_stacks((), self._log)

    def _track(self) -> None:
        if not self._tracking:
            return  # the server refused before, which is logged
        try:
            self._connection.track()
        except ResponseError as error:
            self._tracking = False
            self._log.warning("redis does not report changes; polling", error=str(error))
