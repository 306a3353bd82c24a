"""Every call that forkq makes into redis-py and hiredis. Any process that talks to Redis.

redis-py's own client sends a command again after a lost reply, ten times by default; an LPUSH then
runs twice. So redis-py only opens connections for forkq (TLS, ACL, Unix sockets, the options of the
URL), with every retry off. What goes over them forkq writes and reads itself, and each caller
decides what may be sent again.

Some of these calls are private to redis-py. tests/unit/store/test_redis_py.py states what each of
them must do, and pyproject.toml allows the versions that pass it.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else getaddrinfo imports it late (route._before_fork)
import inspect
import os
import signal
import socket
import ssl
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, ClassVar, Final, TypeAlias

import hiredis
from hiredis import PushNotification, Reader
from redis import exceptions as exceptions  # noqa: PLC0414 - for the other modules of this folder
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool, SSLConnection
from redis.retry import Retry

from ..errors import ConfigError, ForkqError
from ..wire.password_source import PasswordSource
from ..wire.redis_url import redacted_url
from .polling import input_check

Command: TypeAlias = "tuple[Any, ...]"
Packed: TypeAlias = bytes  # commands that ``pack`` has made ready to be sent
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

# No CLIENT SETINFO: it costs two round trips, a right (ACL), and late imports (route.py).
ANONYMOUS: Final[dict[str, Any]] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)
# No CLIENT MAINT_NOTIFICATIONS either; redis-py knows it from version 7 on.
NO_MAINTENANCE: Final[dict[str, Any]] = {}
with suppress(ImportError):
    from redis.maint_notifications import MaintNotificationsConfig

    NO_MAINTENANCE["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
_LONGEST_PASSWORD: Final = 65_536  # bytes
_READ_SIZE: Final = 65_536  # bytes; a longer reply takes several reads
_MORE: Final = object()  # stands for a reply that has not arrived in full
_TEXTS: Final = frozenset({bytes, str})
_PLAIN: Final = frozenset({int, bytes})  # types of most replies
_NUMBERS: Final = frozenset({int, float})
_ARGUMENTS: Final = ", with args beginning with:"
_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 3,
    "retry": Retry(NoBackoff(), 0),
    "health_check_interval": 0,
    # A pool of redis-py's counts all connections that it ever made, and stops at 100: an outage of
    # some minutes would use them up, and forkq could never connect again.
    "max_connections": 2**31,
    **ANONYMOUS,
    **NO_MAINTENANCE,
}


class Unanswered(exceptions.TimeoutError):
    """The server has said nothing for so many ``seconds`` since it was asked."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


def pack(commands: Iterable[Command | Packed]) -> Packed:
    """The commands, ready to be sent.

    hiredis is handed texts alone. For a number it asks Python for the text, and Python calls signal
    handlers then. If one raises, hiredis 3.5.0 goes on with a null pointer.
    """
    parts: list[Packed] = []
    for each in commands:
        if isinstance(each, bytes):
            parts.append(each)
        elif _TEXTS.issuperset(map(type, each)):
            parts.append(hiredis.pack_command(each))
        else:
            texts: Command = tuple([repr(x) if type(x) in _NUMBERS else x for x in each])
            parts.append(hiredis.pack_command(texts))
    return b"".join(parts)


