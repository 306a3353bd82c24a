"""How a client reaches Redis. Any process; this module is light.

The first push imports delivery.py and with it redis-py (docs/decisions/006). A fork must find
neither an import of ours half done nor a lock of ours held: see ``_before_fork``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - imported with logging; see _before_fork
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from ..wire.password_source import PasswordSource
    from .connection import RedisConnection
    from .delivery import Delivery

Command: TypeAlias = "tuple[Any, ...]"
# One command, and the jids of the jobs that are in Redis once it is done.
Write: TypeAlias = "tuple[Command, Sequence[str]]"

# The modules that forkq imports late, on first use.
_LATE: Final = (
    "forkq.store.delivery",
    "forkq.store.unserved_queues",
    "forkq.config.load",
    "forkq.session",
    "forkq.sharded_client",
    "forkq.config.private_files",
    "forkq.cron.entry",
    "forkq.api",
)
_lock = threading.Lock()


class Channel(Protocol):
    """The way out of this process: a Delivery, or what ``forkq.testing`` puts in its place."""

    def push(self, batches: Iterator[Sequence[Write]], total: int) -> None: ...

    def connection(self) -> AbstractContextManager[RedisConnection]: ...


# Names the channel to a URL; None means Redis.
Detour: TypeAlias = "Callable[[str], Channel | None]"
_detour: Detour | None = None


def divert(detour: Detour | None) -> None:
    """Asks ``detour`` for the channel of each push and each read of this process from now on."""
    global _detour  # noqa: PLW0603 - no client of this process may go around it
    _detour = detour


def reaches_redis(url: str) -> bool:
    """Whether a push to ``url`` leaves this process; ``forkq.testing`` may take or refuse it."""
    try:
        return _detour is None or _detour(url) is None
    except AssertionError:
        return False


def is_diverted() -> bool:
    """Whether pushes may go elsewhere than to Redis: ``forkq.testing`` takes them."""
    return _detour is not None


class Transport:
    """One server, and how to reach it. Thread-safe."""

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
        self._password_source = password_source
        self._size = size
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._delivery: Delivery | None = None

    def push(self, batches: Iterator[Sequence[Write]], total: int) -> None:
        """Sends each batch of ``total`` jobs in one round trip. Stops at the first that fails, and
        raises ServerUnavailable with the jids that are surely in Redis, and those that may be."""
        self._channel().push(batches, total)

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A pooled connection. What goes wrong with it is raised as ServerUnavailable."""
        with self._channel().connection() as connection:
            yield connection

    def at(self, url: str, password_source: PasswordSource | None) -> Transport:
        """Another server, reached in the same way, with a password of its own."""
        return Transport(
            url,
            size=self._size,
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
            password_source=password_source,
        )

    def close(self) -> None:
        """Closes the idle connections."""
        if self._delivery is not None:
            self._delivery.close()

    def _channel(self) -> Channel:
        found = None if _detour is None else _detour(self._url)
        return self._open() if found is None else found

    def _open(self) -> Delivery:
        if self._delivery is None:
            from .delivery import Delivery  # noqa: PLC0415 - see the module's docstring

            with _lock:
                if self._delivery is None:
                    self._delivery = Delivery(
                        self._url,
                        size=self._size,
                        timeout=self._timeout,
                        connect_timeout=self._connect_timeout,
                        password_source=self._password_source,
                    )
        return self._delivery


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


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
