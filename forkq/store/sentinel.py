"""Reaches the master that Redis Sentinels name, and notices when they name another. Any process.

A master that was replaced goes on taking writes for some seconds, and then loses them: it does not
know yet that it is a replica. So a process asks a Sentinel once a second where the master is, also
while its connections wait. It keeps no connection to a Sentinel open: a forked child inherits none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from ..wire.password_source import PasswordSource
from ..wire.redis_url import SentinelUrl
from .polling import readable
from .redis_py import Connector, Packed, RawConnection, exceptions
from .refusals import refuses

Address: TypeAlias = "tuple[str, int]"

LOOK_EVERY: Final = 1.0
# Seconds that one step may take: a connect, a login, an answer. A frozen server takes connections.
_SENTINEL_STEP: Final = 0.5
_MASTER_STEP: Final = 1.0
# Seconds. The longest pause between two looks while no Sentinel answers.
_LONGEST_PAUSE: Final = 8.0


class MasterLost(exceptions.ConnectionError):
    """The Sentinels name another master, or none that can be used, or the master has hung up."""


class UnknownMaster(exceptions.ResponseError):
    """A Sentinel watches no master of that name."""


class Sentinel(NamedTuple):
    """One Sentinel: where it is, as messages show it, and how to reach it."""

    place: str
    connector: Connector


class SentinelConnector:
    """Opens connections to the master. It has the methods of ``Connector``."""

    def __init__(
        self,
        url: str,
        parts: SentinelUrl,
        timeout: float,
        connect_timeout: float,
        password_source: PasswordSource | None = None,
    ) -> None:
        self._parts = parts
        self._password_source = password_source
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._watch = SentinelView.of(url, parts)

    def connect(self) -> RawConnection:
        """A new connection to the master, logged in. Raises ConnectionLost or RedisError.

        It asks one Sentinel after the other until one has named a server that is a master: a
        Sentinel that was cut off may name the old one.
        """
        failures: dict[Address, Exception] = {}
        for sentinel, address in self._watch.ask_each():
            if address in failures:
                continue
            try:
                connection = self._connect_to(address)
            except exceptions.RedisError as error:
                failures[address] = error
            else:
                self._watch.found(sentinel, address)
                return connection
        raise next(iter(failures.values()))  # at least one: else ask_each has raised

    def set_timeout(self, seconds: float) -> None:
        """No read, and no step of a connect, waits longer on the connections to come."""
        self._timeout = self._connect_timeout = seconds

    def _connect_to(self, address: Address) -> RawConnection:
        step = min(_MASTER_STEP, self._timeout)
        url = self._parts.master_url(*address)
        connect_step = min(step, self._connect_timeout)
        raw = Connector(url, step, connect_step, self._password_source).connect()
        try:
            check_role(raw, address, "the Sentinels name")
            raw.set_timeout(self._timeout)
        except BaseException:
            raw.close()
            raise
        return MasterConnection(raw, self._timeout, address, self._watch)


class MasterConnection(RawConnection):
    """A connection that raises MasterLost once the Sentinels name another master."""

    __slots__ = ("_address", "_watch")
    look_every = LOOK_EVERY

    def __init__(
        self, raw: RawConnection, timeout: float, address: Address, watch: SentinelView
    ) -> None:
        super().__init__(raw._connection, timeout)
        self._address = address
        self._watch = watch

    def write(self, commands: Packed) -> None:
        """Writes what ``pack`` has made. Sends nothing to a server that was replaced: raises
        MasterLost."""
        self.check()
        super().write(commands)

    def can_read(self) -> bool:
        """Whether the server has sent something, or has hung up. Raises MasterLost once the server
        was replaced."""
        self.check()
        return super().can_read()

    def lost(self, error: OSError) -> exceptions.RedisError:
        """The error for one of the socket, with the address of the master. A server may end what is
        idle at any time; MasterLost says that this may be a failover."""
        found = super().lost(error)
        if isinstance(found, exceptions.TimeoutError):
            return found
        return MasterLost(f"the master at {address_text(self._address)}: {found}")

    def check(self) -> None:
        """Raises MasterLost once the server was replaced. Asks a Sentinel if the last answer is a
        second old."""
        present = self._watch.look()
        if present is not None and present != self._address:
            was, is_ = address_text(self._address), address_text(present)
            raise MasterLost(f"the Sentinels have replaced the master at {was} by {is_}")

    def _receive(self) -> None:
        """Waits for bytes of the server, and hands them to the reader. Stops waiting once the
        server was replaced."""
        self._wait_for_reply()
        super()._receive()

    def _wait_for_reply(self) -> None:
        deadline = time.monotonic() + self._timeout
        while (left := deadline - time.monotonic()) > 0:
            if readable((self.fileno(),), min(left, LOOK_EVERY)):
                return
            self.check()
        raise exceptions.TimeoutError(f"no answer within {self._timeout:g} s")


class SentinelView:
    """What the Sentinels of one URL say. All connections of a process to that URL share it.

    Threads use it without a lock. At worst, two of them ask at the same time.
    """

    _by_url: ClassVar[dict[str, SentinelView]] = {}

    def __init__(self, parts: SentinelUrl) -> None:
        self._name = parts.name
        # The one that answered last comes first.
        self._sentinels = tuple(
            Sentinel(urlsplit(url).netloc.rpartition("@")[2], _connector(url))
            for url in parts.sentinels
        )
        self._address: Address | None = None
        self._next_look = 0.0  # monotonic
        self._pause = LOOK_EVERY

    @classmethod
    def of(cls, url: str, parts: SentinelUrl) -> SentinelView:
        """The view of this process for ``url``."""
        return cls._by_url.setdefault(url, cls(parts))

    def ask_each(self) -> Iterator[tuple[Sentinel, Address]]:
        """Each Sentinel that answers, and the address that it names. Raises MasterLost or the
        Sentinels' refusal if none names one."""
        failures: list[Exception] = []
        for sentinel in self._sentinels:
            try:
                address = self._ask(sentinel)
            except exceptions.RedisError as error:
                failures.append(error)
            else:
                yield sentinel, address
        if len(failures) == len(self._sentinels):
            raise self._failure(failures)

    def found(self, sentinel: Sentinel, address: Address) -> None:
        """Notes that the address which ``sentinel`` has named is a master's."""
        self._prefer(sentinel)
        self._address = address
        self._next_look = time.monotonic() + LOOK_EVERY

    def look(self) -> Address | None:
        """Where the master is, as far as is known. Asks if the last answer is a second old."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY  # first: other threads need not ask
            self._look_again(time.monotonic() + _SENTINEL_STEP / 2)
        return self._address

    def _look_again(self, until: float) -> None:
        """Asks until a Sentinel answers. After one that was slow to fail, the others get their turn
        with the next look: a caller waits."""
        for sentinel in self._sentinels:
            try:
                self._address = self._ask(sentinel)
            except exceptions.RedisError:
                self._sentinels = (*_without(self._sentinels, sentinel), sentinel)
                if time.monotonic() > until:
                    break
            else:
                self._prefer(sentinel)
                self._pause = LOOK_EVERY
                return
        self._next_look = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _prefer(self, sentinel: Sentinel) -> None:
        if self._sentinels[0] is not sentinel:
            self._sentinels = (sentinel, *_without(self._sentinels, sentinel))

    def _ask(self, sentinel: Sentinel) -> Address:
        try:
            reply = self._query(sentinel.connector.connect())
        except exceptions.RedisError as error:
            error.args = (f"the Sentinel {sentinel.place}: {error}",)
            raise
        if reply is None:
            told = f"the Sentinel {sentinel.place} watches no master named {self._name}"
            raise UnknownMaster(told)
        host, port = reply
        return host.decode(), int(port)

    def _query(self, connection: RawConnection) -> Any:
        try:
            connection.send([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)])
            return connection.read()
        finally:
            connection.close()

    def _failure(self, failures: Sequence[Exception]) -> Exception:
        """The error to raise when no Sentinel has named a master. If each Sentinel that answers
        refuses, to wait will not help."""
        if all(refuses_or_answers(error) for error in failures):
            return failures[0]
        told = "; ".join(str(error).rstrip(".") for error in failures)
        return MasterLost(f"no Sentinel names the master {self._name}: {told}")


def _connector(url: str) -> Connector:
    return Connector(url, _SENTINEL_STEP, _SENTINEL_STEP)


def _without(sentinels: Iterable[Sentinel], one: Sentinel) -> list[Sentinel]:
    return [each for each in sentinels if each is not one]


def refuses_or_answers(error: Exception) -> bool:
    """Whether the server is there: to wait will not help."""
    lost = isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError)
    return refuses(error) or not lost


def check_role(connection: RawConnection, address: Address, who: str) -> None:
    """Raises MasterLost for a replica: a failover is under way, or ``who`` is not up to date. HELLO
    tells the role, and needs no right that a connection does not need anyway."""
    connection.send([("HELLO",)])
    role = connection.read().get(b"role", b"unknown").decode()
    if role != "master":
        raise MasterLost(f"{who} {address_text(address)} as master, but it is a {role}")


def address_text(address: Address) -> str:
    """``HOST:PORT``, for messages."""
    return f"{address[0]}:{address[1]}"
