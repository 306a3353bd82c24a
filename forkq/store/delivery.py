"""Sending pushes over pooled connections, with an account of what is in Redis. Any process.

transport.py imports this module, and redis-py with it, at the first push.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeAlias

from ..errors import ServerUnavailable
from .connection import Command, RedisConnection, RedisError, refused
from .pool import RedisPool
from .refusals import failure

# So many batches hide a network's round trip. After a lost reply, all of them are in doubt.
_UNDER_WAY: Final = 4
# One command, and the jids of the jobs that are in Redis once it is done.
Write: TypeAlias = "tuple[Command, Sequence[str]]"
# What Redis refused, with its error.
Refusals: TypeAlias = "list[tuple[Write, Exception]]"


@dataclass(slots=True)
class PushAccount:
    """Which of ``total`` jobs are in Redis, by their jids: ``pushed`` are, ``unknown`` may be, as
    the reply to them was lost, and all others are not."""

    total: int
    pushed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.pushed and not self.unknown:
            return "nothing was pushed"
        if self.total == 1:
            known = "the job was pushed all the same"
            return known if self.pushed else "whether the job was pushed is not known"
        doubt = f"; whether {len(self.unknown):,} more were is not known" if self.unknown else ""
        return (
            f"{len(self.pushed):,} of {self.total:,} jobs were pushed{doubt} (the error's `pushed` "
            "and `unknown` have their jids)"
        )


class Delivery:
    """Sends commands on pooled connections. A push is never sent twice unless it was refused."""

    def __init__(self, url: str, *, size: int, timeout: float, connect_timeout: float) -> None:
        self._url = url
        self._pool = RedisPool(url, size=size, timeout=timeout, connect_timeout=connect_timeout)

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
        with self._pool.connection() as connection:
            refusals = _pipelined(connection, chain([first], batches), account)
            if any(refused(error) for _, error in refusals):
                connection.close()
            return refusals

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
        found.pushed, found.unknown = tuple(account.pushed), tuple(account.unknown)
        return found


def _pipelined(
    connection: RedisConnection, batches: Iterator[Sequence[Write]], account: PushAccount
) -> Refusals:
    """Sends the next batch while the replies to earlier ones are on their way. After a refusal it
    sends no more, and reads what is on its way."""
    under_way: deque[Sequence[Write]] = deque()
    for batch in batches:
        under_way.append(batch)
        account.unknown += [jid for _, jids in batch for jid in jids]
        connection.send_more(*(command for command, _ in batch))
        if len(under_way) == _UNDER_WAY and (
            refusals := _read_replies(connection, under_way.popleft(), account)
        ):
            break
    else:
        refusals = []
    for batch in under_way:
        refusals += _read_replies(connection, batch, account)
    return refusals


def _read_replies(
    connection: RedisConnection, batch: Sequence[Write], account: PushAccount
) -> Refusals:
    """What the server refused of the batch that was sent first of those under way."""
    replies = connection.replies([command for command, _ in batch])
    del account.unknown[: sum(len(jids) for _, jids in batch)]
    refusals: Refusals = []
    for write, reply in zip(batch, replies, strict=True):
        if isinstance(reply, Exception):
            refusals.append((write, reply))
        else:
            account.pushed += write[1]
    return refusals
