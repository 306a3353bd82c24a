"""The master's signals. The handlers do nothing; Python writes each signal's number to a wake-up
descriptor, and the loop reads it there."""

from __future__ import annotations

import os
import signal
from typing import Final

HANDLED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGURG,
    signal.SIGCHLD,
)
# They would end a master whose output is closed, or stop one that has lost its terminal.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGTTOU)


class Signals:
    """Installs the handlers, and reads which signals have come."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        for end in (self.fd, self._write):
            os.set_blocking(end, False)

    def install(self) -> None:
        """Takes over the signals of this process."""
        for number in HANDLED:
            signal.signal(number, _nothing)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)  # an exec leaves them blocked

    def block(self) -> list[int]:
        """From now on no signal comes, until ``install``. Returns those that have come before."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        return self.read()

    def fileno(self) -> int:
        """For selectors."""
        return self.fd

    def read(self) -> list[int]:
        """The signals that have come since the last call, oldest first."""
        try:
            return list(os.read(self.fd, 4096))
        except BlockingIOError:
            return []

    def descriptors(self) -> tuple[int, int]:
        """What a forked child must close."""
        return self.fd, self._write


def ignore() -> None:
    """The master has done its work: a signal that comes while Python ends changes nothing."""
    for number in HANDLED:
        if number != signal.SIGCHLD:
            signal.signal(number, signal.SIG_IGN)


def reset() -> None:
    """In a forked child: removes the master's handlers."""
    signal.set_wakeup_fd(-1)
    for number in HANDLED:
        signal.signal(number, signal.SIG_DFL)


def _nothing(*_: object) -> None:
    """Exists so that Python writes the signal's number to the wake-up descriptor."""
