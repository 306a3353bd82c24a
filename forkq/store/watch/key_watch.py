"""Waiting for keys to change, without asking for them again and again. Any process.

However many threads and coroutines of a process wait, one thread with one connection asks for all
of them: Redis reports a change of a key that was read (``CLIENT TRACKING``), and the thread reads
it again. It ends when no one waits any more.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import islice
from time import monotonic
from typing import Any, Final, Protocol

from ..connection import Command, RedisConnection, ResponseError
from ..outage import reconnect_backoff
from ..polling import readable
from .waker import Waker

# So many keys are read in one round trip: a value may have some 256 KiB.
_PAGE: Final = 100
# Seconds for which the connection waits for the next caller.
_IDLE: Final = 5.0
# Seconds until it reads again where the server reports no changes.
_POLL: Final = 0.1
_UNTRACKED: Final = "redis does not report changes (%s): results are asked for every %g s"
_log: Final = logging.getLogger("forkq")


class Waiter(Protocol):
    """What waits for ``key``."""

    key: str

    def tell(self, found: bytes | Exception | None) -> bool:
        """Takes the value (None: there is none), or why it cannot be read. Returns whether it has
        heard enough. Called in the watch's thread: it must not block."""


class KeyWatch:
    """Tells waiters what stands in their keys: when they come, and after each change.

    ``make`` makes a connection, which is not open; ``failure`` makes of an error of Redis what
    waiters are told. A waiter may leave at any time and place,
    also where Python's garbage collector closes a coroutine: so ``drop`` takes no lock.
    """

    def __init__(
        self, make: Callable[[], RedisConnection], failure: Callable[[Exception], Exception]
    ) -> None:
        self._make = make
        self._failure = failure
        self._lock = threading.Lock()
        self._orders: deque[tuple[Waiter, bool]] = deque()  # who comes (True), and who leaves
        self._is_running = self._is_closed = False
        self._reader: _Reader | None = None
        self._pid = os.getpid()
        self._waker: Waker | None = None  # that of the thread which runs

    def add(self, waiter: Waiter) -> None:
        """Has the waiter told of its key from now on."""
        if self._pid != os.getpid():
            self._forget_the_parent()
        with self._lock:
            self._orders.append((waiter, True))
            self._is_closed = False
            if not self._is_running:
                self._start()
            self._wake()

    def close(self) -> None:
        """Ends the thread once no one waits, without lingering for the next one."""
        if self._pid == os.getpid():
            with self._lock:
                self._is_closed = True
                if self._is_running:
                    self._wake()

    def drop(self, waiter: Waiter) -> None:
        """Tells the waiter no more, who has not heard enough: so the thread is there."""
        if self._pid == os.getpid():
            self._orders.append((waiter, False))
            self._wake()

    def _start(self) -> None:
        self._waker = Waker()
        self._is_running = True
        try:
            threading.Thread(target=self._run, name="forkq results", daemon=True).start()
        except BaseException:
            self._orders.clear()
            self._note_end()
            raise

    def _note_end(self) -> None:
        """Lets go of the thread and of its pipe. The lock is held."""
        self._is_running = False
        self._waker = None

    def _wake(self) -> None:
        """Wakes the thread. It may end meanwhile: the pipe is there until this has let go of it."""
        if (waker := self._waker) is not None:
            waker.wake()

    def _forget_the_parent(self) -> None:
        """Begins anew in a forked child: the thread, and its connection, are the parent's."""
        self._note_end()
        if self._reader is not None:
            self._reader.close()
        self._lock, self._orders = threading.Lock(), deque()
        self._pid = os.getpid()

    # In its thread

    def _run(self) -> None:
        assert self._waker is not None
        self._reader = reader = _Reader(self._make(), self._waker.fd, self._failure)
        try:
            while self._attend(reader):
                pass
        finally:
            reader.close()

    def _attend(self, reader: _Reader) -> bool:
        """Does what is to be done, and waits for more. Returns whether the thread goes on."""
        assert self._waker is not None
        self._waker.clear()
        while self._orders:
            waiter, comes = self._orders.popleft()
            (reader.add if comes else reader.drop)(waiter)
        reader.attend(0.0 if self._is_closed and reader.is_left else _IDLE)
        if reader.is_idle or (self._is_closed and reader.is_left):
            with self._lock:
                if not self._orders:
                    self._note_end()
                    return False  # from here on a caller may start another thread
        return True


