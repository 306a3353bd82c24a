"""The clock's life: moves due jobs at their time, and sweeps up after processes that vanished.

Nothing is polled: it knows when the next job is due, sleeps until then, and is woken when either
set changes. Where the server does not tell of changes, it looks once in a while.
"""

from __future__ import annotations

import os
import select
import time
from typing import Final

from setproctitle import setproctitle

from .. import client, log
from ..config import Config
from ..connection import ConnectionLost, RedisError, ResponseError, Wire
from ..dead import Cemetery
from ..errors import ForkqError
from ..exits import CANNOT_BOOT, CLEAN
from ..keys import Keys
from ..outage import Backoff, Outage
from ..pipe import Beat, Left, Order, Reader, Ready, Stop, orders, send, unbootable
from ..post import Post, listen_to_term
from ..recovery import Recovery
from .due import Mover
from .sweep import Sweep

# The longest sleep: the wall clock may have been set, and the sweep is due.
_LONGEST_WAIT: Final = 15.0
_POLL: Final = 1.0
_SOONEST: Final = 0.001


def main(config: Config, post: Post) -> int:
    """Runs the clock from the fork to its exit code."""
    woken = listen_to_term()
    setproctitle("forkq clock")
    log.bind(pid=os.getpid(), capsule=post.name)
    try:
        clock = Clock(config, post, woken)
    except ForkqError as error:
        send(post.report, unbootable(str(error)))
        return CANNOT_BOOT
    return clock.run()


class Clock:
    """The clock's parts and its loop."""

    def __init__(self, config: Config, post: Post, woken: int) -> None:
        settings, keys = config.redis, Keys(config.redis.prefix)
        self._post = post
        self._orders: Reader[Order] = Reader(post.control, orders)
        self._woken = woken
        self._log = log.logger()
        self._wire = Wire(
            client.address(config),
            timeout=settings.timeout,
            connect_timeout=settings.connect_timeout,
        )
        recovery = Recovery(Cemetery(keys, config.dead_max, config.dead_days))
        self._mover = Mover(keys, self._wire)
        self._sweep = Sweep(keys, self._wire, recovery, self._log)
        self._outage = Outage(self._log)
        self._backoff = Backoff()
        self._next_sweep = 0.0
        self._tracking = True
        self._over = False

    def run(self) -> int:
        """Keeps time until it is told to stop, or the master is gone. Nothing needs undoing: every
        move is one atomic script."""
        send(self._post.report, Ready(self._post.identity))
        send(self._post.report, Beat(0, "running", 0, 0))
        while not self._over:
            try:
                self._turn()
            except (*ConnectionLost, RedisError) as error:
                self._wire.close()
                self._outage.begin(error)
                self._pause(self._backoff.pause())
        send(self._post.report, Left())
        return CLEAN

    def _turn(self) -> None:
        """Moves what is due; when nothing is, waits until something may be."""
        if not self._wire.connected:
            self._wire.connect()
            self._track()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _LONGEST_WAIT
            self._look_around()
        due = self._mover.next_due(watch=self._tracking)
        self._outage.end()
        self._backoff.reset()
        if due is not None and due <= time.time():
            self._mover.move()
        else:
            self._wait(due)
        self._listen(0)

    def _look_around(self) -> None:
        """Sweeps. What the server refuses of that must not hold up the jobs that are due."""
        try:
            self._sweep.run()
        except ResponseError as error:
            self._log.error("the sweep failed", error=str(error))
        except ConnectionLost:
            self._next_sweep = 0.0  # a server that comes back is when there is most to sweep
            raise

    def _wait(self, due: float | None) -> None:
        """Until the next job is due, a set changes, or the master speaks."""
        pause = _LONGEST_WAIT if self._tracking else _POLL
        if due is not None:
            pause = min(pause, max(_SOONEST, due - time.time()))
        self._wire.wait(pause, self._post.control, self._woken)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._listen(left)

    def _listen(self, seconds: float) -> None:
        """Obeys what the master or a signal says within ``seconds``."""
        poller = select.poll()  # select() cannot look at descriptors from 1024 on
        for fd in (self._post.control, self._woken):
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(seconds * 1000)]
        if self._woken in ready:
            self._over = True
        if self._post.control in ready:
            told = self._orders.read()
            self._over |= self._orders.eof or any(isinstance(order, Stop) for order in told)

    def _track(self) -> None:
        if not self._tracking:
            return  # refused before, and said so
        try:
            self._wire.track()
        except ResponseError as error:
            self._tracking = False
            self._log.warning("redis does not tell of changes; polling", error=str(error))
