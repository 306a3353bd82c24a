"""The password at the door: what is remembered of it, and how often it may be tried.

A hash takes 100 ms, so a client that sends wrong passwords could keep this process busy. So a
password that was right or wrong is remembered, an address has few tries a minute, one hash is made
at a time, and few requests wait for it. A browser whose password was right waits for none of this.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio
import anyio.to_thread
from starlette.requests import HTTPConnection

from ..runtime.waiting_clients import network_of
from .passwords import credentials, verify
from .settings import TooManyTries

_LONGEST: Final = 1024  # characters of a password
_REMEMBERED: Final = 900.0  # seconds since a password was last used
_MOST: Final = 1000  # passwords, and addresses, that are remembered
_TRIES: Final = 10  # other passwords of one address
_PERIOD: Final = 60.0  # seconds
_MOST_WAITING: Final = 4  # for their hash
_SOON: Final = 2  # seconds


class BasicPassword:
    """An ``authenticate`` for one password, which the browser asks for. The user types any name; it
    stands in the audit log. All its calls run in one event loop."""

    def __init__(self, hashed: str) -> None:
        self._hashed = hashed
        self._key = secrets.token_bytes(32)
        self._right, self._wrong = Remembered(), Remembered()
        self._tries = Tries()
        self._pending: dict[bytes, anyio.Event] = {}
        self._turn: anyio.Lock | None = None

    async def __call__(self, request: HTTPConnection) -> str | None:
        """The name of the user; None for a wrong password. Raises TooManyTries."""
        user, password = credentials(request)
        if not password or len(password) > _LONGEST:
            return None
        mark = self._mark(user, password)
        while (pending := self._pending.get(mark)) is not None:
            await pending.wait()  # another request of the same browser
        if self._right.recall(mark):
            return user
        if self._wrong.recall(mark):
            return None
        return user if await self._is_right(mark, password, _address(request)) else None

    def _mark(self, user: str, password: str) -> bytes:
        """The mark that is remembered in place of the password."""
        return hmac.digest(self._key, f"{user}:{password}".encode(), "sha256")

    async def _is_right(self, mark: bytes, password: str, address: str) -> bool:
        if len(self._pending) > _MOST_WAITING:
            raise TooManyTries(_SOON)
        self._tries.count(address)
        self._pending[mark] = anyio.Event()
        try:
            right = await self._verified(password)
        finally:
            self._pending.pop(mark).set()
        (self._right if right else self._wrong).add(mark)
        if right:
            self._tries.forget(address)
        return right

    async def _verified(self, password: str) -> bool:
        if self._turn is None:  # made inside of the event loop
            self._turn = anyio.Lock()
        async with self._turn:
            return await anyio.to_thread.run_sync(verify, password, self._hashed)


class Remembered:
    """Marks of passwords, for some minutes after their last use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def recall(self, mark: bytes) -> bool:
        """Uses a mark, which is then remembered for as long again. Returns False if it was not
        remembered."""
        if self._until.pop(mark, 0.0) <= self._clock():
            return False
        self.add(mark)
        return True

    def add(self, mark: bytes) -> None:
        """Remembers a mark. The mark that was not used for the longest time makes room."""
        self._until[mark] = self._clock() + _REMEMBERED
        if len(self._until) > _MOST:
            self._until.popitem(last=False)


class Tries:
    """How many passwords each address has tried lately."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def count(self, address: str) -> None:
        """Counts one more try of an address. Raises TooManyTries, and does not count it then."""
        now = time.monotonic()
        tried, end = self._of.pop(address, (0, 0.0))
        if end <= now:
            tried, end = 0, now + _PERIOD
        self._of[address] = (min(tried + 1, _TRIES), end)
        if len(self._of) > _MOST:
            self._of.popitem(last=False)
        if tried >= _TRIES:
            raise TooManyTries(end - now)

    def forget(self, address: str) -> None:
        """Forgets the tries of an address: the right password came from there."""
        self._of.pop(address, None)


def _address(request: HTTPConnection) -> str:
    """The address that tries."""
    return network_of(request.client.host) if request.client is not None else ""