class _Reader:
    """Reads the keys that are waited for, over one connection. ``bell`` is readable when there are
    orders."""

    def __init__(
        self,
        connection: RedisConnection,
        bell: int,
        failure: Callable[[Exception], Exception],
    ) -> None:
        self._connection = connection
        self._bell = bell
        self._failure = failure
        self._waiters: defaultdict[str, list[Waiter]] = defaultdict(list)
        self._unread: set[str] = set()
        self._opened = -1
        self._tracks = True
        self._backoff = reconnect_backoff(connection)
        self._retry_at = 0.0
        self._since = monotonic()  # when the last waiter has left
        connection.on_change(self._note_changes)

    @property
    def is_left(self) -> bool:
        """Whether there is no waiter."""
        return not self._waiters

    @property
    def is_idle(self) -> bool:
        """Whether there was no waiter for a while."""
        return not self._waiters and monotonic() >= self._since + _IDLE

    def add(self, waiter: Waiter) -> None:
        """Reads the key of the waiter next: even while Redis is away, one that comes hears so."""
        self._waiters[waiter.key].append(waiter)
        self._unread.add(waiter.key)
        self._retry_at = 0.0

    def drop(self, waiter: Waiter) -> None:
        """Forgets the waiter."""
        found = self._waiters.get(waiter.key)
        if found and waiter in found:
            found.remove(waiter)
            self._forget_if_left(waiter.key)

    def attend(self, longest: float) -> None:
        """Reads what is to be read, then waits for a change, an order, or ``longest`` seconds."""
        try:
            if self._waiters and monotonic() >= self._retry_at:
                self._read_all()
            self._wait(longest)
        except Exception as error:  # noqa: BLE001 - who waits must hear of it
            self._fail(error)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _wait(self, longest: float) -> None:
        connection, pause = self._connection, self._retry_at - monotonic()
        if pause > 0 or not connection.connected:
            readable((self._bell,), min(longest, pause) if pause > 0 else longest)
            return
        if connection.wait(longest if self._tracks else _POLL, self._bell):
            connection.read_changes()
        if not self._tracks:
            self._unread.update(self._waiters)

    def _read_all(self) -> None:
        connection = self._connection
        connection.connect()
        if connection.opened != self._opened:  # the server has forgotten what was read
            self._opened = connection.opened
            self._unread.update(self._waiters)
            self._track()
        while self._unread:
            self._read_page([*islice(self._unread, _PAGE)])
        self._backoff.reset()
        self._retry_at = 0.0

    def _track(self) -> None:
        try:
            self._connection.track()
            self._tracks = True
        except ResponseError as error:
            if self._tracks:
                _log.warning(_UNTRACKED, error, _POLL)
            self._tracks = False

    def _read_page(self, keys: list[str]) -> None:
        """Reads some keys. A change that is reported from here on has them read again."""
        self._unread.difference_update(keys)
        asked: Command = ("MGET", *keys)
        before: list[Command] = [("CLIENT", "CACHING", "YES")] if self._tracks else []
        values: Any = self._connection.pipeline([*before, asked])[-1]
        if isinstance(values, ResponseError):
            values = [self._failure(values)] * len(keys)
        for key, value in zip(keys, values, strict=True):
            self._tell(key, value)

    def _tell(self, key: str, found: bytes | Exception | None) -> None:
        waiters = self._waiters.get(key)
        if waiters is None:
            return
        waiters[:] = [waiter for waiter in waiters if not waiter.tell(found)]
        self._forget_if_left(key)

    def _forget_if_left(self, key: str) -> None:
        if not self._waiters[key]:
            del self._waiters[key]
            self._unread.discard(key)
            if not self._waiters:
                self._since = monotonic()

    def _fail(self, error: Exception) -> None:
        """Redis is away: each waiter hears so, and most go on waiting."""
        self._connection.close()
        self._retry_at = monotonic() + self._backoff.pause()
        told = self._failure(error)
        for key in list(self._waiters):
            self._tell(key, told)

    def _note_changes(self, keys: list[bytes] | None) -> None:
        if keys is None:
            self._unread.update(self._waiters)
        else:
            named = (str(key, "utf-8", "replace") for key in keys)
            self._unread.update(key for key in named if key in self._waiters)
