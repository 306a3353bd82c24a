"""Sending pushes over pooled connections, with an account of what is in Redis. Any process.

transport.py imports this module, and redis-py with it, at the first push.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from ..errors import ServerUnavailable
from .connection import Command, RedisConnection, RedisError, refused
from .pool import RedisPool
from .refusals import failure

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
        """Sends each batch of ``total`` jobs in one round trip. Stops at the first that fails, and
        raises ServerUnavailable with the jids that are surely in Redis, and those that may be."""
        account = PushAccount(total)
        try:
            for batch in batches:
                refusals = self._deliver(batch, account)
                if refusals:
                    raise refusals[0][1]
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

    def _deliver(self, batch: Sequence[Write], account: PushAccount) -> Refusals:
        """Sends one batch. What a server refused that has lost its role (a failover) is sent once
        more, on a fresh connection. Returns the refusals that stand."""
        refusals = self._attempt(batch, account)
        again = [write for write, error in refusals if refused(error)]
        if not again:
            return refusals
        self._pool.close()  # the pooled connections lead to the old master, too
        stands = [pair for pair in refusals if not refused(pair[1])]
        return stands + self._attempt(again, account)

    def _attempt(self, writes: Sequence[Write], account: PushAccount) -> Refusals:
        """Sends ``writes`` once. Returns what was refused, with the reason."""
        with self._pool.connection() as connection:
            account.unknown = [jid for _, jids in writes for jid in jids]
            replies = connection.pipeline([command for command, _ in writes])
            account.unknown = []
            refusals: Refusals = []
            for write, reply in zip(writes, replies, strict=True):
                if isinstance(reply, Exception):
                    refusals.append((write, reply))
                else:
                    account.pushed += write[1]
            if any(refused(reply) for _, reply in refusals):
                connection.close()
            return refusals

    def _failure(self, error: Exception, account: PushAccount) -> ServerUnavailable:
        found = failure(error, self._url, str(account))
        found.pushed, found.unknown = tuple(account.pushed), tuple(account.unknown)
        return found
