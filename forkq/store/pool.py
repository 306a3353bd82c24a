"""A pool of connections to Redis, for threads. Any process: pushes, and a child's processors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .connection import RedisConnection


class RedisPool:
    """Lends a connection to each thread for a moment, and keeps up to ``size`` of them open.

    A child that was forked meanwhile makes its own and leaves the parent's sockets alone."""

    def __init__(self, url: str, *, size: int, timeout: float, connect_timeout: float) -> None:
        self._make: Callable[[], RedisConnection] = lambda: RedisConnection(
            url, timeout=timeout, connect_timeout=connect_timeout
        )
        self._idle: deque[RedisConnection] = deque(maxlen=size)
        self._pid = os.getpid()

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A connected connection, put back afterwards. Raises ConnectionLost if none can be had."""
        connection, pid = self._take(), os.getpid()
        try:
            connection.connect()
            yield connection
        finally:
            if connection.unread or os.getpid() != pid:  # forked meanwhile: it is the parent's
                connection.close()
            elif connection.connected:
                self._give(connection)

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> RedisConnection:
        self._forget_parents_sockets()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._make()
            if not connection.stale():
                return connection
            connection.close()

    def _give(self, connection: RedisConnection) -> None:
        if len(self._idle) == self._idle.maxlen:
            connection.close()
        else:
            self._idle.append(connection)

    def _forget_parents_sockets(self) -> None:
        if self._pid == os.getpid():
            return
        self._idle = deque(maxlen=self._idle.maxlen)
        self._pid = os.getpid()
