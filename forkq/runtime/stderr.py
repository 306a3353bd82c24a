"""Standard error, written without waiting for its reader.

A terminal, a pipe or the journal's socket can be full, and then a plain write waits for as long as
its reader likes. O_NONBLOCK on the descriptor itself would change it for every process that shares
it, the user's shell among them. So a pipe or a terminal is opened anew, and a socket is asked with
each write.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

_FIRST_FREE: Final = 3  # never one of the standard descriptors, should one of them be closed

# Writes what fits now, and returns how much that was. Raises BlockingIOError if nothing fits.
_Write: TypeAlias = Callable[[bytes], int]


class Stderr:
    """Any thread may write. A line that does not fit is dropped and counted; ``account`` makes the
    line that tells of so many."""

    def __init__(self, account: Callable[[int], bytes], fd: int = 2) -> None:
        self._account = account
        self._fd = fd
        self._put, self._close = _opened(fd)
        self._patience = 0.0
        self.reset()

    def reset(self) -> None:
        """After a fork, in the child: another thread may have held the lock, and what is torn or
        dropped is the parent's to tell."""
        self._lock = threading.RLock()  # a finaliser may log in the midst of a write
        self._rest = b""
        self._dropped = 0

    def close(self) -> None:
        """Closes what it has opened, but never ``fd``."""
        self._close()

    def wait_for_reader(self, seconds: float) -> None:
        """Gives a slow reader so long before a line is dropped. Once one was, none waits until the
        reader is back."""
        self._patience = seconds

    def write(self, line: bytes) -> None:
        """Writes ``line`` or drops it. Never raises OSError."""
        with self._lock:
            if self._torn() or not self._begun(self._told() + line):
                self._dropped += 1
            else:
                self._dropped = 0

    def catch_up(self) -> None:
        """Tells of dropped lines, if the reader is back."""
        if not (self._dropped or self._rest):
            return
        with self._lock:
            # A full pipe may still take a short line; it is ready once something was read.
            if not self._torn() and self._dropped and _has_room(self._fd, 0):
                self._dropped = 0 if self._begun(self._told()) else self._dropped

    def _told(self) -> bytes:
        return self._account(self._dropped) if self._dropped else b""

    def _torn(self) -> bool:
        """Whether an earlier line is still not written to its end."""
        rest = self._rest
        if rest and not self._begun(rest):
            self._rest = rest
        return bool(self._rest)

    def _begun(self, data: bytes) -> bool:
        """Whether ``data`` is written; what did not fit of it comes first next time."""
        begun = False
        patience = 0.0 if self._dropped else self._patience
        while data:
            try:
                data = data[self._put(data) :]
                begun = True
            except BlockingIOError:
                if begun or not patience or not _has_room(self._fd, patience):
                    break
                patience = 0.0
            except OSError:  # the reader is gone, or the disk is full
                return False
        self._rest = data if begun else b""
        return begun


def _opened(fd: int) -> tuple[_Write, Callable[[], None]]:
    """How to write to ``fd`` without waiting, and how to close what that took."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # closed: `2>&-`
        return len, _nothing
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT), connection.close
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return partial(os.write, fd), _nothing
    own = _opened_anew(fd)
    if own is None:
        return partial(_polled, fd), _nothing
    return partial(os.write, own), partial(os.close, own)


def unblocked(fd: int = 2) -> int:
    """A descriptor for what ``fd`` leads to, on which a write drops what does not fit at once;
    ``fd`` itself where there is none. For the C handler that writes stacks, which cannot wait."""
    mode = os.fstat(fd).st_mode
    own = _opened_anew(fd) if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) else None
    return fd if own is None else own


def _opened_anew(fd: int) -> int | None:
    """A file description of our own; None where the system does not give us one, as after a change
    of user."""
    try:
        found = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(found)


def _nothing() -> None:
    """Nothing is to be closed."""


def _polled(fd: int, data: bytes) -> int:
    """A pipe that is ready takes this much at once. Another writer may come first: then we wait."""
    if not _has_room(fd, 0):
        raise BlockingIOError
    return os.write(fd, data[: select.PIPE_BUF])


def _has_room(fd: int, seconds: float) -> bool:
    poller = select.poll()  # select() cannot look at descriptors from 1024 on
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(seconds * 1000))