class RawConnection:
    """A connection that redis-py has opened and logged in. It never connects by itself and sends
    nothing again.

    Made by ``Connector``. The methods raise redis-py's errors, and leave closing to the caller.
    They read and write the socket themselves: a push waits for it
    (docs/decisions/020-what-a-push-costs.md).
    """

    __slots__ = ("_connection", "_has_input", "_on_change", "_reader", "_timeout", "socket")
    # Seconds after which one who waits for the server calls ``can_read`` again.
    look_every: ClassVar[float] = inf

    def __init__(self, connection: Any, timeout: float) -> None:
        self.socket: socket.socket = connection._sock
        self._connection = connection
        self._timeout = timeout
        self._reader = Reader(
            replyError=partial(_as_error, connection._parser.parse_error),
            protocolError=exceptions.InvalidResponse,
            notEnoughData=_MORE,
        )
        self._has_input = input_check(self.socket.fileno())
        self._on_change: OnChange | None = None

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
        self.write(pack(commands))

    def write(self, commands: Packed) -> None:
        """Writes what ``pack`` has made, and reads nothing."""
        try:
            self.socket.sendall(commands)
        except OSError as error:
            raise self.lost(error) from error

    def read(self) -> Any:
        """The next reply, as bytes; raises it if it is an error. Passes on invalidations."""
        [reply] = self.read_replies(1)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def read_replies(self, count: int) -> list[Any]:
        """The next ``count`` replies, as bytes. What the server refuses is an error among them;
        what it says of the connection as a whole is raised. Passes on invalidations."""
        replies: list[Any] = []
        if not self._reader.has_data():
            self._receive()
        take = self._reader.gets
        while len(replies) < count:
            reply = take()
            if type(reply) in _PLAIN:
                replies.append(reply)
            elif reply is _MORE:
                self._receive()
            elif type(reply) is PushNotification:
                self._pass_on(reply)
            else:
                if isinstance(reply, Exception):
                    _check_reply(reply)
                replies.append(reply)
        return replies

    def replies_in(self, received: bytes) -> list[Any]:
        """The replies that end in these bytes, for an event loop that has read them; as
        ``read_replies``."""
        self._reader.feed(received)
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not _MORE:
            if type(reply) is PushNotification:
                self._pass_on(reply)
                continue
            if isinstance(reply, Exception):
                _check_reply(reply)
            replies.append(reply)
        return replies

    def read_push(self) -> None:
        """Reads one message that the server sent by itself, and passes it on."""
        message = self._next()
        if type(message) is not PushNotification:
            if isinstance(message, Exception):
                _drop_arguments(message)
                raise message
            raise exceptions.ConnectionError("the server sent a reply that no command awaits")
        self._pass_on(message)

    def can_read(self) -> bool:
        """Whether the server has sent something, or has hung up."""
        return bool(self._reader.has_data() or self._has_input())

    def check(self) -> None:
        """Raises MasterLost once another server has taken the place of this one. Does not ask
        Redis, but may ask Sentinels, and wait for them."""

    def next_is_push(self) -> bool:
        """Whether the next thing to read is a message that the server sent by itself. False also
        where that cannot be seen without reading it (TLS)."""
        if type(self.socket) is not socket.socket:
            return False
        try:
            return self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b">"
        except OSError:
            return False

    def on_invalidation(self, call: OnChange) -> None:
        """Has ``call`` called for each invalidation that is read."""
        self._on_change = call

    def close(self) -> None:
        """Closes the socket."""
        self._connection.disconnect()

    def lost(self, error: OSError) -> exceptions.RedisError:
        """redis-py's error for one of the socket. The kernel's time-out comes as EAGAIN."""
        if isinstance(error, BlockingIOError | TimeoutError):
            return Unanswered(f"no answer within {self._timeout:g} s", self._timeout)
        return exceptions.ConnectionError(str(error))

    def _next(self) -> Any:
        """The next thing that the server sends: a reply, an error, or a PushNotification."""
        while (found := self._reader.gets()) is _MORE:
            self._receive()
        return found

    def _receive(self) -> None:
        """Waits for bytes of the server, and hands them to the reader."""
        try:
            received = self.socket.recv(_READ_SIZE)
        except OSError as error:
            raise self.lost(error) from error
        if not received:
            raise self.lost(ConnectionResetError("the server has closed the connection"))
        self._reader.feed(received)

    def _pass_on(self, message: Sequence[Any]) -> None:
        if message[:1] == [b"invalidate"] and len(message) > 1 and self._on_change is not None:
            self._on_change(message[1])


class PasswordUnreadable(ForkqError):
    """A password cannot be read. The text names the source and the remedy, never what was read."""


