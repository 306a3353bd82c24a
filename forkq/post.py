"""What a forked process is told of itself, and how it listens to signals."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from typing import Final

from . import lease
from .capsule import Capsule

# The terminal sends these to the whole process group; what they mean, the master says by pipe.
_MASTERS: Final = (
    signal.SIGINT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGHUP,
    signal.SIGUSR2,
)


@dataclass(frozen=True, slots=True)
class Post:
    """Where a child stands: its name, what it works on, its ends of the two pipes.

    ``capsule`` is None for the clock. ``quiet``: it is born into a quiet tree, and fetches nothing.
    """

    name: str
    capsule: Capsule | None
    nonce: str
    control: int
    report: int
    quiet: bool

    @property
    def identity(self) -> str:
        """Who this process is; asked for in the child, whose pid is part of it."""
        return lease.identity(socket.gethostname(), os.getpid(), self.nonce)


def listen_to_term() -> int:
    """Makes a forked process deaf to the master's signals. Returns the descriptor on which the
    number of each TERM arrives: sent to one child, it stops that child gracefully."""
    for number in _MASTERS:
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken
