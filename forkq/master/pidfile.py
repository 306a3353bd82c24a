"""The pidfile: one master per file, held by a lock that dies with it.

A POSIX record lock belongs to the process, is not inherited by a fork, and is released by the
kernel however the process ends. So a file without a lock is stale, even if the pid in it belongs to
a living process.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

import psutil

from ..config.private_files import make_folder, open_own, open_trusted
from ..errors import AlreadyRunning, ForkqError, file_error

TITLE: Final = "forkq master"
# What the command line of a master has that has set no title yet: a path, or `-m` of Python.
_PROGRAMS: Final = frozenset({"forkq", "forkq.contrib.django"})


class Pidfile:
    """Held by a master from ``acquire`` to ``release``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> None:
        """Takes the file. Raises AlreadyRunning with the pid of the master that has it. Raises
        ConfigError, or CannotStartYet if the system lacks space, descriptors or locks just now."""
        try:
            make_folder(self.path.parent)
            self._fd = self._open_locked()
            self._write()
        except OSError as error:
            raise file_error(
                f"cannot write the pidfile {self.path}: {error.strerror}; "
                "name another one with --pidfile, or make room",
                error,
            ) from None

    def inherit(self, fd: int) -> None:
        """Takes over the locked file of the program that this process ran before: a record lock
        outlives an exec."""
        self._fd = fd

    def release(self) -> None:
        """Removes the file, if its path still leads to it."""
        if _is_at(self._fd, self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def descriptor(self) -> int:
        """What a forked child must close."""
        return self._fd

    def _write(self) -> None:
        """Writes the master's pid. If the disk is full, the empty file is removed again."""
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        except OSError:
            self.release()
            raise

    def _open_locked(self) -> int:
        while True:
            # For this user alone: who can read a file can lock it, and keep the master from it.
            fd = open_own(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(fd, 32).decode().strip()
                os.close(fd)
                raise AlreadyRunning(
                    f"forkq is already running as pid {pid} ({self.path}); stop it with "
                    "`forkq stop`, or give this one its own --tag or --pidfile"
                ) from None
            if _is_at(fd, self.path):
                return fd
            os.close(fd)  # the last holder removed it between our open and our lock


def running_master(path: Path) -> psutil.Process | None:
    """The live master behind ``path``, or None if there is none.

    Raises ConfigError if the file is not to be trusted, ForkqError if it names a process that is
    not the master of the file's owner: such a process must get no signal.
    """
    try:
        fd = open_trusted(path)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock needs no right to write
    except BlockingIOError:
        text = os.read(fd, 32).decode("ascii", "replace").strip()
        return _master(int(text), os.fstat(fd).st_uid, path) if text.isdecimal() else None
    finally:
        os.close(fd)
    return None


def _master(pid: int, owner: int, path: Path) -> psutil.Process:
    """The process ``pid``. Raises ForkqError if it is no master of the user ``owner``."""
    try:
        process = psutil.Process(pid)
        if process.uids().real == owner and _looks_like_a_master(process.cmdline()):
            return process
    except (psutil.Error, OverflowError):
        pass  # it is gone, or hidden from this user
    raise ForkqError(
        f"the pidfile {path} names pid {pid}, which is no forkq master of the file's owner; "
        "it gets no signal. Look who has the file open (fuser -v), and remove it"
    )


def _looks_like_a_master(command: list[str]) -> bool:
    """Whether the title of a process says so, or its command line before it has set a title."""
    title = command[0] if command else ""
    return title.startswith(TITLE) or any(Path(part).name in _PROGRAMS for part in command[:4])


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def lives(process: psutil.Process) -> bool:
    """Whether ``process`` runs; one that has only not been reaped yet does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
