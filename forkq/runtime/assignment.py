"""What a forked process gets from the master: its assignment, and its way to handle signals."""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from ..config.capsule import Capsule
from ..config.config import Config
from ..values import replace
from ..wire import lease
from . import log
from .shared_files import SharedFiles, enable_crash_file
from .unblocked_output import unblocked

# The terminal sends these to the whole process group. A child ignores them: only the master obeys
# them, and sends its orders by pipe.
_MASTER_SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGHUP,
    signal.SIGUSR2,
)
# Seconds that an ending process waits for its standard output.
_FLUSH_LIMIT: Final = 1.0


class Generation(msgspec.Struct, frozen=True):
    """Which code a child has loaded. A generation begins with a tree, and with each rolling restart
    that loads the app anew. ``begun`` is monotonic: another host can use only its age."""

    token: str
    begun: float

    @classmethod
    def begin(cls) -> Generation:
        """A new generation, which begins now."""
        return cls(secrets.token_hex(6), time.monotonic())


# This signal makes a child write its stacks, from a C handler that needs no GIL. A process without
# that handler (a job has called exec) ignores it. Only forkq sends it.
STACKS_SIGNAL: Final = signal.SIGURG


class Assignment(msgspec.Struct, frozen=True):
    """The child's name, its capsule, and its ends of the two pipes.

    ``capsule`` is None for the clock. ``quiet``: the tree is quiet, so the child fetches nothing.
    ``number`` counts the master's forks. ``files``: what it shares with the master. ``ended``: how
    children before it have ended, for the totals in Redis. ``shard``: where its jobs are, if there
    are shards. ``in_master``: it is a thread of the master's process. ``substitute``: it is the
    solo child that an ordinary child is. ``sole``: while it runs a suspect, no other one runs in
    the tree.
    """

    name: str
    capsule: Capsule | None
    nonce: str
    control: int
    report: int
    quiet: bool
    generation: Generation = msgspec.field(default_factory=Generation.begin)
    number: int = 0
    files: SharedFiles | None = None
    ended: Mapping[str, int] = msgspec.field(default_factory=dict)
    shard: str = ""
    in_master: bool = False
    substitute: bool = False
    sole: bool = False

    @property
    def solo(self) -> bool:
        """Whether the child runs one suspect at a time, and nothing else."""
        return lease.is_solo(self.nonce)

    @property
    def for_suspects(self) -> Assignment:
        """The assignment of the solo child that an ordinary child is, where no other one can
        boot."""
        assert self.capsule is not None
        alone = replace(self.capsule, concurrency=1, workers=1)
        nonce = lease.solo_nonce(self.nonce)
        return replace(self, capsule=alone, nonce=nonce, substitute=True, sole=True, ended={})

    @property
    def identity(self) -> str:
        """The identity of this process. Only right in the child: its pid is a part."""
        return lease.identity(socket.gethostname(), os.getpid(), self.nonce)


def master_pid(config: Config) -> int:
    """The pid of the master of this child or clock: its parent, or this process itself."""
    return os.getpid() if config.in_one_process else os.getppid()


_is_job_fork = False
# A child's ends of the pipes to its master.
_pipes: tuple[int, ...] = ()


def is_job_fork() -> bool:
    """Whether a job has forked this process. Such a process ends with its job."""
    return _is_job_fork


def exit_job_fork(error: BaseException | None) -> NoReturn:
    """Ends a job's fork as Python would end it, but without the exit hooks of the child."""
    code = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code if type(error.code) is int else int(error.code is not None)
    exit_process(code)


def exit_process(code: int) -> NoReturn:
    """Ends a forked process without the exit hooks that it has inherited. It always ends: an output
    that raises or blocks when it is flushed loses what it holds."""
    try:
        flushing = threading.Thread(target=_flush, name="flush", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_LIMIT)
    finally:
        os._exit(code)


def _flush() -> None:
    """Flushes standard output. The app may have replaced it by an object that raises any
    exception."""
    log.report_left_out_lines(at_end=True)
    log.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


# The signal masks of threads that are about to fork.
_masks = threading.local()


def _block_term() -> None:
    """Blocks TERM before a job forks: it must not reach the fork before that has its own
    handlers."""
    if not _is_job_fork:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock_term() -> None:
    """Restores the signal mask after a job's fork, in the child."""
    if not _is_job_fork:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _become_job_fork() -> None:
    """Gives up the child's pipes, signal handlers and wake-up descriptor, in a job's fork."""
    global _is_job_fork  # noqa: PLW0603 - a property of the process
    if _is_job_fork:  # its own forks have nothing left to give up
        return
    # The master must see EOF when the child dies or calls exec: no other process may hold its ends.
    for fd in _pipes:
        with suppress(OSError):
            os.close(fd)
    signal.set_wakeup_fd(-1)
    faulthandler.disable()  # a crash of the fork is none of the child
    for number in (*_MASTER_SIGNALS, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    _unblock_term()
    _is_job_fork = True


def install_signals(assignment: Assignment) -> int:
    """Makes a forked process ignore the master's signals. Returns the descriptor on which the
    number of each TERM arrives: a TERM that is sent to one child stops that child gracefully."""
    for number in _MASTER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if assignment.files is not None:
        enable_crash_file(assignment.files.crash)
    if sys.stderr is not None:  # if it is closed, descriptor 2 may be any file
        faulthandler.register(STACKS_SIGNAL, file=unblocked(), all_threads=True)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    release_in_job_forks(assignment.control, assignment.report)
    return read_end


def release_in_job_forks(*descriptors: int) -> None:
    """From now on a process that a job forks closes these descriptors, and obeys no signal as this
    process does."""
    global _pipes  # noqa: PLW0603 - a property of the process
    if not _pipes:
        os.register_at_fork(
            before=_block_term, after_in_parent=_unblock_term, after_in_child=_become_job_fork
        )
    _pipes += descriptors
