"""One connection to Redis that all pushes of an event loop share: each reply goes to its push.

The socket is one that ``Connector`` has opened and logged in. Redis answers in order, so a queue
says which push a reply belongs to. A push that was cancelled keeps its places in that queue: its
replies are read and dropped, and the connection goes on. Nothing here waits: the loop calls when
there is something to read or to write, and when time is up.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextvars import Context
from itertools import repeat
from math import inf
from time import monotonic
from typing import Any, Final

from ..polling import input_check
from ..redis_py import Packed, RawConnection, Unanswered, exceptions
from .in_thread import in_thread

_READ_SIZE: Final = 65_536  # bytes; what is more is read in the loop's next turn
# Seconds. A server that has answered so lately is not looked at before the next command
# (store/pool.py).
_FRESH: Final = 0.0001
_NOT_NOW: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Replies:
    """The replies to the commands of one push, in order. ``sent``: whether the socket was handed
    some of these commands; before that, Redis has surely none of them."""

    __slots__ = ("_error", "_future", "_wanted", "found", "sent")

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.sent = False
        self._wanted = 0
        self._future: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    async def take(self, count: int) -> list[Any]:
        """Awaits and takes the next ``count`` replies. One that refuses a command is an error among
        them. Raises the error with which the connection was lost."""
        if len(self.found) < count:
            if self._error is not None:
                raise self._error
            self._wanted = count
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        taken = self.found[:count]
        del self.found[:count]
        return taken

    def add(self, reply: Any) -> None:
        """The next reply has come."""
        self.found.append(reply)
        if len(self.found) == self._wanted:
            self._end(None)

    def fail(self, error: Exception) -> None:
        """The connection is lost, and no further reply will come."""
        self._error = error
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        future = self._future
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


class PipelinedConnection:
    """Sends commands, and gives each reply to the push that awaits it. Of one loop: all methods are
    called there. It holds no reference to the loop, which may be dropped together with it.

    A server that says nothing for ``timeout`` seconds while it owes a reply is lost.
    """

    def __init__(self, raw: RawConnection, timeout: float) -> None:
        raw.socket.setblocking(False)
        self._raw = raw
        self._has_input = input_check(raw.fileno())
        self._timeout = timeout
        self._waiting: list[tuple[Packed, Replies, int]] = []  # the socket was handed none of these
        self._rest = b""  # of what the socket was handed, and did not take
        self._awaited: deque[Replies] = deque()  # once for each reply that is to come
        self._answered_at = monotonic()  # or when the oldest command that is not answered was sent
        self._looked_at = self._answered_at  # at who is the master, where that may change
        self._is_timed = False
        self._is_retired = False
        self.is_open = True
        # Callbacks run in it: that of the push by which they were made may hold what it likes.
        self._context = Context()
        self._context.run(asyncio.get_running_loop().add_reader, raw.fileno(), self._read)

    @property
    def is_idle(self) -> bool:
        """Whether no push awaits a reply."""
        return not self._awaited and not self._waiting

    def send(self, commands: Packed, replies: Replies, count: int) -> None:
        """Sends ``commands``, which ``count`` replies will answer. At once if nothing is under way;
        else with what else is sent in this turn of the loop."""
        if not self.is_open:
            raise exceptions.ConnectionError("the connection was closed")
        if not self._waiting:
            if self._awaited:
                asyncio.get_running_loop().call_soon(self._send_waiting, context=self._context)
            else:
                self._answered_at = monotonic()
                self._watch()
                replies.sent = True
                self._awaited.extend(repeat(replies, count))
                self._write(commands)
                return
        self._waiting.append((commands, replies, count))

    def take_back(self, replies: Replies) -> None:
        """What awaited these replies does so no more: commands that were not sent are left out."""
        self._waiting = [each for each in self._waiting if each[1] is not replies]
        if self._is_retired and self.is_idle:
            self.close()

    def is_stale(self) -> bool:
        """Whether it must not be used: it is closed or retired, the server has hung up, or has said
        what nothing awaits, or it has lost the slot of a cluster."""
        if not self.is_open or self._is_retired:
            return True
        if self._awaited or monotonic() - self._answered_at < _FRESH:
            return False
        try:
            if self._raw.look_every == inf:  # else ``check`` asks another server
                self._raw.check()
        except exceptions.RedisError:
            return True
        return bool(self._has_input())

    @property
    def is_to_be_checked(self) -> bool:
        """Whether ``check`` is due: Sentinels may name another master by now."""
        every = self._raw.look_every
        return every < inf and monotonic() - self._looked_at >= every

    def check(self) -> asyncio.Future[None]:
        """Asks the Sentinels in a thread. The future raises MasterLost if the server was replaced;
        then the connection is lost."""
        self._looked_at = monotonic()
        asked = in_thread(self._raw.check)
        asked.add_done_callback(self._note_check, context=self._context)
        return asked

    def retire(self) -> None:
        """Takes no further push, and closes when it owes no reply."""
        self._is_retired = True
        if self.is_idle:
            self.close()

    def close(self) -> None:
        """Closes the socket. What is still awaited is lost."""
        self._fail(exceptions.ConnectionError("the connection was closed"))

    def _send_waiting(self) -> None:
        """Sends what the pushes of this turn of the loop have to send."""
        waiting, self._waiting = self._waiting, []
        if not waiting or not self.is_open:
            return
        if not self._awaited:
            self._answered_at = monotonic()
        for _, replies, count in waiting:
            replies.sent = True
            self._awaited.extend(repeat(replies, count))
        self._watch()
        self._write(b"".join([commands for commands, _, _ in waiting]))

    def _write(self, commands: Packed) -> None:
        """Hands the socket what it takes now, and the rest as soon as it takes more."""
        was_blocked = bool(self._rest)
        self._rest += commands
        if not was_blocked:
            self._write_rest()
            if self._rest and self.is_open:
                loop = asyncio.get_running_loop()
                # A context of its own: this may be a callback, and run in ``_context``.
                Context().run(loop.add_writer, self._raw.fileno(), self._go_on_writing)

    def _go_on_writing(self) -> None:
        self._write_rest()
        if not self._rest and self.is_open:
            asyncio.get_running_loop().remove_writer(self._raw.fileno())

    def _write_rest(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[self._raw.socket.send(self._rest) :]
        except _NOT_NOW:
            return
        except OSError as error:
            self._fail(self._raw.lost(error))

    def _read(self) -> None:
        """Reads what has come, and gives each reply to its push."""
        sock = self._raw.socket
        try:
            while self.is_open:
                received = sock.recv(_READ_SIZE)
                if not received:
                    raise ConnectionResetError("the server has closed the connection")
                self._give_out(self._raw.replies_in(received))
                if not isinstance(sock, ssl.SSLSocket):  # TLS may keep some that it has decoded
                    return
        except _NOT_NOW:
            return
        except OSError as error:
            self._fail(self._raw.lost(error))
        except exceptions.RedisError as error:
            self._fail(error)

    def _give_out(self, replies: list[Any]) -> None:
        self._answered_at = monotonic()
        awaited = self._awaited
        for reply in replies:
            if not awaited:
                raise exceptions.ConnectionError("the server sent a reply that no command awaits")
            awaited.popleft().add(reply)
        if self._is_retired and self.is_idle:
            self.close()

    def _watch(self) -> None:
        """Has the loop look later whether the server has answered. The look is not cancelled when
        it has: it comes once in a while, and a push pays nothing for it."""
        if not self._is_timed:
            self._is_timed = True
            self._look_later(self._timeout)

    def _look_later(self, seconds: float) -> None:
        limit = max(0.0, min(seconds, self._raw.look_every))
        asyncio.get_running_loop().call_later(limit, self._look, context=self._context)

    def _look(self) -> None:
        self._is_timed = False
        if not self.is_open or not self._awaited:
            return
        silence = monotonic() - self._answered_at
        if silence >= self._timeout:
            said = f"no answer within {self._timeout:g} s"
            self._fail(Unanswered(said, self._timeout))
            return
        if self.is_to_be_checked:
            self.check()
        self._is_timed = True
        self._look_later(self._timeout - silence)

    def _note_check(self, asked: asyncio.Future[None]) -> None:
        error = None if asked.cancelled() else asked.exception()
        if isinstance(error, exceptions.RedisError):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Closes the socket, and tells each push that awaits a reply."""
        if not self.is_open:
            return
        self.is_open = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._raw.fileno())
        loop.remove_writer(self._raw.fileno())
        self._raw.close()
        lost = dict.fromkeys([*self._awaited, *(replies for _, replies, _ in self._waiting)])
        self._awaited.clear()
        self._waiting.clear()
        for replies in lost:
            replies.fail(error)
