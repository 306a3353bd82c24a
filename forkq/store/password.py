"""Reads the password of a Redis server from its source. Any process, at each connect."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from typing import Final

from ..errors import ForkqError
from ..wire.password_source import PasswordSource

_LONGEST: Final = 65_536  # bytes


class PasswordUnreadable(ForkqError):
    """A password cannot be read. The text names the source and the remedy, never what was read."""


def read_password(source: PasswordSource, limit: float) -> str:
    """The password, without the end of its line. A command gets ``limit`` seconds, and is killed
    with all that it has started. Raises PasswordUnreadable."""
    try:
        content = _of_file(source) if source.file is not None else _of_command(source, limit)
        password = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise PasswordUnreadable(f"{source} gives bytes that are not UTF-8") from None
    if not password:
        raise PasswordUnreadable(f"{source} gives nothing: it must give the password alone")
    return password


def _of_file(source: PasswordSource) -> bytes:
    """The password in a file. A link may lead to the file, as in a volume of Kubernetes. A pipe
    could be read only once, so it is refused."""
    assert source.file is not None
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(source.file, flags)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise PasswordUnreadable(f"{source} is no plain file")
            return os.read(fd, _LONGEST)
        finally:
            os.close(fd)
    except OSError as error:
        remedy = "the user of this process must be able to read it"
        raise PasswordUnreadable(f"{source}: {error.strerror}; {remedy}") from None


def _of_command(source: PasswordSource, limit: float) -> bytes:
    """The password that a command prints. What the command says of errors is dropped: a secret may
    be in it."""
    try:
        process = subprocess.Popen(
            source.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise PasswordUnreadable(f"{source} cannot be started: {error.strerror}") from None
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise PasswordUnreadable(
            f"{source} has not ended within {limit:g} s (connect_timeout); let a timer write a "
            "file for password_file instead"
        ) from None
    finally:
        _end(process)
    if process.returncode:
        how = f"exit code {process.returncode}" if process.returncode > 0 else "a signal"
        remedy = "run it by hand as the user of this process to see why"
        raise PasswordUnreadable(f"{source} has ended with {how}; {remedy}")
    return printed[:_LONGEST]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a command that took too long, or whose reader was interrupted."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
