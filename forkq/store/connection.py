"""The connection to Redis: redis-py's connections, driven by hand.

redis-py's own client re-sends commands after a lost reply, ten times by default; an LPUSH then
runs twice. So every retry is off here, and each caller decides what may be sent again. Driving the
connection by hand also costs a fraction of ``Redis.execute_command``, and keeps redis-py's TLS,
ACL, Unix sockets and URL options.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else getaddrinfo imports it late (transport._before_fork)
import inspect
import os
import select
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hiredis import pack_command
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from ..errors import ConfigError
from ..wire.redis_url import redacted_url
from .damage import damaged, message
from .refusals import failure as failure  # noqa: PLC0414 - transport.py loads only this module
from .scripts import Script

Command: TypeAlias = "tuple[Any, ...]"

RedisError = exceptions.RedisError
ResponseError = exceptions.ResponseError
OutOfMemory = exceptions.OutOfMemoryError
ConnectionLost = (exceptions.ConnectionError, exceptions.TimeoutError)

# Seconds. A connection that was idle for so long may be ended by the server in good order (its
# `timeout`).
IDLE: Final = 1.0


class DamagedKey(ResponseError):
    """The server's WRONGTYPE, with the key and what to do about it."""


# Refused before anything was written, so sending it again cannot do it twice (failover).
_REFUSED = ("READONLY", "NOREPLICAS", "UNBLOCKED")
_WRONG_TYPE = "WRONGTYPE"

# A partition without a reset: noticed by keepalive while we wait, by the user time-out while we
# send. Linux only; elsewhere the system's defaults hold.
_TCP_KEEPALIVE = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,
}

# No CLIENT SETINFO: it costs two round trips, a right (ACL), and late imports (transport.py).
_ANONYMOUS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a script, to be sent among other commands."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]

    @property
    def command(self) -> Command:
        """As it is sent to a server that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)


def refused(error: BaseException) -> bool:
    """Whether the server turned a command down without doing any of it."""
    # redis-py makes READONLY a class of its own, without the word in the message.
    return isinstance(error, exceptions.ReadOnlyError) or (
        isinstance(error, ResponseError) and str(error).startswith(_REFUSED)
    )


class RedisConnection:
    """One connection to Redis. Not thread-safe; whoever drives it owns it.

    ``timeout`` bounds each read, in seconds. Every method raises redis-py's ConnectionError or
    TimeoutError (``ConnectionLost``) after closing the connection, and never connects by itself.

    An exception from outside (a signal handler's, an asynchronous one) may land on any line here.
    So the replies that are still to come are counted before the first byte is sent, and a
    connection that owes replies takes no more commands: the next caller would read another's.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
    ) -> None:
        self.url = url
        self._timeout = timeout
        self._pool = _pool(url, timeout, connect_timeout)
        self._connection: Any = None
        self._owed = 0
        self._told: Callable[[list[bytes] | None], None] | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._connection is not None

    @property
    def owed(self) -> int:
        """How many replies to commands that were sent have not been read."""
        return self._owed

    def connect(self) -> None:
        """Opens the connection, if it is not open. Raises ConnectionLost or RedisError."""
        if self._connection is None:
            connection: Any = self._pool.make_connection()
            try:
                connection.connect()
                _leave_timeouts_to_the_kernel(connection._get_socket(), self._timeout)
            except BaseException:
                connection.disconnect()
                raise
            self._owed = 0
            self._connection = connection
            self._listen()

    def close(self) -> None:
        """Drops the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def call(self, *command: Any) -> Any:
        """One command, one reply. Raises what the server answers as an error."""
        self.send(command)
        reply = _named(self._read_reply(), command)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Several commands in one round trip; an error reply stands in its place in the list."""
        self.send(*commands)
        return [_named(self._read_reply(), command) for command in commands]

    def script(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Runs ``script``, telling the server its text if it does not know it."""
        command = Call(script, keys, arguments).command
        try:
            return self._evaluate(script, command)
        except ResponseError as error:
            if _WRONG_TYPE not in str(error):
                raise
            raise self._found_damaged([str(key) for key in keys], error) from error

    def exchange(self, commands: Sequence[Command | Call]) -> list[Any]:
        """As ``pipeline``, with scripts among the commands. What failed because the server did not
        know a script is sent again with its text: one round trip more."""
        plain = [each.command if isinstance(each, Call) else each for each in commands]
        replies = self.pipeline(plain)
        unknown = {
            at: each.script
            for at, each in enumerate(commands)
            if isinstance(each, Call) and isinstance(replies[at], exceptions.NoScriptError)
        }
        if unknown:
            texts = {script.text for script in unknown.values()}
            loads: list[Command] = [("SCRIPT", "LOAD", text) for text in texts]
            again = self.pipeline([*loads, *(plain[at] for at in unknown)])
            for at, reply in zip(unknown, again[len(loads) :], strict=True):
                replies[at] = reply
        return replies

    def limit(self, seconds: float) -> None:
        """From now on no read waits for more than so many seconds, nor any step of a connect."""
        if seconds == self._timeout:
            return
        self._timeout = seconds
        self._pool.connection_kwargs.update(socket_timeout=seconds, socket_connect_timeout=seconds)
        if self._connection is not None:
            sock = self._connection._get_socket()
            sock.settimeout(seconds)
            _leave_timeouts_to_the_kernel(sock, seconds)

    def track(self) -> None:
        """Asks the server to tell this connection of changes to what it reads after CLIENT CACHING
        YES. Raises ResponseError where that is refused (some proxies)."""
        self.call("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")

    def on_change(self, told: Callable[[list[bytes] | None], None]) -> None:
        """Has ``told`` called with the keys that changed (None: all), as ``read`` or ``hear`` come
        across the news. On every connection from now on."""
        self._told = told
        self._listen()

    def hear(self) -> None:
        """Takes in what the server has said by itself. Only while no reply is awaited."""
        connection = self._open()
        while self._can_read(connection):
            try:
                connection.read_response(disable_decoding=True, push_request=True)
            except BaseException:
                self.close()  # half a message, or the end of all
                raise

    def send(self, *commands: Command) -> None:
        """Sends without waiting for the replies. All earlier ones must have been read."""
        connection = self._open()
        if self._owed:
            self.close()
            raise exceptions.ConnectionError("the last call was interrupted before its reply came")
        self._owed = len(commands)
        try:
            packed = [pack_command(command) for command in commands]
            connection.send_packed_command(packed, check_health=False)
        except BaseException as error:
            self.close()  # half a command: nothing that came after could be told apart
            self._raise_if_late(error)
            raise

    def read(self) -> Any:
        """The next reply. Raises it if it is an error."""
        reply = self._read_reply()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def wait(self, timeout: float, *wakes: int) -> bool:
        """Waits until the server says something, or one of the descriptors ``wakes`` is readable.

        Returns whether the server spoke within ``timeout`` seconds. What it said is left unread:
        an invalidation is skipped by the next ``read``.
        """
        connection = self._open()
        if self._can_read(connection):
            return True
        poller = select.poll()
        for wake in wakes:
            poller.register(wake, select.POLLIN)
        poller.register(connection._get_socket(), select.POLLIN)
        ready = poller.poll(timeout * 1000)
        return any(fd not in wakes for fd, _ in ready)

    def descriptors(self) -> list[int]:
        """The open socket, for a forked child to close."""
        return [self._connection._get_socket().fileno()] if self._connection else []

    def stale(self) -> bool:
        """Whether an idle connection must not be used: the server closed it or said something."""
        try:
            return bool(self._connection is None or self._connection.can_read(0))
        except ConnectionLost:
            return True

    def _listen(self) -> None:
        told = self._told
        if told is not None and self._connection is not None:
            self._connection._parser.set_invalidation_push_handler(lambda push: told(push[1]))

    def _evaluate(self, script: Script, command: Command) -> Any:
        self.send(command)
        try:
            return self.read()
        except exceptions.NoScriptError:
            self.call("SCRIPT", "LOAD", script.text)
            self.send(command)
            return self.read()

    def _raise_if_late(self, error: BaseException) -> None:
        """The kernel's time-out comes as EAGAIN, which redis-py takes for a broken connection."""
        if isinstance(error, exceptions.ConnectionError) and isinstance(
            error.__context__, BlockingIOError
        ):
            raise exceptions.TimeoutError(f"no answer within {self._timeout:g} s") from error

    def _found_damaged(self, keys: Sequence[str], error: ResponseError) -> ResponseError:
        """Which of a script's keys it was."""
        replies = self.pipeline([("TYPE", key) for key in keys])
        types = [reply.decode() if isinstance(reply, bytes) else "none" for reply in replies]
        wrong = damaged(keys, types)
        return DamagedKey(f"{_WRONG_TYPE} {message(wrong)}") if wrong else error

    def _open(self) -> Any:
        if self._connection is None:
            raise exceptions.ConnectionError(f"no connection to {redacted_url(self.url)}")
        return self._connection

    def _can_read(self, connection: Any) -> bool:
        try:
            return bool(connection.can_read(0))
        except BaseException:
            self.close()
            raise

    def _read_reply(self) -> Any:
        connection = self._open()
        try:
            reply = connection.read_response(disable_decoding=True)
        except ResponseError as error:
            reply = error
        except BaseException as error:
            self.close()  # half a reply
            self._raise_if_late(error)
            raise
        self._owed -= 1
        return reply


def _named(reply: Any, command: Command) -> Any:
    """A WRONGTYPE names the key of its command."""
    if not isinstance(reply, ResponseError) or not str(reply).startswith(_WRONG_TYPE):
        return reply
    if command[0] != "EVALSHA":
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[1])])}")
    count = int(command[2])
    if count == 1:
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[3])])}")
    keys = ", ".join(f'"{key}"' for key in command[3 : 3 + count])
    return DamagedKey(f"{_WRONG_TYPE} one of the keys {keys} holds something else; see TYPE")


class RedisPool:
    """A pool of connections for threads that each need one for a moment. Survives a fork."""

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
            if connection.owed or os.getpid() != pid:  # forked meanwhile: the parent uses it
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


def _leave_timeouts_to_the_kernel(sock: socket.socket, timeout: float) -> None:
    """Python keeps a socket's time-out by a poll() before every read and write; the kernel keeps it
    for nothing. Plain sockets only: TLS reads more than once for one record."""
    if sys.platform != "linux" or type(sock) is not socket.socket:
        return
    whole, part = divmod(timeout, 1)
    limit = struct.pack("ll", int(whole), int(part * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.settimeout(None)


def _pool(url: str, timeout: float, connect_timeout: float) -> ConnectionPool:
    options: dict[str, Any] = {
        "protocol": 3,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        # A pool of redis-py's counts all that it ever made, and stops at 100: an outage of some
        # minutes would have used them up, and the connection could never connect again.
        "max_connections": 2**31,
        **_ANONYMOUS,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {
            getattr(socket, name): value
            for name, value in _TCP_KEEPALIVE.items()
            if hasattr(socket, name)
        }
    try:
        return ConnectionPool.from_url(url, **options)
    except ValueError as error:
        raise ConfigError(
            f"{redacted_url(url)!r} is not a Redis URL: {error}; use redis://, rediss:// or unix://"
        ) from None
