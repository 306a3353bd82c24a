"""What a forked process is told of itself, and how it listens to signals."""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn

from ..config.capsule import Capsule
from ..wire import lease
from .stderr import unblocked

# The terminal sends these to the whole process group; what they mean, the master says by pipe.
_MASTERS: Final = (
    signal.SIGINT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGHUP,
    signal.SIGUSR2,
)
# Seconds that a process which ends waits for its standard output.
_FLUSH_LIMIT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """Which code a child has loaded: a generation begins with a tree, and with each of its rolling
    restarts that loads the app anew. ``begun`` is monotonic: other hosts can use its age only."""

    token: str
    begun: float

    @classmethod
    def begin(cls) -> Generation:
        """A new one, from now on."""
        return cls(secrets.token_hex(6), time.monotonic())


# Makes a child write its stacks from a C handler, which needs no GIL. A process without that
# handler (a job has replaced its program) ignores this signal, and nothing else sends it.
STACKS: Final = signal.SIGURG


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a child stands: its name, what it works on, its ends of the two pipes.

    ``capsule`` is None for the clock. ``quiet``: it is born into a quiet tree, and fetches nothing.
    ``number`` counts what the master has forked.
    """

    name: str
    capsule: Capsule | None
    nonce: str
    control: int
    report: int
    quiet: bool
    generation: Generation = field(default_factory=Generation.begin)
    number: int = 0

    @property
    def identity(self) -> str:
        """Who this process is; asked for in the child, whose pid is part of it."""
        return lease.identity(socket.gethostname(), os.getpid(), self.nonce)


_copy = False
# A child's ends of the pipes to its master.
_pipes: tuple[int, ...] = ()


def is_job_fork() -> bool:
    """Whether a job has forked this process: it must end with its job, and take no other."""
    return _copy


def exit_job_fork(error: BaseException | None) -> NoReturn:
    """Ends a copy as Python would have ended it, but without the child's exit hooks."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if type(error.code) is int else int(error.code is not None)
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends a forked process without the exit hooks that it has inherited. Nothing comes between the
    call and the end: an output that raises when it is flushed, or blocks, loses what it holds."""
    try:
        flushing = threading.Thread(target=_flush, name="flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_LIMIT)
    finally:
        os._exit(code)


def _flush() -> None:
    """The app may have put any object in the place of standard output, which may raise anything."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


# The signal masks of threads that are about to fork.
_masks = threading.local()


def _hold_term() -> None:
    """Before a job's own fork: a TERM for the copy must wait until it has handlers of its own."""
    if not _copy:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_term() -> None:
    """After it, in the child: the mask is as the job had it."""
    if not _copy:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _become_job_fork() -> None:
    """After it, in the copy: our signals, and above all our wake-up descriptor, are not its. What
    the copy forks in its turn is its own business."""
    global _copy  # noqa: PLW0603 - true for a whole process, from its first moment on
    if _copy:
        return
    # Its parent may exec or die: only the parent's own ends of the pipes may tell of that.
    for fd in _pipes:
        with suppress(OSError):
            os.close(fd)
    signal.set_wakeup_fd(-1)
    for number in (*_MASTERS, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _let_term()
    _copy = True


def listen_to_term(assignment: Assignment) -> int:
    """Makes a forked process deaf to the master's signals. Returns the descriptor on which the
    number of each TERM arrives: sent to one child, it stops that child gracefully."""
    global _pipes  # noqa: PLW0603 - what a process has from its first moment on
    _pipes = (assignment.control, assignment.report)
    for number in _MASTERS:
        signal.signal(number, signal.SIG_IGN)
    if sys.stderr is not None:  # closed: its descriptor may be any file's
        faulthandler.register(STACKS, file=unblocked(), all_threads=True)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    os.register_at_fork(
        before=_hold_term, after_in_parent=_let_term, after_in_child=_become_job_fork
    )
    return woken
