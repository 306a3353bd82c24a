"""A pool of connections to Redis, for threads. Any process: pushes, and a child's processors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from ..wire.password_source import PasswordSource
from .connection import RedisConnection

# Seconds. A connection that was given back so lately is lent without a look at its socket, which
# costs a system call. The next command takes longer than that, and the server may hang up during it
# just as well. A server that ends what is idle (``timeout`` in redis.conf) counts whole seconds.
_FRESH: Final = 0.0001


class RedisPool:
    """Lends a connection to each thread for a moment, and keeps up to ``size`` of them open.

    A child that was forked meanwhile makes its own and leaves the parent's sockets alone."""

    def __init__(
        self,
        url: str,
        *,
        size: int,
        prefix: str = "",
        timeout: float,
        connect_timeout: float,
        password_source: PasswordSource | None = None,
    ) -> None:
        self._make: Callable[[], RedisConnection] = lambda: RedisConnection(
            url,
            prefix=prefix,
            timeout=timeout,
            connect_timeout=connect_timeout,
            password_source=password_source,
        )
        # Each with the time when it came back, in seconds of the monotonic clock.
        self._idle: deque[tuple[RedisConnection, float]] = deque(maxlen=size)

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """Lends a connected connection, and takes it back afterwards. Raises ConnectionLost if none
        can be had."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def take(self) -> RedisConnection:
        """A connected connection, for ``give_back`` afterwards. For a push: ``connection`` is a
        generator, and costs more than taking and giving back."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                break
            if not connection.stale(look=monotonic() - since > _FRESH):
                return connection
            connection.close()
        connection = self._make()
        connection.connect()
        return connection

    def give_back(self, connection: RedisConnection) -> None:
        """Keeps the connection for the next caller, or closes it. In a forked child, ``take`` finds
        that it is the parent's."""
        if connection.reusable and len(self._idle) != self._idle.maxlen:
            self._idle.append((connection, monotonic()))
        else:
            connection.close()

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop()[0].close()
