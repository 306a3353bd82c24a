"""Forkq's own files: the pidfile, the status file, the address of the embedded server.

By default they may lie below the temporary folder, where any user can create a file of that name
first. So no link is followed, and a file is neither read nor written before its owner is checked.
Called by the master, by the commands that look for it, and by clients of the embedded server.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from .paths import is_guessable

_SAFELY: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_WRITABLE_BY_OTHERS: Final = 0o022
_BLOCK: Final = 512  # bytes: the unit of st_blocks
_REMEDY: Final = "remove it, run this as its owner, or name another place with --pidfile"


def make_folder(folder: Path) -> None:
    """Makes the pidfile's folder, closed to other users. If any user could have made it, it must
    belong to this user. Raises ConfigError, or OSError."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    if is_guessable(folder):
        check_private(folder, "set XDG_RUNTIME_DIR, or name another place with --pidfile")


def check_private(folder: Path, remedy: str) -> None:
    """Raises ConfigError unless ``folder`` belongs to this user and is closed to all others."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is no folder, or a link to one"
    elif found.st_uid != os.geteuid():
        wrong = f"belongs to {_user(found.st_uid)}"
    elif found.st_mode & 0o077:
        wrong = f"is open to other users (mode {stat.S_IMODE(found.st_mode):03o}): chmod 700 it"
    else:
        return
    raise ConfigError(f"{folder} {wrong}; forkq keeps its files in a folder of its own: {remedy}")


def open_own(path: Path, flags: int, mode: int) -> int:
    """Opens a file to write. Raises ConfigError if it does not belong to this user, or OSError."""
    fd = _open(path, flags, mode)
    try:
        found = os.fstat(fd)
        _check(path, found, trusted=found.st_uid == os.geteuid())
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_trusted(path: Path) -> int:
    """Opens a file to read if its owner is trusted: this user, root, or, if root reads it, any user
    whose file lies in a folder that only its owner may write to. Raises ConfigError if the owner is
    not trusted, or FileNotFoundError."""
    try:
        fd = _open(path, os.O_RDONLY, 0)
    except PermissionError:
        raise ConfigError(f"may not read {path}: run this as the master's user") from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    try:
        found = os.fstat(fd)
        _check(path, found, trusted=_is_trusted(path, found))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_trusted(path: Path) -> bytes:
    """The content of a file whose owner is trusted. Raises the errors of ``open_trusted``."""
    with os.fdopen(open_trusted(path), "rb") as file:
        return file.read()


def replace_own(path: Path, content: bytes) -> None:
    """Writes ``content`` to ``path`` in one step, readable for this user alone. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(content)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise


def overwrite_own(path: Path, content: bytes) -> bool:
    """Writes ``content`` into the blocks that the file at ``path`` has: on a full disk, too. A
    reader may see half of it. Returns whether it fits. Raises OSError or ConfigError."""
    with os.fdopen(open_own(path, os.O_WRONLY, 0), "wb", buffering=0) as file:
        found = os.fstat(file.fileno())
        fits = len(content) <= found.st_blocks * _BLOCK
        if fits:
            file.write(content.ljust(found.st_size))
        return fits


def show_life(path: Path) -> None:
    """Writes the time (monotonic) where the file at ``path`` has the time of its last change, which
    needs no space. Nothing tells of a failure but the age of the last time."""
    now = time.monotonic_ns()
    with suppress(OSError):
        os.utime(path, ns=(now, now), follow_symlinks=False)


def life_shown(path: Path) -> float | None:
    """When ``show_life`` was last called for this file (monotonic); None if it never was."""
    try:
        at = path.lstat().st_mtime_ns
    except OSError:
        return None
    return at / 1e9 if at <= time.monotonic_ns() else None


def _open(path: Path, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | _SAFELY, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link; a pipe or a socket
            raise
        raise ConfigError(f"{path} is no plain file, but a link or a pipe: {_REMEDY}") from None


def _check(path: Path, found: os.stat_result, *, trusted: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        wrong = "is no plain file"
    elif not trusted:
        wrong = f"belongs to {_user(found.st_uid)}"
    elif found.st_mode & _WRITABLE_BY_OTHERS:
        wrong = f"can be written by other users (mode {stat.S_IMODE(found.st_mode):03o})"
    elif found.st_nlink > 1:
        wrong = "has a second name (a hard link), and may be another file of yours"
    else:
        return
    raise ConfigError(f"{path} {wrong}: {_REMEDY}")


def _is_trusted(path: Path, found: os.stat_result) -> bool:
    if found.st_uid in (os.geteuid(), 0):
        return True
    return os.geteuid() == 0 and not path.parent.stat().st_mode & _WRITABLE_BY_OTHERS


def _user(uid: int) -> str:
    try:
        return f"the user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"another user (uid {uid})"
