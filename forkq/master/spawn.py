"""The fork: the one place where a master turns into a child or a clock."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..child import main as child
from ..clock import main as clock
from ..config.config import Config
from ..errors import CannotBoot
from ..runtime.assignment import Assignment, Generation, leave
from ..runtime.exit_codes import BLIND
from ..runtime.pipe import Fact, Reader, facts
from ..wire import lease
from .child_handle import ChildHandle, Slot
from .signals import reset

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Spawner:
    """Forks children. ``ours`` tells which descriptors of the master a child must close."""

    def __init__(
        self, config: Config, ours: Callable[[], Iterable[int]], log: FilteringBoundLogger
    ) -> None:
        self._config = config
        self._ours = ours
        self._log = log
        self._generation = Generation.begin()
        self._number = 0

    def begin_generation(self) -> None:
        """What is forked from now on loads the app anew; a preloaded app stays what it is."""
        if not self._config.preload:
            self._generation = Generation.begin()

    def spawn(self, slot: Slot, *, quiet: bool = False) -> ChildHandle:
        """Forks the child that fills ``slot``. Raises CannotBoot if threads are running, OSError if
        the system has no process or descriptor left."""
        refuse_threads()
        their_control, our_control, our_report, their_report = _two_pipes()
        for end in (our_control, their_report):
            os.set_blocking(end, False)
        nonce = secrets.token_hex(6)
        self._number += 1
        assignment = Assignment(
            slot.name,
            slot.capsule,
            nonce,
            their_control,
            their_report,
            quiet,
            self._generation,
            self._number,
        )
        try:
            pid = self._fork(assignment, (our_control, our_report))
        except OSError:
            os.close(our_control)
            os.close(our_report)
            raise
        finally:
            os.close(their_control)
            os.close(their_report)
        self._log.debug("spawned", child=slot.name, pid=pid)
        return ChildHandle(
            slot=slot,
            pid=pid,
            pidfd=_pidfd(pid),
            control=our_control,
            report=Reader[Fact](our_report, facts),
            identity=lease.identity(socket.gethostname(), pid, nonce),
        )

    def _fork(self, assignment: Assignment, masters: tuple[int, int]) -> int:
        """Forks with all signals blocked, so that none meets a child with the master's handlers."""
        closing = (*masters, *self._ours())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._become(assignment, closing, before)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become(
        self, assignment: Assignment, masters: Iterable[int], mask: Iterable[int]
    ) -> NoReturn:
        """The rest of a child's life. Nothing gets past it: what comes after, and inherited exit
        hooks, are the master's."""
        code = BLIND
        try:
            reset()
            for fd in masters:
                os.close(fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            with Path(os.devnull).open(encoding="utf-8") as nothing:
                os.dup2(nothing.fileno(), 0)  # a job that reads must not steal from the terminal
            run = clock.main if assignment.capsule is None else child.main
            code = run(self._config, assignment)
        except BaseException:  # noqa: BLE001 - nothing may return into the master's code
            traceback.print_exc()
        finally:
            leave(code)


def _two_pipes() -> tuple[int, int, int, int]:
    """Read and write ends of the control pipe, then of the report pipe: all four, or OSError."""
    control = os.pipe()
    try:
        return (*control, *os.pipe())
    except OSError:
        for end in control:
            os.close(end)
        raise


def refuse_threads() -> None:
    """Raises CannotBoot if this process has threads: a lock that one of them holds would stay
    locked in every child for good."""
    others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    if others:
        raise CannotBoot(
            f"cannot fork: the preloaded app has started the threads {', '.join(others)}; start "
            'them in @forkq.on("startup"), or set preload = false'
        )


def _pidfd(pid: int) -> int | None:
    """Tells of the child's death through the selector; elsewhere SIGCHLD alone does."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
