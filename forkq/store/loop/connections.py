"""The connections of event loops to one server: two for each loop, opened at first use.

They are opened in a thread, by the code that opens those of threads: to look a name up, to shake
hands (TLS), to ask Sentinels and to run a command for a password would hold the loop up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from ...errors import ForkqError
from ..redis_py import RawConnection, exceptions, pack
from .in_thread import in_thread
from .pipelined import PipelinedConnection, Replies

_UNFIT: Final = (
    "this event loop cannot watch a socket (add_reader), and nothing was pushed; on Windows, call "
    "asyncio.run(main(), loop_factory=asyncio.SelectorEventLoop)"
)


class LoopConnections:
    """Finds the connection of the loop that runs. ``connect`` opens one, in a thread; ``timeout``:
    seconds that the server may take to answer.

    No method may be called by a thread without a loop, but for ``close``. A loop that is dropped
    takes its connections along. A forked child leaves the parent's sockets alone.
    """

    def __init__(self, connect: Callable[[], RawConnection], timeout: float) -> None:
        self._connect = connect
        self._timeout = timeout
        self._pid = os.getpid()
        self._by_loop: _ByLoop = WeakKeyDictionary()

    def of_running_loop(self, *, waits: bool = False) -> LoopConnection:
        """The connection for the pushes of this loop. Those that wait for replicas (``waits``) have
        one of their own: Redis carries nothing else out meanwhile over that. Raises ForkqError
        under trio, and where there is no loop."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ForkqError(
                "a push is awaited in a loop of asyncio, and none runs here; under trio, and in a "
                "thread, call `perform_async` (trio: `await trio.to_thread.run_sync(...)`)"
            ) from None
        if self._pid != os.getpid():
            self._pid, self._by_loop = os.getpid(), WeakKeyDictionary()
        pair = self._by_loop.get(loop)
        if pair is None:
            pair = self._pair_for(loop)
        return pair[waits]

    async def drain(self) -> None:
        """Awaits what this loop's pushes still await, and closes its connections."""
        pair = self._by_loop.get(asyncio.get_running_loop())
        if pair is not None and self._pid == os.getpid():
            for connection in pair:
                await connection.drain()

    def close(self) -> None:
        """Closes the connections of all loops, each in its own loop, when their pushes are over.
        Any thread may call it."""
        if self._pid != os.getpid():
            return
        for loop, pair in self._known():
            for connection in pair:
                with suppress(RuntimeError):  # the loop is closed, and its sockets with it
                    loop.call_soon_threadsafe(connection.close)

    def _pair_for(self, loop: asyncio.AbstractEventLoop) -> tuple[LoopConnection, LoopConnection]:
        for known, _ in self._known():
            if known.is_closed():  # something still refers to that loop
                self._by_loop.pop(known, None)
        made = tuple(LoopConnection(self._connect, self._timeout) for _ in range(2))
        self._by_loop[loop] = pair = (made[0], made[1])
        return pair

    def _known(self) -> Iterator[tuple[asyncio.AbstractEventLoop, tuple[LoopConnection, ...]]]:
        for reference in self._by_loop.keyrefs():
            loop = reference()
            pair = None if loop is None else self._by_loop.get(loop)
            if loop is not None and pair is not None:
                yield loop, pair


class LoopConnection:
    """What the pushes of one loop go over: a connection that is opened when one needs it, and again
    after it was lost. However many pushes wait for it, it is opened once."""

    def __init__(self, connect: Callable[[], RawConnection], timeout: float) -> None:
        self._connect = connect
        self._timeout = timeout
        self._current: PipelinedConnection | None = None
        self._opening: asyncio.Future[RawConnection] | None = None
        self._unfit: ForkqError | None = None

    def ready(self) -> PipelinedConnection | None:
        """The connection, if it is open; None if a push must wait for it (``take``)."""
        found = self._current
        if found is None or found.is_to_be_checked:
            return None
        if found.is_stale():
            self.retire(found)
            return None
        return found

    async def take(self) -> PipelinedConnection:
        """The connection, once it is open. Raises ConnectionLost or RedisError."""
        while (found := self.ready()) is None:
            if self._current is not None:
                await asyncio.wait({self._current.check()})
            else:
                await self._open()
        return found

    def retire(self, connection: PipelinedConnection) -> None:
        """No push takes this connection from now on. Those under way get their replies."""
        if self._current is connection:
            self._current = None
        connection.retire()

    async def drain(self) -> None:
        """Awaits the replies to all that was sent, and closes the connection."""
        found = self._current
        if found is not None and not found.is_idle and found.is_open:
            last = Replies()
            found.send(pack([("PING",)]), last, 1)
            with suppress(exceptions.RedisError):
                await last.take(1)
        self.close()

    def close(self) -> None:
        """Closes the connection when nothing is under way. A later push opens another one."""
        if self._opening is not None:
            self._opening.cancel()
        if self._current is not None:
            self.retire(self._current)

    async def _open(self) -> None:
        opening = self._opening
        if opening is None:
            self._opening = opening = in_thread(self._connect, RawConnection.close)
            opening.add_done_callback(self._note_opened)
        await asyncio.wait({opening})  # a push that is cancelled leaves the others their connection
        if opening.cancelled():
            raise exceptions.ConnectionError("the client was closed")
        if (error := opening.exception() or self._unfit) is not None:
            raise error

    def _note_opened(self, opening: asyncio.Future[RawConnection]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            try:
                self._current = PipelinedConnection(opening.result(), self._timeout)
            except NotImplementedError:
                opening.result().close()
                self._unfit = ForkqError(_UNFIT)


_ByLoop = WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[LoopConnection, LoopConnection]]
