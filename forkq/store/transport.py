"""How a push reaches Redis: pooled connections, and an account of what surely arrived.

redis-py is imported with the first push (docs/decisions/006). A fork must not find that import, or
a lock of ours, half way: see ``_before_fork``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - with logging, which it imports: see _before_fork
import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..errors import ServerUnavailable

if TYPE_CHECKING:
    from .connection import RedisConnection

Command: TypeAlias = "tuple[Any, ...]"

# The modules that forkq imports late, on first use.
_LATE: Final = (
    "forkq.store.connection",
    "forkq.config.config",
    "forkq.config.private_files",
    "forkq.cron.entry",
    "forkq.api",
)
_lock = threading.Lock()


class Write(NamedTuple):
    """One command, and the jids of the jobs that are in Redis once it is done."""

    command: Command
    jids: Sequence[str] = ()


class Transport:
    """Sends commands on pooled connections. A push is never sent twice unless it was refused."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._pool: Any = None
        self._connection: Any = None

    def push(self, batches: Iterator[Sequence[Write]], total: int) -> None:
        """Sends each batch of ``total`` jobs in one round trip. Stops at the first that fails, and
        raises ServerUnavailable with the jids that are surely in Redis, and those that may be."""
        pushed: list[str] = []
        unknown: list[str] = []
        try:
            for batch in batches:
                refusal = self._deliver(batch, pushed, unknown)
                if refusal is not None:
                    raise refusal
        except self._redis_error as error:
            raise self._failure(error, pushed, unknown, total) from error

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A pooled connection. What goes wrong with it is raised as ServerUnavailable."""
        pool = self._open()
        try:
            with pool.connection() as connection:
                yield connection
        except self._redis_error as error:
            raise self._connection.failure(error, self._url) from error

    def close(self) -> None:
        """Closes the idle connections."""
        if self._pool is not None:
            self._pool.close()

    @property
    def _redis_error(self) -> type[Exception]:
        """What redis-py raises; before it is loaded, nothing of it can be raised."""
        self._open()
        found: type[Exception] = self._connection.RedisError
        return found

    def _deliver(
        self, batch: Sequence[Write], pushed: list[str], unknown: list[str]
    ) -> Exception | None:
        """Sends one batch; what was refused by a server that has lost its role (a failover), once
        more on a fresh connection. Returns the first refusal that stands."""
        refused = self._attempt(batch, pushed, unknown)
        again = [write for write, error in refused if self._connection.refused(error)]
        if again:
            self._pool.close()  # what is pooled leads to the old master, too
            stands = [pair for pair in refused if not self._connection.refused(pair[1])]
            refused = stands + self._attempt(again, pushed, unknown)
        return refused[0][1] if refused else None

    def _attempt(
        self, writes: Sequence[Write], pushed: list[str], unknown: list[str]
    ) -> list[tuple[Write, Exception]]:
        """Sends ``writes`` once. Returns what was refused, with the reason."""
        with self._open().connection() as connection:
            unknown[:] = [jid for write in writes for jid in write.jids]
            replies = connection.pipeline([write.command for write in writes])
            unknown.clear()
            pairs = list(zip(writes, replies, strict=True))
            refused = [(write, reply) for write, reply in pairs if isinstance(reply, Exception)]
            for write, reply in pairs:
                if not isinstance(reply, Exception):
                    pushed += write.jids
            if any(self._connection.refused(reply) for _, reply in refused):
                connection.close()
            return refused

    def _failure(
        self, error: Exception, pushed: list[str], unknown: list[str], total: int
    ) -> ServerUnavailable:
        fate = _fate(len(pushed), len(unknown), total)
        failure: ServerUnavailable = self._connection.failure(error, self._url, fate)
        failure.pushed, failure.unknown = tuple(pushed), tuple(unknown)
        return failure

    def _open(self) -> Any:
        if self._pool is None:
            connection = importlib.import_module(".connection", __package__)
            with _lock:
                if self._pool is None:
                    self._connection = connection
                    self._pool = connection.RedisPool(self._url, **self._options)
        return self._pool


def _fate(pushed: int, unknown: int, total: int) -> str:
    """What became of the jobs, for an error's text."""
    if not pushed and not unknown:
        return "nothing was pushed"
    if total == 1:
        return "whether the job was pushed is not known"
    doubt = f"; whether {unknown:,} more were is not known" if unknown else ""
    return (
        f"{pushed:,} of {total:,} jobs were pushed{doubt} (the error's `pushed` and `unknown` have "
        "their jids)"
    )


def _before_fork() -> None:
    """In a process with threads: finishes our late imports before it forks.

    importlib holds a lock for each module that is being imported. If another thread holds one at
    the fork, it stays locked in the child, where the first push would wait for ever. Importing the
    same modules here waits for that thread, and leaves nothing for the child to import.

    Python calls the latest hook first. ``logging`` and ``concurrent.futures`` take locks in theirs,
    which that thread needs too: both are imported above, so that we wait before those are taken.
    """
    if threading.active_count() > 1:
        for name in _LATE:
            importlib.import_module(name)


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold the old one
    _lock = threading.Lock()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
