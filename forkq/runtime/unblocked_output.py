"""Standard output and standard error, written without waiting for their reader.

A terminal, a pipe or the journal's socket can be full, and then a plain write waits for the reader.
O_NONBLOCK on the descriptor itself would change it for every process that shares it, such as the
user's shell. So a pipe or a terminal is opened anew, and each write to a socket says MSG_DONTWAIT.
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

from . import prompt
from .struck_lock import release_all

# How long a reader that stands still may hold up a line before it is dropped, in seconds.
READER_LIMIT: Final = 1.0
_FIRST_FREE: Final = 3  # never one of the standard descriptors, should one of them be closed

# Writes as many bytes as fit now, and returns their number. Raises BlockingIOError if none fits.
_Write: TypeAlias = Callable[[bytes], int]


class UnblockedOutput:
    """Any thread may write. A line that does not fit is dropped and counted. ``drop_notice`` makes
    the line that reports the number of dropped lines."""

    def __init__(self, drop_notice: Callable[[int], bytes], fd: int = 2) -> None:
        self._drop_notice = drop_notice
        self._fd = fd
        self._write_now, self._close = _open_unblocked(fd)
        self._reader_timeout = 0.0
        self.reset()

    def reset(self) -> None:
        """Starts anew in a child after its fork: another thread may have held the lock. The parent
        finishes its own lines, and reports its own drops."""
        self._lock = threading.RLock()  # not a Lock: a finaliser may log during a write
        self._unwritten = b""  # the rest of a line that has been written in part
        self._dropped = 0
        self._delayed: list[bytes] = []  # lines that a debugger's prompt holds up

    def close(self) -> None:
        """Closes the descriptors that it has opened, but never ``fd``."""
        self._close()

    def wait_for_reader(self, seconds: float) -> None:
        """From now on a line waits that many seconds for a reader before it is dropped. After a
        dropped line the next ones do not wait, until the reader reads again."""
        self._reader_timeout = seconds

    def write(self, lines: bytes, count: int = 1) -> None:
        """Writes ``lines``, of which there are ``count``, or drops them. Never raises OSError."""
        try:
            with self._lock:
                self._write(lines, count)
        except BaseException:
            release_all(self._lock)
            raise

    def _write(self, lines: bytes, count: int) -> None:
        if prompt.is_open():
            self._delayed.append(lines)
            return
        lines, self._delayed = b"".join((*self._delayed, lines)), []
        if not self._finish_line() or not self._start_line(self._notice() + lines):
            self._dropped += count
        else:
            self._dropped = 0

    def report_dropped_lines(self) -> None:
        """Reports dropped lines, if the reader reads again, and writes those that were held up."""
        if self._delayed and not prompt.is_open():
            self.write(b"")
        if not (self._dropped or self._unwritten):
            return
        with self._lock:
            # A full pipe may still take a short line. It has room once the reader has read.
            if self._finish_line() and self._dropped and _has_room(self._fd, 0):
                self._dropped = 0 if self._start_line(self._notice()) else self._dropped

    def _notice(self) -> bytes:
        return self._drop_notice(self._dropped) if self._dropped else b""

    def _finish_line(self) -> bool:
        """Writes the rest of an earlier line. Returns whether no rest is left."""
        rest = self._unwritten
        if rest and not self._start_line(rest):
            self._unwritten = rest
        return not self._unwritten

    def _start_line(self, data: bytes) -> bool:
        """Writes ``data`` as far as it fits, and keeps the rest for later: on a disk that was full,
        too, the next line begins a new one. Returns False if none of it was written."""
        started = False
        timeout = 0.0 if self._dropped else self._reader_timeout
        while data:
            try:
                data = data[self._write_now(data) :]
                started = True
            except BlockingIOError:
                if not timeout or not _has_room(self._fd, timeout):
                    break
            except OSError:  # the reader is gone, or the disk is full
                break
        self._unwritten = data if started else b""
        return started


def _open_unblocked(fd: int) -> tuple[_Write, Callable[[], None]]:
    """A function that writes to ``fd`` without waiting, and one that closes its descriptor."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:  # closed: `2>&-`
        return len, _do_nothing
    if stat.S_ISSOCK(mode):
        connection = socket.socket(fileno=fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
        return lambda data: connection.send(data, socket.MSG_DONTWAIT), connection.close
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return partial(os.write, fd), _do_nothing
    own = _open_anew(fd)
    if own is None:
        return partial(_write_if_ready, fd), _do_nothing
    return partial(os.write, own), partial(os.close, own)


def unblocked(fd: int = 2) -> int:
    """A descriptor for the same file as ``fd``, on which a write drops the bytes that do not fit;
    ``fd`` itself if there is none. For the C handler that writes stacks, which cannot wait."""
    mode = os.fstat(fd).st_mode
    own = _open_anew(fd) if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) else None
    return fd if own is None else own


def _open_anew(fd: int) -> int | None:
    """A file description that no other process shares; None if the system refuses it, as after a
    change of user."""
    try:
        found = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        return fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(found)


def _do_nothing() -> None:
    """Closes nothing: for a descriptor that must stay open."""


def _write_if_ready(fd: int, data: bytes) -> int:
    """Writes to a descriptor that is ready. A pipe that is ready takes PIPE_BUF bytes at once. Only
    if another process writes in between, the write waits."""
    if not _has_room(fd, 0):
        raise BlockingIOError
    return os.write(fd, data[: select.PIPE_BUF])


def _has_room(fd: int, seconds: float) -> bool:
    poller = select.poll()  # select() cannot look at descriptors from 1024 on
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(seconds * 1000))
