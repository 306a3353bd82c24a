"""Every call that forkq makes into redis-py and hiredis. Any process that talks to Redis.

redis-py's own client sends a command again after a lost reply, ten times by default; an LPUSH then
runs twice. So forkq uses only redis-py's connections, with every retry off, and each caller decides
what may be sent again. This also costs a fraction of ``Redis.execute_command``, and keeps
redis-py's TLS, ACL, Unix sockets and URL options.

Some of these calls are private to redis-py. tests/unit/store/test_redis_py.py states what each of
them must do, and pyproject.toml allows the versions that pass it.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else getaddrinfo imports it late (transport._before_fork)
import inspect
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, ClassVar, Final, TypeAlias

from hiredis import pack_command as pack_command  # noqa: PLC0414 - for the modules of this folder
from redis import exceptions as exceptions  # noqa: PLC0414 - for the other modules of this folder
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from ..errors import ConfigError
from ..wire.redis_url import redacted_url

Command: TypeAlias = "tuple[Any, ...]"
Packed: TypeAlias = bytes  # a command that ``pack_command`` has made ready to be sent
# Is called with the keys that changed; None: all of them.
OnChange: TypeAlias = "Callable[[list[bytes] | None], None]"

# A partition without a reset: keepalive notices it while we wait, the user time-out while we send.
# Linux only; elsewhere the system's defaults hold.
_TCP_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 10_000,
}

# No CLIENT SETINFO: it costs two round trips, a right (ACL), and late imports (transport.py).
_ANONYMOUS: Final[dict[str, Any]] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)
_ARGUMENTS: Final = ", with args beginning with:"
_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 3,
    "retry": Retry(NoBackoff(), 0),
    "health_check_interval": 0,
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    # A pool of redis-py's counts all connections that it ever made, and stops at 100: an outage of
    # some minutes would use them up, and forkq could never connect again.
    "max_connections": 2**31,
    **_ANONYMOUS,
}


class RawConnection:
    """An open connection of redis-py's. It never connects by itself and sends nothing again.

    Made by ``Connector``. The methods raise what redis-py raises, and leave closing to the caller.
    """

    __slots__ = ("_connection", "_timeout")
    # Seconds after which one who waits for the server calls ``can_read`` again.
    look_every: ClassVar[float] = inf

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout

    @property
    def socket(self) -> socket.socket:
        """The open socket."""
        found: socket.socket = self._connection._get_socket()
        return found

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self.socket.fileno()

    def set_timeout(self, seconds: float) -> None:
        """No read or write waits for longer from now on."""
        self._timeout = seconds
        self.socket.settimeout(seconds)
        _leave_timeouts_to_the_kernel(self.socket, seconds)

    def send(self, commands: Iterable[Command | Packed]) -> None:
        """Writes the commands, and reads nothing."""
        packed = [b"".join([c if isinstance(c, bytes) else pack_command(c) for c in commands])]
        try:
            self._connection.send_packed_command(packed, check_health=False)
        except exceptions.ConnectionError as error:
            self._raise_if_late(error)
            raise

    def read(self) -> Any:
        """The next reply, as bytes; raises it if it is an error. Passes on invalidations."""
        try:
            return self._connection.read_response(disable_decoding=True)
        except exceptions.ConnectionError as error:
            self._raise_if_late(error)
            raise
        except exceptions.ResponseError as error:
            _drop_arguments(error)
            raise

    def read_push(self) -> None:
        """Reads one message that the server sent by itself, and passes it on."""
        self._connection.read_response(disable_decoding=True, push_request=True)

    def can_read(self) -> bool:
        """Whether the server has sent something. Raises ConnectionLost if it has hung up."""
        return bool(self._connection.can_read(0))

    def next_is_push(self) -> bool:
        """Whether the next thing to read is a message that the server sent by itself. False also
        where that cannot be seen without reading it (TLS)."""
        sock = self.socket
        if type(sock) is not socket.socket:
            return False
        try:
            return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b">"
        except OSError:
            return False

    def on_invalidation(self, call: OnChange) -> None:
        """Has ``call`` called for each invalidation that is read."""
        self._connection._parser.set_invalidation_push_handler(lambda push: call(push[1]))

    def close(self) -> None:
        """Closes the socket."""
        self._connection.disconnect()

    def _raise_if_late(self, error: Exception) -> None:
        """The kernel's time-out comes as EAGAIN, which redis-py takes for a broken connection."""
        if isinstance(error.__context__, BlockingIOError):
            raise exceptions.TimeoutError(f"no answer within {self._timeout:g} s") from error


class Connector:
    """Opens connections to the server at ``url``. Raises ConfigError if that is no Redis URL."""

    def __init__(self, url: str, timeout: float, connect_timeout: float) -> None:
        self._timeout = timeout
        self._pool = _pool(url, timeout, connect_timeout)

    def connect(self) -> RawConnection:
        """A new connection, logged in. Raises ConnectionLost or RedisError."""
        connection: Any = self._pool.make_connection()
        try:
            connection.connect()
            _leave_timeouts_to_the_kernel(connection._get_socket(), self._timeout)
        except BaseException as error:
            connection.disconnect()
            _drop_arguments(error)
            raise
        return RawConnection(connection, self._timeout)

    def set_timeout(self, seconds: float) -> None:
        """No read, and no step of a connect, waits for longer on the connections to come."""
        self._timeout = seconds
        self._pool.connection_kwargs.update(socket_timeout=seconds, socket_connect_timeout=seconds)


def _drop_arguments(error: BaseException) -> None:
    """Removes the arguments that a server repeats when it does not know a command: a job's own, or,
    after the HELLO of a login, the password."""
    said, repeats, _ = str(error).partition(_ARGUMENTS)
    if repeats:
        error.args = (said,)


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


def _keepalive_options() -> dict[int, int]:
    """Those of ``_TCP_KEEPALIVE`` that this system knows."""
    known = [name for name in _TCP_KEEPALIVE if hasattr(socket, name)]
    return {getattr(socket, name): _TCP_KEEPALIVE[name] for name in known}


def _pool(url: str, timeout: float, connect_timeout: float) -> ConnectionPool:
    options = {**_OPTIONS, "socket_timeout": timeout, "socket_connect_timeout": connect_timeout}
    if not url.startswith("unix:"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive_options()}
    try:
        return ConnectionPool.from_url(url, **options)
    except ValueError as error:
        raise ConfigError(
            f"{redacted_url(url)!r} is not a Redis URL: {error}; "
            "use redis://, rediss://, unix:// or sentinel://"
        ) from None
