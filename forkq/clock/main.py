"""The clock's life: if it leads, it moves due jobs and enqueues periodic ones at their time; and it
sweeps up after processes that vanished.

Nothing is polled: it knows when the next thing is to be done, sleeps until then, and is woken when
that changes. Where the server does not tell of changes, it looks once in a while.
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
from ..errors import ForkqError
from ..every import service_of
from ..runtime import log
from ..runtime.assignment import Assignment, listen_to_term
from ..runtime.exit_codes import CANNOT_BOOT, CLEAN
from ..runtime.pipe import (
    Beat,
    DumpStacks,
    Exiting,
    LeaseHeld,
    Order,
    Quiet,
    Reader,
    Ready,
    Stop,
    orders,
    send,
    unbootable,
)
from ..runtime.stack_dump import dump_stacks
from ..store.connection import IDLE, ConnectionLost, RedisError, ResponseError
from ..store.damage import about
from ..store.dead_set import DeadSet
from ..store.outage import Backoff, Outage
from ..store.recovery import Recovery
from ..wire.keys import Keys
from .cron.enqueue import CronEnqueuer
from .cron.services import RunningServices
from .due_jobs import DueJobMover
from .leader import Leader
from .sweep import Sweep
from .task import ScheduledTask
from .tracking import TrackingConnection

# How soon a sweep that the server has refused is tried again.
_SWEEP_AGAIN: Final = 15.0


def main(config: Config, assignment: Assignment) -> int:
    """Runs the clock from the fork to its exit code."""
    woken = listen_to_term(assignment)
    setproctitle("forkq clock")
    log.bind(pid=os.getpid(), capsule=assignment.name)
    try:
        clock = Clock(config, assignment, woken)
    except ForkqError as error:
        send(assignment.report, unbootable(str(error)))
        return CANNOT_BOOT
    return clock.run()


class Clock:
    """The clock's parts and its loop."""

    def __init__(self, config: Config, assignment: Assignment, woken: int) -> None:
        self._assignment = assignment
        self._orders: Reader[Order] = Reader(assignment.control, orders)
        self._woken = woken
        self._log = log.logger()
        self._outage = Outage(self._log).part(
            "redis refuses the clock", "redis obeys the clock again"
        )
        self._backoff = Backoff()
        self._next_sweep = 0.0
        self._beat_every = config.beat_every
        self._next_beat = 0.0
        self._tracking = True
        self._over = False
        self._assemble(config)

    def _assemble(self, config: Config) -> None:
        """Makes the parts; all share one wire."""
        settings, keys = config.redis, Keys(config.redis.prefix)
        self._connection = connection = TrackingConnection(
            default_client.address(config),
            timeout=settings.timeout,
            connect_timeout=settings.connect_timeout,
        )
        recovery = Recovery(DeadSet(keys, config.dead_max, config.dead_days))
        self._sweep = Sweep(keys, connection, recovery, self._log, on_step=self._beat)
        self._leader = Leader(self._assignment.identity, keys, connection, self._lead, self._log)
        self._origins = RunningServices(keys, connection, service_of(config), self._log)
        self._enqueuer = CronEnqueuer(keys, connection, self._origins, self._log)
        self._ticking = ScheduledTask(
            "periodic jobs", self._enqueuer, (keys.cron, keys.cron_paused), self._log
        )
        moving = [
            ScheduledTask(
                name,
                DueJobMover(keys, connection, (source,), self._tell_put_off),
                (source,),
                self._log,
            )
            for name, source in (("scheduled jobs", keys.schedule), ("retries", keys.retry))
        ]
        self._tasks = (*moving, self._ticking)
        self._left = keys.leader_left
        self._keys = keys
        self._put_off: set[str] = set()

    def _tell_put_off(self, queues: Sequence[str]) -> None:
        """One line for each queue: its jobs are tried again every minute."""
        for queue in queues:
            if queue not in self._put_off:
                self._put_off.add(queue)
                key = self._keys.queue(queue)
                self._log.error("due jobs wait: their queue takes nothing", **about(key))

    def run(self) -> int:
        """Keeps time until it is told to stop, or the master is gone. Nothing needs undoing but the
        lead: every move is one atomic script."""
        send(self._assignment.report, Ready(self._assignment.identity))
        if self._assignment.quiet:
            self._resign()
        while not self._over:
            try:
                self._turn()
            except (*ConnectionLost, RedisError) as error:
                self._connection.close()
                self._outage.begin(error)
                self._pause(self._backoff.pause())
        self._resign()
        send(self._assignment.report, Exiting())
        return CLEAN

    def _turn(self) -> None:
        """One look at the time: does what is due, and sleeps until something may be."""
        self._beat()
        self._connect()
        self._look_around()
        self._leader.attend(self._tracking)
        for task in self._tasks:
            if self._leader.acts:
                task.attend(self._tracking)
            else:
                task.forget()
        self._outage.end()
        self._backoff.reset()
        self._sleep()
        self._hear()
        self._listen(0)

    def _sleep(self) -> None:
        began = time.monotonic()
        try:
            self._connection.wait(self._time_to_sleep(), self._assignment.control, self._woken)
        except ConnectionLost:
            if time.monotonic() < began + IDLE:
                raise
            self._connection.close()  # no outage, unless we cannot connect anew

    def _connect(self) -> None:
        """A new connection knows nothing, and nothing is told on it of what we knew."""
        if self._connection.connected:
            return
        self._connection.connect()
        self._track()
        self._next_sweep = 0.0  # it also says that somebody watches over this host
        self._origins.forget()
        self._leader.look_again()
        for task in self._tasks:
            task.forget()

    def _look_around(self) -> None:
        """Says that this app runs, and sweeps. What the server refuses of that must not hold up the
        jobs that are due."""
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = 0.0  # a server that comes back is when there is most to sweep
        pause = _SWEEP_AGAIN
        if self._origins.announce() and self._leader.acts and self._enqueuer.outdated():
            self._ticking.forget()
        try:
            pause = self._sweep.run()
        except ResponseError as error:
            self._log.error("the sweep failed", error=str(error))
        self._next_sweep = time.monotonic() + pause

    def _time_to_sleep(self) -> float:
        """Seconds until something is to be done, though nobody speaks."""
        now = time.monotonic()
        pauses = [self._next_beat - now, self._next_sweep - now, self._leader.pause()]
        if self._leader.acts:
            pauses += [task.pause() for task in self._tasks]
        return max(0.0, min(pauses))

    def _hear(self) -> None:
        """Takes in what the server has told."""
        news = self._connection.news()
        if news.of(self._left):
            self._leader.look_again()
        for task in self._tasks:
            task.hear(news)

    def _lead(self, until: float) -> None:
        send(self._assignment.report, LeaseHeld(until))

    def _resign(self) -> None:
        """Lets another clock lead: this one stops, or nobody fetches here any more."""
        with suppress(*ConnectionLost, RedisError):  # then the lease runs out by itself
            self._leader.retire()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._beat()
            self._listen(min(left, self._beat_every))

    def _beat(self) -> None:
        """Tells the master that the clock goes on, once in a while."""
        if time.monotonic() >= self._next_beat:
            send(self._assignment.report, Beat(0, "running", 0, 0))
            self._next_beat = time.monotonic() + self._beat_every

    def _listen(self, seconds: float) -> None:
        """Obeys what the master or a signal says within ``seconds``."""
        poller = select.poll()  # select() cannot look at descriptors from 1024 on
        for fd in (self._assignment.control, self._woken):
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(seconds * 1000)]
        if self._woken in ready:
            self._over = True
        if self._assignment.control in ready:
            self._obey(self._orders.read())

    def _obey(self, told: Sequence[Order]) -> None:
        self._over |= self._orders.over or any(isinstance(order, Stop) for order in told)
        if any(isinstance(order, Quiet) for order in told):
            self._resign()
        if any(isinstance(order, DumpStacks) for order in told):
            dump_stacks((), self._log)

    def _track(self) -> None:
        if not self._tracking:
            return  # refused before, and said so
        try:
            self._connection.track()
        except ResponseError as error:
            self._tracking = False
            self._log.warning("redis does not tell of changes; polling", error=str(error))