def read_password(source: PasswordSource, limit: float) -> str:
    """The password, without the end of its line. A command gets ``limit`` seconds, and is killed
    with all that it has started. Raises PasswordUnreadable."""
    try:
        content = (
            _password_in_file(source)
            if source.file is not None
            else _password_of_command(source, limit)
        )
        password = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise PasswordUnreadable(f"{source} gives bytes that are not UTF-8") from None
    if not password:
        raise PasswordUnreadable(f"{source} gives nothing: it must give the password alone")
    return password


def _password_in_file(source: PasswordSource) -> bytes:
    """The password in a file. A link may lead to the file, as in a volume of Kubernetes. A pipe
    could be read only once, so it is refused."""
    assert source.file is not None
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(source.file, flags)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise PasswordUnreadable(f"{source} is no plain file")
            return os.read(fd, _LONGEST_PASSWORD)
        finally:
            os.close(fd)
    except OSError as error:
        remedy = "the user of this process must be able to read it"
        raise PasswordUnreadable(f"{source}: {error.strerror}; {remedy}") from None


def _password_of_command(source: PasswordSource, limit: float) -> bytes:
    """The password that a command prints. What the command says of errors is dropped: a secret may
    be in it."""
    try:
        process = subprocess.Popen(
            source.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise PasswordUnreadable(f"{source} cannot be started: {error.strerror}") from None
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise PasswordUnreadable(
            f"{source} has not ended within {limit:g} s (connect_timeout); let a timer write a "
            "file for password_file instead"
        ) from None
    finally:
        _end(process)
    if process.returncode:
        how = f"exit code {process.returncode}" if process.returncode > 0 else "a signal"
        remedy = "run it by hand as the user of this process to see why"
        raise PasswordUnreadable(f"{source} has ended with {how}; {remedy}")
    return printed[:_LONGEST_PASSWORD]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a command that took too long, or whose reader was interrupted."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


class NoPassword(exceptions.AuthenticationError):
    """The password cannot be read from its source."""


class _Credentials:
    """What redis-py asks for user and password at each connect, if they stand in no URL.
    ``limit``: seconds that a command may take."""

    def __init__(self, source: PasswordSource, user: str | None, limit: float) -> None:
        self.limit = limit
        self._source = source
        self._user = user or "default"

    def get_credentials(self) -> tuple[str, str]:
        """User and password. Raises NoPassword."""
        try:
            return self._user, read_password(self._source, self.limit)
        except PasswordUnreadable as error:
            raise NoPassword(str(error)) from None

    def add_source(self, error: BaseException) -> None:
        """Says in a refusal of the login where the password was read."""
        if isinstance(error, exceptions.AuthenticationError) and not isinstance(error, NoPassword):
            error.args = (f"{error} (user {self._user}, password of {self._source})",)


class Connector:
    """Opens connections to the server at ``url``. Raises ConfigError if that is no Redis URL."""

    def __init__(
        self,
        url: str,
        timeout: float,
        connect_timeout: float,
        password_source: PasswordSource | None = None,
    ) -> None:
        self._timeout = timeout
        self._pool = _pool(url, timeout, connect_timeout)
        self._credentials: _Credentials | None = None
        if password_source is not None:
            options = self._pool.connection_kwargs
            user = options.pop("username", None)
            self._credentials = _Credentials(password_source, user, connect_timeout)
            options["credential_provider"] = self._credentials

    def connect(self) -> RawConnection:
        """A new connection, logged in. Raises ConnectionLost or RedisError."""
        connection: Any = self._pool.make_connection()
        began = monotonic()
        try:
            connection.connect()
            _leave_timeouts_to_the_kernel(connection._sock, self._timeout)
            return RawConnection(connection, self._timeout)
        except exceptions.TimeoutError as error:
            connection.disconnect()
            raise Unanswered(str(error), monotonic() - began) from error
        except BaseException as error:
            connection.disconnect()
            _drop_arguments(error)
            _explain_login(error)
            if self._credentials is not None:
                self._credentials.add_source(error)
            raise

    def set_timeout(self, seconds: float) -> None:
        """No read, and no step of a connect, waits for longer on the connections to come."""
        self._timeout = seconds
        self._pool.connection_kwargs.update(socket_timeout=seconds, socket_connect_timeout=seconds)
        if self._credentials is not None:
            self._credentials.limit = seconds


class _Packer:
    """Makes the commands with which redis-py logs in; its own hands numbers to hiredis."""

    def pack(self, *command: Any) -> list[Packed]:
        """One command, as the parts that redis-py sends."""
        return [pack([command])]


def _as_error(parse: Callable[[str], Exception], said: str) -> Exception:
    """The error that the server has replied, of redis-py's class for it."""
    try:
        return parse(said)
    except (ValueError, LookupError):  # it begins as one that redis-py takes apart (MOVED)
        return exceptions.ResponseError(said)


def _check_reply(error: Exception) -> None:
    """Raises ``error`` unless it refuses a single command."""
    _drop_arguments(error)
    if not isinstance(error, exceptions.ResponseError):
        raise error


def _drop_arguments(error: BaseException) -> None:
    """Removes the arguments that a server repeats when it does not know a command: a job's own, or,
    after the HELLO of a login, the password."""
    said, repeats, _ = str(error).partition(_ARGUMENTS)
    if repeats:
        error.args = (said,)


def _explain_login(error: BaseException) -> None:
    """Says in a word what a server means that gets no password, and speaks of its own commands."""
    if isinstance(error, exceptions.AuthenticationError) and "HELLO" in str(error):
        error.args = ("it asks for a password, and none was given",)


def _leave_timeouts_to_the_kernel(sock: socket.socket, timeout: float) -> None:
    """Python keeps a socket's time-out by a poll() before every read and write; the kernel keeps it
    for nothing, for a descriptor that blocks. Plain sockets only: TLS reads more than once for one
    record."""
    if sys.platform != "linux" or type(sock) is not socket.socket:
        return
    whole, part = divmod(timeout, 1)
    limit = struct.pack("ll", int(whole), int(part * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    sock.settimeout(None)
    if not os.get_blocking(sock.fileno()):  # gevent and eventlet have put their class in its place
        sock.settimeout(timeout)


def _keepalive_options() -> dict[int, int]:
    """The options of ``_TCP_KEEPALIVE`` that this system knows."""
    known = [name for name in _TCP_KEEPALIVE if hasattr(socket, name)]
    return {getattr(socket, name): _TCP_KEEPALIVE[name] for name in known}


def _pool(url: str, timeout: float, connect_timeout: float) -> ConnectionPool:
    options = {**_OPTIONS, "socket_timeout": timeout, "socket_connect_timeout": connect_timeout}
    options["command_packer"] = _Packer()
    if not url.startswith("unix:"):
        options |= {"socket_keepalive": True, "socket_keepalive_options": _keepalive_options()}
    try:
        pool = ConnectionPool.from_url(url, **options)
    except ValueError:  # its text may repeat the password
        raise ConfigError(
            f"{redacted_url(url)!r} is not a Redis URL: use redis://, rediss://, unix:// or sentinel://"
        ) from None
    if issubclass(pool.connection_class, SSLConnection):
        _set_tls(pool.connection_kwargs)
    return pool


def _set_tls(options: dict[str, Any]) -> None:
    """Does for the options of a URL what redis-py does from version 8 on. Version 5 checks no host
    name unless it is told to; 6 and 7 check one also where no certificate is asked for, which
    Python refuses; all three take the number of ``ssl_min_version`` for text."""
    wanted = options.get("ssl_check_hostname", True)
    options["ssl_check_hostname"] = wanted and options.get("ssl_cert_reqs") != "none"
    if "ssl_min_version" in options:
        options["ssl_min_version"] = ssl.TLSVersion(int(options["ssl_min_version"]))
