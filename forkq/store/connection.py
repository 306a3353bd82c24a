"""One connection to Redis: commands, scripts, and the changes that the server reports."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from ..wire.password_source import PasswordSource
from ..wire.redis_url import cluster_url, redacted_url, sentinel_url, slot_of
from .cluster import ELSEWHERE, ClusterConnector, elsewhere
from .damage import damaged, message
from .polling import readable
from .redis_py import Command as Command  # noqa: PLC0414 - for callers
from .redis_py import Connector, OnChange, Packed, RawConnection, Unanswered, exceptions
from .redis_py import pack as pack  # noqa: PLC0414 - as above
from .scripts import Call as Call  # noqa: PLC0414 - as above
from .scripts import Script
from .sentinel import SentinelConnector

RedisError = exceptions.RedisError
ResponseError = exceptions.ResponseError
OutOfMemory = exceptions.OutOfMemoryError
ConnectionLost = (exceptions.ConnectionError, exceptions.TimeoutError)

# Seconds. A server that has said nothing for so long is asked for a sign of life. It gets half of
# the time-out for it: by default, a silent partition is noticed after 4.5 s.
_SILENCE: Final = 2.0
_WRONG_TYPE: Final = "WRONGTYPE"

# The server refuses so before it writes anything: to send the command again cannot do it twice.
_REFUSED: Final = ("READONLY", "NOREPLICAS", "UNBLOCKED")


def refused(error: BaseException) -> bool:
    """Whether the server refused a command without doing any of it, as in a failover."""
    # redis-py makes a class of its own of READONLY, of MOVED, ..., without the word in the message.
    return isinstance(error, (exceptions.ReadOnlyError, *ELSEWHERE)) or (
        isinstance(error, ResponseError) and str(error).startswith(_REFUSED)
    )


class RedisConnection:
    """One connection to Redis. Not thread-safe: one thread at a time may use it.

    Of a Redis Cluster (``in_cluster``) it reaches the node that has the keys under ``prefix``.
    ``timeout`` bounds each read, in seconds. Every method raises redis-py's ConnectionError or
    TimeoutError (``ConnectionLost``) after closing the connection, and never connects by itself.

    An exception from outside (a signal handler's, an asynchronous one) may strike on any line here.
    So the replies to come are counted before the first byte is sent, and a connection with unread
    replies takes no more commands: the next caller would read the reply to another command.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        password_source: PasswordSource | None = None,
    ) -> None:
        self.url = url
        self.password_source = password_source
        self._timeout = timeout
        self._connector = connector(url, prefix, timeout, connect_timeout, password_source)
        self.in_cluster = isinstance(self._connector, ClusterConnector)
        # A node of a cluster that has lost the slot hears of no push: it refuses a key of the slot.
        self._sign_of_life = ("EXISTS", f"{prefix}queues") if self.in_cluster else ("PING",)
        self._connection: RawConnection | None = None
        self._pid = 0  # of the process that has opened it
        self.opened = 0  # how often: what the server knows of a connection ends with it
        self._unread = self._reports = 0  # replies to come; changes that the server has reported
        self._probe_at = 0.0  # monotonic; 0: it has not waited since the last command
        self._on_change: OnChange | None = None

    @property
    def follows(self) -> bool:
        """Whether the server is looked up at each connect: Sentinels or the nodes of a cluster tell
        where it is."""
        return isinstance(self._connector, SentinelConnector | ClusterConnector)

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._connection is not None

    def connect(self) -> None:
        """Opens the connection, if it is not open. Raises ConnectionLost or RedisError."""
        if self._connection is None:
            connection = self._connector.connect()
            self._unread, self._pid = 0, os.getpid()
            self._connection = connection
            self.opened += 1
            self._pass_changes_on()

    def close(self) -> None:
        """Drops the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def call(self, *command: Any) -> Any:
        """One command and its reply. Raises the reply if it is an error."""
        self.send(command)
        [reply] = self.replies([command])
        return self._value(reply)

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Several commands in one round trip. A reply that is an error is returned in the list. A
        server that runs a script for long is an outage, as for ``call``."""
        self.send(*commands)
        replies = self.replies(commands)
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._check_outage(reply)
        return replies

    def replies(self, commands: Sequence[Command]) -> list[Any]:
        """The next replies, which are those to ``commands``. One that is an error is returned in
        the list."""
        replies = self.step(b"", 0, len(commands))
        for at, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                replies[at] = with_key(reply, commands[at])
        return replies

    def script(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Runs ``script``. Sends its text only if the server does not know it."""
        [reply] = self.exchange([Call(script, keys, arguments)])
        try:
            return self._value(reply)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            raise self._find_damaged([str(key) for key in keys], error) from error

    def exchange(self, commands: Sequence[Command | Call]) -> list[Any]:
        """Sends several commands and calls of scripts in one round trip, and returns the replies,
        errors among them. If the server does not know some of the scripts, these calls are sent
        again after their texts: one more round trip."""
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

    def set_timeout(self, seconds: float) -> None:
        """From now on no read, and no step of a connect, waits longer than ``timeout`` seconds."""
        if seconds == self._timeout:
            return
        self._timeout = seconds
        self._connector.set_timeout(seconds)
        if self._connection is not None:
            self._connection.set_timeout(seconds)

    def track(self) -> None:
        """Asks the server to report changes of the keys that are read after CLIENT CACHING YES.
        Raises ResponseError where that is refused (some proxies)."""
        self.call("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")

    def on_change(self, call: OnChange) -> None:
        """Calls ``call`` with the keys that changed, when a read finds the server's report. None
        stands for all keys. It holds after a new ``connect``, too."""
        self._on_change = call
        self._pass_changes_on()

    def read_changes(self) -> None:
        """Reads the changes that the server has reported. Only while no reply is awaited."""
        connection = self._open()
        while self._can_read(connection):
            try:
                connection.read_push()
            except BaseException:
                self.close()  # half a message, or the server has hung up
                raise

    def has_report(self) -> bool:
        """Whether the server has reported a change, which the next ``read`` will pass on. False
        also if that cannot be told. Only while no reply is awaited."""
        return self._open().next_is_push()

    def send(self, *commands: Command | Packed) -> None:
        """Sends without waiting for the replies. All earlier replies must have been read."""
        if self._unread:
            self.close()
            raise exceptions.ConnectionError("the last call was interrupted before its reply came")
        self.step(pack(commands), len(commands), 0)

    def step(self, commands: Packed, answers: int, awaited: int) -> list[Any]:
        """Sends ``commands``, which ``answers`` replies will answer, and returns the next
        ``awaited`` replies. One that is an error is as the server gave it: WRONGTYPE names no key.

        All that is sent and read goes through here. Replies that are not awaited now are read
        later, in order.
        """
        connection = self._connection or self._open()
        self._unread += answers
        self._probe_at = 0.0
        try:
            if commands:
                connection.write(commands)
            replies = connection.read_replies(awaited) if awaited else []
        except BaseException:
            self.close()  # half a command, or half a reply
            raise
        self._unread -= awaited
        return replies

    def read(self) -> Any:
        """The next reply. Raises it if it is an error."""
        [reply] = self.step(b"", 0, 1)
        return self._value(reply)

    def wait(self, timeout: float, *wakes: int) -> bool:
        """Waits until the server sends something, or one of the descriptors ``wakes`` is readable.

        Returns whether the server did within ``timeout`` seconds. What it sent stays unread: the
        next ``read`` passes an invalidation on, and returns the reply after it."""
        connection = self._open()
        deadline = time.monotonic() + timeout
        while not self._can_read(connection):
            if ready := readable((*wakes, connection.fileno()), self._pause(deadline)):
                return connection.fileno() in ready
            if (reports := self._reports_when_probed(connection)) or time.monotonic() >= deadline:
                return reports
        return True

    def listen(self, timeout: float, *wakes: int) -> None:
        """Waits as ``wait`` does, but asks for no sign of life, and reads the changes that the
        server has reported."""
        connection = self._open()
        if not self._can_read(connection):
            readable((*wakes, connection.fileno()), min(timeout, connection.look_every))
        self.read_changes()

    def descriptors(self) -> list[int]:
        """The open socket, for a forked child to close."""
        return [self._connection.socket.fileno()] if self._connection else []

    @property
    def reusable(self) -> bool:
        """Whether another caller in the process that has opened it may have it: it is open, and
        awaits no reply."""
        return self._connection is not None and not self._unread

    def stale(self, *, look: bool = True) -> bool:
        """Whether an idle connection must not be used: it is not ``reusable``, another process has
        opened it, or, if one is to ``look``, the server has closed it or sent something."""
        connection = self._connection
        if connection is None or self._unread or self._pid != os.getpid():
            return True
        try:
            return look and connection.can_read()
        except ConnectionLost:
            return True

    def _pass_changes_on(self) -> None:
        if self._on_change is not None and self._connection is not None:
            self._connection.on_invalidation(self._note_report)

    def _note_report(self, keys: list[bytes] | None) -> None:
        self._reports += 1
        if self._on_change is not None:
            self._on_change(keys)

    def _pause(self, deadline: float) -> float:
        """Seconds until a wait is over, or must look after its connection."""
        now = time.monotonic()
        self._probe_at = self._probe_at or now + _SILENCE
        return min(deadline - now, self._probe_at - now, self._open().look_every)

    def _reports_when_probed(self, connection: RawConnection) -> bool:
        """Asks for a sign of life after a long silence. Returns whether Redis has reported a change
        before its answer. While a reply is awaited, the time-out of the read holds."""
        if time.monotonic() < self._probe_at:
            return False
        self._probe_at = time.monotonic() + _SILENCE
        if self._unread:
            return False
        reports = self._reports
        self._probe(connection)
        return self._reports != reports

    def _probe(self, connection: RawConnection) -> None:
        limit = self._timeout / 2
        self.send(self._sign_of_life)
        if not readable((connection.fileno(),), limit):
            self.close()
            raise Unanswered(f"no sign of life within {limit:g} s", limit)
        self.read()

    def _value(self, reply: Any) -> Any:
        """Returns ``reply``. Raises it if it is an error."""
        if isinstance(reply, Exception):
            self._check_outage(reply)
            raise reply
        return reply

    def _check_outage(self, error: Exception) -> None:
        """Raises ConnectionLost if ``error`` is an outage, and no refusal of one command. A server
        that runs a script for long refuses all else, also to track keys, for which a caller would
        give up tracking. A node of a cluster may be unable to serve the slot now."""
        if isinstance(error, ELSEWHERE):
            self.close()
            raise elsewhere(error) from error
        if isinstance(error, ResponseError) and str(error).startswith("BUSY "):
            self.close()
            raise exceptions.BusyLoadingError(str(error))

    def _find_damaged(self, keys: Sequence[str], error: ResponseError) -> ResponseError:
        """``error`` of a script, with the names of the damaged keys if there are any."""
        return damaged_among(keys, self.pipeline([("TYPE", key) for key in keys])) or error

    def _open(self) -> RawConnection:
        if self._connection is None:
            raise exceptions.ConnectionError(f"no connection to {redacted_url(self.url)}")
        return self._connection

    def _can_read(self, connection: RawConnection) -> bool:
        try:
            return connection.can_read()
        except BaseException:
            self.close()
            raise


def connector(
    url: str,
    prefix: str,
    timeout: float,
    connect_timeout: float,
    password_source: PasswordSource | None,
) -> Connector | SentinelConnector | ClusterConnector:
    """Opens connections to ``url``, to the master that its Sentinels name, or to the node of its
    cluster that has the keys under ``prefix``. The login of Sentinels is in the URL."""
    how = (timeout, connect_timeout, password_source)
    if (sentinel := sentinel_url(url)) is not None:
        return SentinelConnector(url, sentinel, *how)
    if (cluster := cluster_url(url)) is not None:
        return ClusterConnector(url, cluster, slot_of(prefix), *how)
    return Connector(url, *how)


class DamagedKey(exceptions.ResponseError):
    """A WRONGTYPE with the damaged key and its remedy."""


def damaged_among(keys: Sequence[str], types: Sequence[Any]) -> DamagedKey | None:
    """The error that names those of a script's ``keys`` that are damaged, if there are any;
    ``types`` are the replies to TYPE."""
    found = [each.decode() if isinstance(each, bytes) else "none" for each in types]
    wrong = damaged(keys, found)
    return DamagedKey(f"{_WRONG_TYPE} {message(wrong)}") if wrong else None


def with_key(error: exceptions.ResponseError, command: Command) -> exceptions.ResponseError:
    """``error``, or if it is a WRONGTYPE, a DamagedKey that names the key of its command."""
    if not str(error).startswith(_WRONG_TYPE):
        return error
    if command[0] != "EVALSHA":
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[1])])}")
    count = int(command[2])
    if count == 1:
        return DamagedKey(f"{_WRONG_TYPE} {message([str(command[3])])}")
    keys = ", ".join(f'"{key}"' for key in command[3 : 3 + count])
    return DamagedKey(f"{_WRONG_TYPE} one of the keys {keys} holds something else; see TYPE")
