"""The modes that are in force in this process; the latest counts, in all threads.

It is asked at the one place where a push leaves the process (store/route.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from ..store.route import Channel, divert


class Mode(Protocol):
    """What becomes of pushes. ``channel`` takes those to ``url``; None means Redis."""

    def channel(self, url: str) -> Channel | None: ...


_lock: Final = threading.Lock()
_stack: tuple[Mode, ...] = ()


def modes() -> tuple[Mode, ...]:
    """All modes that are in force, the latest last."""
    return _stack


def enter(mode: Mode) -> None:
    """Puts ``mode`` in force."""
    with _lock:
        _replace((*_stack, mode))


def leave(mode: Mode) -> None:
    """Ends ``mode``, also if it is not the latest: another thread may have entered one since."""
    with _lock:
        place = max(at for at, each in enumerate(_stack) if each is mode)
        _replace(_stack[:place] + _stack[place + 1 :])


@contextmanager
def within(mode: Mode) -> Iterator[None]:
    """Puts ``mode`` in force until the end of the block."""
    enter(mode)
    try:
        yield
    finally:
        leave(mode)


def _replace(stack: tuple[Mode, ...]) -> None:
    global _stack  # noqa: PLW0603 - clients of the whole process look here
    _stack = stack
    divert(_channel if stack else None)


def _channel(url: str) -> Channel | None:
    stack = _stack
    return stack[-1].channel(url) if stack else None
