"""Warns a client of queues that no process works on. In any process that pushes with the default
client, after the push.

A push must neither wait for this nor fail by it. So a separate thread asks Redis, once for each
queue that the configuration does not have, over its own connection. What it cannot find out
is not warned of.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from difflib import get_close_matches
from typing import Final

from ..limits.patterns import matches_any
from ..wire.keys import Keys
from ..wire.password_source import PasswordSource
from ..wire.printable import shown_name
from .connection import RedisConnection
from .process_info import live_queues
from .route import reaches_redis

_TIMEOUT: Final = 1.0
_THREAD: Final = "forkq-unserved-queues"


class UnservedQueues:
    """``declared``: the queues and patterns that the configuration has. Any thread may use it."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        declared: Collection[str],
        password_source: PasswordSource | None = None,
    ) -> None:
        self._url = url
        self._password_source = password_source
        self._keys = keys
        self._declared = declared
        self._seen: set[str] = set()

    def look_for(self, queues: Iterable[str]) -> None:
        """Has a thread check the queues among ``queues`` that are new. Never raises. What a test
        records instead of sending it is not checked: that would reach a real server."""
        if self._seen.issuperset(queues) or not reaches_redis(self._url):
            return
        new = set(queues) - self._seen
        self._seen |= new
        asked = sorted(name for name in new if not matches_any(name, self._declared))
        if asked:
            with suppress(Exception):  # the system gives no more threads
                threading.Thread(
                    target=self._check, args=(asked,), name=_THREAD, daemon=True
                ).start()

    def _check(self, queues: list[str]) -> None:
        with suppress(Exception):  # Redis is away, or refuses: nothing is known
            served = {*self._declared, *self._live()}
            for name in queues:
                if not matches_any(name, served):
                    warning = _warning(name, served, has_capsules=bool(self._declared))
                    logging.getLogger("forkq").warning(warning)

    def _live(self) -> set[str]:
        connection = RedisConnection(
            self._url,
            prefix=self._keys.prefix,
            timeout=_TIMEOUT,
            connect_timeout=_TIMEOUT,
            password_source=self._password_source,
        )
        with closing(connection):
            connection.connect()
            return live_queues(connection, self._keys)


def finish(limit: float = _TIMEOUT) -> None:
    """Waits until no check is under way, for ``limit`` seconds at most: before this process forks
    or ends."""
    end = time.monotonic() + limit
    for thread in threading.enumerate():
        if thread.name == _THREAD and thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


def _warning(name: str, served: Iterable[str], *, has_capsules: bool) -> str:
    near = get_close_matches(name, served, n=1)
    hint = f'; did you mean "{shown_name(near[0])}"?' if near else ""
    capsule = "no capsule of this configuration and " if has_capsules else ""
    return (
        f'jobs are pushed to the queue "{shown_name(name)}", but {capsule}no process that runs now '
        f"serves it: they wait there until one does{hint}"
    )


atexit.register(finish)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=finish)
