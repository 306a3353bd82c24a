"""Notes which threads and sockets a piece of code opens, and the line that opened them.

A preloaded app must open none: children would share its sockets, and its threads do not exist after
a fork. Nothing of this stays in force afterwards, so jobs pay nothing for it.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

_FORKQ: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_DESCRIPTORS: Final = Path("/proc/self/fd")


class Opened:
    """The threads and sockets that were opened within ``watch`` and are open still."""

    def __init__(self) -> None:
        self._threads: list[tuple[threading.Thread, str]] = []
        self._sockets: list[tuple[weakref.ref[socket.socket], str]] = []
        self._before: set[str] = set()
        self._watching = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Notes what its block opens."""
        self._before = _socket_descriptors()
        self._watching = True
        with (
            self._noting(threading.Thread, "start", self._note_thread),
            self._noting(socket.socket, "__init__", self._note_socket),
        ):
            try:
                yield
            finally:
                self._watching = False

    @contextmanager
    def _noting(self, kind: type, name: str, note: Callable[[Any], None]) -> Iterator[None]:
        """Calls ``note`` with each object whose method ``name`` is called. What the app has put
        around the method meanwhile (Sentry does) stays there."""
        method = getattr(kind, name)

        @wraps(method)
        def noted(self_: Any, *args: Any, **kwargs: Any) -> None:
            method(self_, *args, **kwargs)
            if self._watching:
                note(self_)

        setattr(kind, name, noted)
        try:
            yield
        finally:
            if getattr(kind, name) is noted:
                setattr(kind, name, method)

    def _note_thread(self, thread: threading.Thread) -> None:
        self._threads.append((thread, _line_of_app()))

    def _note_socket(self, made: socket.socket) -> None:
        self._sockets.append((weakref.ref(made), _line_of_app()))

    def threads(self) -> list[str]:
        """The name and the place of each thread that runs still."""
        return [f"{each.name} ({place})" for each, place in self._threads if each.is_alive()]

    def sockets(self) -> list[str]:
        """The place of each open socket. A library in C leaves no line."""
        known = [(each.fileno(), place) for ref, place in self._sockets if (each := ref())]
        places = [place for fd, place in known if fd >= 0]
        unknown = _socket_descriptors() - self._before - {str(fd) for fd, _ in known}
        return places + ["by a library, no line is known"] * len(unknown)


def _line_of_app() -> str:
    """File and line of the app that led here: its innermost frame, or else that of a library."""
    places = [place for place in _frames() if not place.startswith((_FORKQ, "<"))]
    return min(places, key=_distance, default="place unknown")


def _distance(place: str) -> int:
    """How far code is from the app: 0 for its own, 1 for what pip has installed, 2 for the standard
    library."""
    if place.startswith(_INSTALLED):
        return 1
    return 2 if place.startswith(_STANDARD) else 0


def _frames() -> Iterator[str]:
    """The place of each caller, innermost first."""
    frame = sys._getframe(1)
    while (caller := frame.f_back) is not None:
        frame = caller
        yield f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _socket_descriptors() -> set[str]:
    """The descriptors of this process that are sockets; none where there is no /proc."""
    try:
        return {each.name for each in _DESCRIPTORS.iterdir() if _is_socket(each)}
    except OSError:
        return set()


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:  # that of iterdir itself
        return False
