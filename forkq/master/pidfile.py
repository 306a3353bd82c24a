"""The pidfile: one master per file, held by a lock that dies with it.

A POSIX record lock belongs to the process, is not inherited by a fork, and is released by the
kernel however the process ends. So a stale file is one that nobody has locked, whatever pid it
names: there is nothing to guess, and no recycled pid to fall for.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..errors import AlreadyRunning, ConfigError, ForkqError


class Pidfile:
    """Held by a master from ``acquire`` to ``release``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> None:
        """Takes the file. Raises AlreadyRunning with the pid of the master that has it."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = self._locked()
            self._write()
        except OSError as error:
            raise ConfigError(
                f"cannot write the pidfile {self.path}: {error.strerror}; "
                "name another one with --pidfile"
            ) from None

    def release(self) -> None:
        """Removes the file, while it is still ours."""
        if _is_at(self._fd, self.path):
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def descriptor(self) -> int:
        """What a forked child must close."""
        return self._fd

    def _write(self) -> None:
        """Writes our pid. A file that a full disk does not take is removed again."""
        try:
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())
        except OSError:
            self.release()
            raise

    def _locked(self) -> int:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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


def running_pid(path: Path) -> int | None:
    """The pid of the live master behind ``path``, or None if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise ForkqError(
            f"may not read the pidfile {path}: run this as the master's user"
        ) from None
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock needs no right to write
    except BlockingIOError:
        text = os.read(fd, 32).decode().strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
