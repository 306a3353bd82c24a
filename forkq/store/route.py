"""Which channel takes a push: one to Redis, or that of a test. Any process; this module is light.

The first push imports channel.py and with it redis-py (docs/decisions/006). A fork must find
neither an import of ours half done nor a lock of ours held: see ``_before_fork``.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - imported with logging; see _before_fork
import importlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from ..wire.keys import Keys

if TYPE_CHECKING:
    from ..features.marked import PushNeeds
    from ..wire.password_source import PasswordSource
    from .channel import RedisChannel
    from .connection import RedisConnection
    from .watch.key_watch import Waiter

# The modules that forkq imports late, on first use.
_LATE: Final = (
    "forkq.store.channel",
    "forkq.store.loop.in_thread",
    "forkq.store.unserved_queues",
    "forkq.servers",
    "forkq.config.load",
    "forkq.sharded_client",
    "forkq.config.private_files",
    "forkq.cron.entry",
    "forkq.api",
)
_lock = threading.Lock()


class EncodedJob(msgspec.Struct, frozen=True, gc=False):
    """A job as it is written to Redis. ``at`` is None if it goes to its queue now. ``wait``: for
    how many replicas its push waits; all jobs of one push have the same. ``needs``: what push.lua,
    which pushes all but plain jobs, must know of it. ``lock``: the digest in the
    name of its lock, ``window`` that in the
    name of its throttle's; "" if it has none."""

    jid: str
    queue: str
    at: float | None
    payload: bytes
    wait: int = 0
    needs: PushNeeds | None = None
    lock: str = ""
    window: str = ""


class Wait(NamedTuple):
    """For how many replicas a push waits, and for how many milliseconds at most."""

    replicas: int
    limit: int


class Channel(Protocol):
    """The way out of this process: a RedisChannel, or what ``forkq.testing`` puts in its place."""

    def push(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None: ...

    async def apush(
        self,
        jobs: Sequence[EncodedJob],
        wait: Wait | None = None,
        duplicates: dict[str, str] | None = None,
    ) -> bool | None: ...

    def connection(self) -> AbstractContextManager[RedisConnection]: ...

    def watch(self, waiter: Waiter) -> None: ...

    def unwatch(self, waiter: Waiter) -> None: ...


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


class Access(NamedTuple):
    """Where a server is, what its keys begin with, how long one waits for it, and where its
    password is read."""

    url: str
    prefix: str
    timeout: float
    connect_timeout: float
    password_source: PasswordSource | None


class Route:
    """The way to one server: its channel is opened at first use. Thread-safe."""

    __slots__ = ("_access", "_opened", "_size", "keys")

    def __init__(self, access: Access, keys: Keys, size: int) -> None:
        self._access = access
        self.keys = keys
        self._size = size
        self._opened: RedisChannel | None = None

    def channel(self) -> Channel:
        """What takes a push or a question now. ``forkq.testing`` may refuse it."""
        if _detour is not None and (found := _detour(self._access.url)) is not None:
            return found
        return self._opened or self._open()

    async def achannel(self) -> Channel:
        """``channel``, for a loop: a thread imports redis-py, if that is still to be done."""
        if _detour is not None and (found := _detour(self._access.url)) is not None:
            return found
        if self._opened is None:
            from .loop.in_thread import once_in_thread  # noqa: PLC0415 - needs asyncio, which runs here

            return await once_in_thread(self._open)
        return self._opened

    def to(self, url: str, prefix: str, password_source: PasswordSource | None) -> Route:
        """The way to another shard with the same time-outs, and its own password."""
        access = self._access._replace(url=url, prefix=prefix, password_source=password_source)
        return Route(access, Keys(prefix), self._size)

    def close(self) -> None:
        """Closes the idle connections; those of loops when their pushes are over."""
        if self._opened is not None:
            self._opened.close()

    async def aclose(self) -> None:
        """Awaits the pushes of this loop that are under way, and closes its connections."""
        if self._opened is not None:
            await self._opened.aclose()

    def _open(self) -> RedisChannel:
        from .channel import RedisChannel  # noqa: PLC0415 - see the module's docstring

        with _lock:
            if self._opened is None:
                self._opened = RedisChannel(self._access, self.keys, self._size)
            return self._opened


# Whether replicas have the jobs of the latest pushes that waited for them, by jid. A jid is a plain
# string that apps store, compare and pass on: so the answer is kept beside it.
_replicated: Final[dict[str, bool]] = {}
_MOST_REPLICATED: Final = 10_000
_noting = threading.Lock()


def replicated(jid: str | None) -> bool | None:
    """Whether this job was on as many replicas as its push has waited for, within its time.

    Of a push with ``wait``, in the process that made it: ``Pay.set(wait=1).perform_async(7)``. None
    if this process pushed no such job, or has pushed 10,000 others since. False means that a
    failover might lose it now; it is in Redis once, and replicas may have it by now.
    """
    return None if jid is None else _replicated.get(jid)


def note_replicated(jids: Iterable[str], answer: bool) -> None:
    """Keeps the answer for the jobs of one push."""
    with _noting:
        for jid in jids:
            _replicated.pop(jid, None)
            _replicated[jid] = answer
        while len(_replicated) > _MOST_REPLICATED:
            del _replicated[next(iter(_replicated))]


def _before_fork() -> None:
    """Finishes our late imports before a process with threads forks.

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
    global _lock, _noting
    _lock, _noting = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
