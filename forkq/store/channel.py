"""The way of pushes and questions to one server, of threads and of event loops. Any process.

A thread has a connection of a pool for a moment; the pushes of a loop share one (loop/). What is
sent, and what the replies mean, is one code for both: ``Push``. route.py imports this module, and
redis-py with it, at the first push.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from asyncio import CancelledError, _get_running_loop
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any, Final, NoReturn, TypeVar

from ..errors import (
    BlockingPushWarning,
    PushOutcome,
    ServerUnavailable,
    callers_level,
    note_outcome,
)
from ..wire.keys import Keys
from ..wire.redis_url import redacted_url
from .cluster import SlotElsewhere
from .connection import ConnectionLost, RedisConnection, RedisError, connector
from .loop.connections import LoopConnection, LoopConnections
from .loop.pipelined import PipelinedConnection, Replies
from .pool import RedisPool
from .push_steps import Push, WaitingPush, packed_single
from .redis_py import RawConnection, exceptions
from .refusals import failure
from .route import Access, EncodedJob, Wait
from .watch.key_watch import KeyWatch, Waiter

# Seconds between two tries to push while the slot of a cluster moves.
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.25
_UNCONFIRMED: Final = (
    "replicas of Redis at %s do not confirm a push in time (wait, wait_timeout): %s; it is in "
    "Redis, and pushes go on"
)
_BLOCKS: Final = (
    "this push holds up the event loop until Redis has answered: write `await "
    "J.aperform_async(...)` (aperform_in, aperform_at, aperform_bulk), or call it in a thread"
)
AnyPush = TypeVar("AnyPush", bound=Push)
_log: Final = logging.getLogger("forkq")


class RedisChannel:
    """Pushes jobs to one server, and lends connections to it. Thread-safe."""

    def __init__(self, access: Access, keys: Keys, size: int) -> None:
        self._url = access.url
        self._timeout = access.timeout
        self._keys = keys
        self._pool = RedisPool(**access._asdict(), size=size)
        self._loops = LoopConnections(partial(_connect, access), access.timeout)
        self._watch = KeyWatch(
            partial(RedisConnection, **access._asdict()),
            partial(_error_for_waiters, access.url),  # not of this: a circle would keep its sockets
        )
        self._confirms = True

    def push(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """Sends the jobs, in batches of which several are under way at a time. Stops at the first
        that fails, and raises ServerUnavailable with the jids that are surely in Redis, and those
        that may be. While the slot of a cluster moves, it waits as long as for a reply. With
        ``wait`` it returns whether so many replicas have the jobs. ``duplicates`` gets the jids of
        the unique jobs that were not pushed, each with that of the job that has its lock."""
        if not jobs:
            return None
        if _get_running_loop() is not None:
            warnings.warn(_BLOCKS, BlockingPushWarning, callers_level())
        if wait is not None:
            waiting = self._push(WaitingPush(jobs, self._keys, wait=wait))
            if duplicates is not None:
                duplicates |= waiting.duplicates
            return self._replicated(waiting)
        job = jobs[0]
        is_plain = job.at is None if job.needs is None else not job.needs.is_once
        if len(jobs) > 1 or not is_plain:
            push = self._push(Push(jobs, self._keys))
        elif (odd := self._push_one(job)) is None:
            return None
        else:
            push = odd
        if duplicates is not None:
            duplicates |= push.duplicates
        return None

    async def apush(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None:
        """``push``, awaited by an event loop, which it never holds up. A push that is cancelled
        raises CancelledError with what ServerUnavailable would say: its replies are read, and go
        nowhere."""
        if not jobs:
            return None
        loop = self._loops.of_running_loop(waits=wait is not None)
        job = jobs[0]
        if wait is None and len(jobs) == 1 and job.at is None and job.needs is None:
            await self._apush_one(loop, job)
            return None
        push = Push(jobs, self._keys) if wait is None else WaitingPush(jobs, self._keys, wait=wait)
        await self._apush(loop, push)
        if duplicates is not None:
            duplicates |= push.duplicates
        return self._replicated(push) if isinstance(push, WaitingPush) else None

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A pooled connection. What goes wrong with it is raised as ServerUnavailable. In a cluster
        it leads to the node that has the slot now; while that moves, this waits as for a reply."""
        try:
            connection = self._pool.take()
            if connection.in_cluster:
                connection = self._current(connection)
            try:
                yield connection
            finally:
                self._pool.give_back(connection)
        except RedisError as error:
            raise failure(error, self._url) from error

    def watch(self, waiter: Waiter) -> None:
        """Tells the waiter what stands in its key, now and after each change. All that wait share
        one connection."""
        self._watch.add(waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Tells the waiter no more. It takes no lock."""
        self._watch.drop(waiter)

    def _current(self, connection: RedisConnection) -> RedisConnection:
        """This connection to a node of a cluster, or another one if the slot has left that node.

        It asks before the caller sends anything: a node refuses each command by itself, so what it
        has refused in part could not be sent again."""
        deadline, pauses = monotonic() + self._timeout, _pauses()
        while True:
            try:
                connection.pipeline([("ZCARD", self._keys.schedule)])  # also scrapers may do that
                return connection
            except SlotElsewhere:
                connection.close()
                self._pool.close()  # the pooled connections lead to the old node, too
                if monotonic() >= deadline:
                    raise
            except BaseException:
                connection.close()
                raise
            sleep(next(pauses))
            connection = self._pool.take()

    def close(self) -> None:
        """Closes the idle connections; those of loops when their pushes are over."""
        self._pool.close()
        self._loops.close()
        self._watch.close()

    async def aclose(self) -> None:
        """Awaits the pushes of this loop that are under way, and closes its connections."""
        await self._loops.drain()

    def _push_one(self, job: EncodedJob) -> Push | None:
        """Pushes one job, as most pushes do: a plain one to its queue, or a marked one. Redis
        answers with numbers as a rule. Only if it does not, a ``Push`` judges what has happened,
        and is returned."""
        sent, count = b"", 2 if job.needs is None else 1
        try:
            connection = self._pool.take()
            try:
                sent = packed_single(self._keys, job)
                replies = connection.step(sent, count, count)
            finally:
                self._pool.give_back(connection)
        except RedisError as error:
            push = Push([job], self._keys)
            if sent:
                push.next_step()  # it is on its way
            raise self._failure(error, push) from error
        if type(replies[0]) is type(replies[-1]) is int:
            return None
        if type(replies[0]) is exceptions.NoScriptError:  # nothing was done: the push loads it
            return self._push(Push([job], self._keys))
        return self._push(Push([job], self._keys), replies)

    def _push(self, push: AnyPush, replies: Sequence[Any] = ()) -> AnyPush:
        """Carries a push out, and returns it. ``replies``: those to its first step, if that is
        done. Raises ServerUnavailable."""
        try:
            if replies:
                push.next_step()
                push.next_step(replies)
            else:
                self._carry_through(push)
            if push.go_on():
                self._send_again(push)
        except RedisError as error:
            raise self._failure(error, push) from error
        return push

    def _carry_through(self, push: Push) -> None:
        """Carries a push out over one connection. If that is lost, over another one, for as long as
        a reply may take, if nothing can be pushed twice (``once``)."""
        deadline = monotonic() + self._timeout
        for pause in _pauses():
            try:
                self._carry_out(push)
            except ConnectionLost:
                if monotonic() >= deadline or not push.starts_again():
                    raise
            else:
                return
            sleep(pause)

    def _carry_out(self, push: Push) -> None:
        """Does all steps of a push that can be done over one connection."""
        connection = self._pool.take()
        try:
            step = push.next_step()
            while step is not None:
                commands, answers, awaited = step
                step = push.next_step(connection.step(commands, answers, awaited))
        finally:
            self._pool.give_back(connection)

    def _send_again(self, push: Push) -> None:
        """Sends what was refused over fresh connections, until nothing is left of it."""
        deadline = monotonic() + self._timeout
        for pause in _pauses():
            self._pool.close()  # the pooled connections lead to the old master, too
            push.is_patient = monotonic() < deadline
            sleep(pause)
            self._carry_through(push)
            if not push.go_on():
                return

    async def _apush_one(self, loop: LoopConnection, job: EncodedJob) -> None:
        """``_push_one`` of an event loop."""
        found, connection = Replies(), None
        try:
            connection = loop.ready() or await loop.take()
            connection.send(packed_single(self._keys, job), found, 2)
            replies = await found.take(2)
        except (RedisError, CancelledError) as error:
            push = Push([job], self._keys)
            push.next_step()
            _give_up(push, found, connection)
            self._raise(error, push)
        if not type(replies[0]) is type(replies[1]) is int:
            push = Push([job], self._keys)
            push.next_step()
            await self._apush(loop, push, connection, replies)

    async def _apush(
        self,
        loop: LoopConnection,
        push: Push,
        connection: PipelinedConnection | None = None,
        replies: Sequence[Any] = (),
    ) -> None:
        """``_push`` of an event loop. ``connection``: the one that its first step was sent over."""
        try:
            connection = await self._acarry_through(loop, push, connection, replies)
            if push.go_on():
                await self._asend_again(loop, push, connection)
        except (RedisError, CancelledError) as error:
            self._raise(error, push)

    async def _asend_again(
        self, loop: LoopConnection, push: Push, connection: PipelinedConnection
    ) -> None:
        """``_send_again`` of an event loop."""
        deadline = monotonic() + self._timeout
        for pause in _pauses():
            loop.retire(connection)  # it leads to the old master
            push.is_patient = monotonic() < deadline
            await asyncio.sleep(pause)
            connection = await self._acarry_through(loop, push)
            if not push.go_on():
                return

    async def _acarry_through(
        self,
        loop: LoopConnection,
        push: Push,
        connection: PipelinedConnection | None = None,
        replies: Sequence[Any] = (),
    ) -> PipelinedConnection:
        """``_carry_through`` of an event loop. Returns the connection that it has used last."""
        deadline, pauses = monotonic() + self._timeout, _pauses()
        while True:
            try:
                return await _acarry_out(loop, push, connection, replies)
            except ConnectionLost:
                if monotonic() >= deadline or not push.starts_again():
                    raise
            connection, replies = None, ()
            await asyncio.sleep(next(pauses))

    def _replicated(self, push: WaitingPush) -> bool:
        """Whether replicas have the jobs. Logs once that they do not confirm pushes in time, and
        once that they do again."""
        if push.replicated != self._confirms:
            self._confirms, shown = push.replicated, redacted_url(self._url)
            if push.replicated:
                _log.warning("replicas of Redis at %s confirm pushes in time again", shown)
            else:
                _log.warning(_UNCONFIRMED, shown, push.unconfirmed)
        return push.replicated

    def _raise(self, error: BaseException, push: Push) -> NoReturn:
        """Raises what ends an awaited push: a CancelledError as it is, since the time-outs of
        asyncio and anyio look for their own, with the outcome; or ServerUnavailable."""
        if isinstance(error, CancelledError):
            note_outcome(error, PushOutcome(push.pushed, push.unknown), str(push))
            raise error
        assert isinstance(error, Exception)
        raise self._failure(error, push) from error

    def _failure(self, error: Exception, push: Push) -> ServerUnavailable:
        found = failure(error, self._url, str(push))
        found.pushed, found.unknown = push.pushed, push.unknown
        return found


async def _acarry_out(
    loop: LoopConnection,
    push: Push,
    connection: PipelinedConnection | None = None,
    replies: Sequence[Any] = (),
) -> PipelinedConnection:
    """Does all steps of a push that can be done over one connection, which it returns."""
    found = Replies()
    connection = connection or loop.ready() or await loop.take()
    try:
        step = push.next_step(replies)
        while step is not None:
            commands, answers, awaited = step
            if commands:
                connection.send(commands, found, answers)
            step = push.next_step(await found.take(awaited) if awaited else ())
    except BaseException:
        _give_up(push, found, connection)
        raise
    return connection


def _give_up(push: Push, found: Replies, connection: PipelinedConnection | None) -> None:
    """Notes how far a push has come that ends before its time."""
    if connection is not None:
        connection.take_back(found)
    push.note_end(found.found, sent=found.sent)


def _connect(access: Access) -> RawConnection:
    """Opens a connection for an event loop, in a thread."""
    limits = (access.timeout, access.connect_timeout, access.password_source)
    return connector(access.url, access.prefix, *limits).connect()


def _pauses() -> Iterator[float]:
    """Seconds to wait before each further try: none, then longer and longer."""
    pause = 0.0
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE, 2 * pause + _FIRST_PAUSE)


def _error_for_waiters(url: str, error: Exception) -> Exception:
    return failure(error, url) if isinstance(error, RedisError) else error
