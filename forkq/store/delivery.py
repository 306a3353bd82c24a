"""Sending pushes over pooled connections, with an account of what is in Redis. Any process.

transport.py imports this module, and redis-py with it, at the first push.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Final, TypeAlias

from ..errors import ServerUnavailable
from ..wire.password_source import PasswordSource
from .connection import RedisConnection, RedisError, refused
from .pool import RedisPool
from .refusals import failure
from .transport import Write

# So many batches hide a network's round trip. After a lost reply, all of them are in doubt.
_UNDER_WAY: Final = 4
# What Redis refused, with its error.
Refusals: TypeAlias = "list[tuple[Write, Exception]]"


class PushAccount:
    """Which of ``total`` jobs are in Redis. ``done`` are the writes that Redis has confirmed,
    ``under_way`` the batches whose replies are still to be read."""

    __slots__ = ("done", "total", "under_way")

    def __init__(self, total: int) -> None:
        self.total = total
        self.done: list[Write] = []
        self.under_way: deque[Sequence[Write]] = deque()

    @property
    def pushed(self) -> tuple[str, ...]:
        """The jids of the jobs that are in Redis."""
        return _jids(self.done)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The jids of the jobs that may be in Redis: the replies about them were lost."""
        return _jids(chain.from_iterable(self.under_way))

    def __str__(self) -> str:
        pushed, unknown = len(self.pushed), len(self.unknown)
        if not pushed and not unknown:
            return "nothing was pushed"
        if self.total == 1:
            known = "the job was pushed all the same"
            return known if pushed else "whether the job was pushed is not known"
        doubt = f"; whether {unknown:,} more were is not known" if unknown else ""
        return (
            f"{pushed:,} of {self.total:,} jobs were pushed{doubt} (the error's `pushed` "
            "and `unknown` have their jids)"
        )


def _jids(writes: Iterable[Write]) -> tuple[str, ...]:
    return tuple(jid for _, jids in writes for jid in jids)


class Delivery:
    """Sends commands on pooled connections. A push is never sent twice unless it was refused."""

    def __init__(
        self,
        url: str,
        *,
        size: int,
        timeout: float,
        connect_timeout: float,
        password_source: PasswordSource | None = None,
    ) -> None:
        self._url = url
        self._pool = RedisPool(
            url,
            size=size,
            timeout=timeout,
            connect_timeout=connect_timeout,
            password_source=password_source,
        )

    def push(self, batches: Iterator[Sequence[Write]], total: int) -> None:
        """Sends the batches of ``total`` jobs, several at a time. Stops at the first that fails,
        and raises ServerUnavailable with the jids that are surely in Redis, and those that may be.
        """
        account = PushAccount(total)
        try:
            while refusals := self._send(batches, account):
                if stands := self._send_again(refusals, account):
                    raise stands[0][1]
        except RedisError as error:
            raise self._failure(error, account) from error

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A pooled connection. What goes wrong with it is raised as ServerUnavailable."""
        try:
            with self._pool.connection() as connection:
                yield connection
        except RedisError as error:
            raise failure(error, self._url) from error

    def close(self) -> None:
        """Closes the idle connections."""
        self._pool.close()

    def _send(self, batches: Iterator[Sequence[Write]], account: PushAccount) -> Refusals:
        """Sends batches until none is left, or one is refused. Returns what was refused."""
        first = next(batches, None)
        if first is None:
            return []
        connection = self._pool.take()
        try:
            refusals = _pipelined(connection, chain([first], batches), account)
            if any(refused(error) for _, error in refusals):
                connection.close()
            return refusals
        finally:
            self._pool.give_back(connection)

    def _send_again(self, refusals: Refusals, account: PushAccount) -> Refusals:
        """Sends once more, on a fresh connection, what a server refused that has lost its role (a
        failover). Returns the refusals that stand."""
        again = [write for write, error in refusals if refused(error)]
        stands = [pair for pair in refusals if not refused(pair[1])]
        if not again:
            return stands
        self._pool.close()  # the pooled connections lead to the old master, too
        return stands + self._send(iter([again]), account)

    def _failure(self, error: Exception, account: PushAccount) -> ServerUnavailable:
        found = failure(error, self._url, str(account))
        found.pushed, found.unknown = account.pushed, account.unknown
        return found


def _pipelined(
    connection: RedisConnection, batches: Iterator[Sequence[Write]], account: PushAccount
) -> Refusals:
    """Sends the next batch while the replies to earlier ones are on their way. After a refusal it
    sends no more, and reads what is on its way."""
    refusals: Refusals = []
    for batch in batches:
        account.under_way.append(batch)
        connection.send_more(*[command for command, _ in batch])
        if len(account.under_way) == _UNDER_WAY:
            refusals = _read_replies(connection, account)
        if refusals:
            break
    while account.under_way:
        refusals += _read_replies(connection, account)
    return refusals


def _read_replies(connection: RedisConnection, account: PushAccount) -> Refusals:
    """What the server refused of the batch that was sent first of those under way."""
    batch = account.under_way[0]
    replies = connection.replies([command for command, _ in batch])
    account.under_way.popleft()
    refusals: Refusals = []
    for write, reply in zip(batch, replies, strict=True):
        if isinstance(reply, Exception):
            refusals.append((write, reply))
        else:
            account.done.append(write)
    return refusals
