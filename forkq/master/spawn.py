"""The fork: the only module in which a copy of the master becomes a child or a clock."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ..child import main as child
from ..clock import main as clock
from ..config.config import Config
from ..errors import CannotBoot
from ..runtime.assignment import Assignment, Generation, exit_process
from ..runtime.exit_codes import INTERNAL_ERROR
from ..runtime.pipe import Fact, Reader, facts
from ..wire import lease
from .child_handle import ChildHandle, Slot
from .signals import reset

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Spawner:
    """Forks children. ``descriptors`` returns the master's descriptors, which a child closes."""

    def __init__(
        self, config: Config, descriptors: Callable[[], Iterable[int]], log: FilteringBoundLogger
    ) -> None:
        self._config = config
        self._descriptors = descriptors
        self._log = log
        self._generation = Generation.begin()
        self._number = 0

    def begin_generation(self) -> None:
        """Children that are forked from now on load the app anew, unless the master has preloaded
        it."""
        if not self._config.preload:
            self._generation = Generation.begin()

    def spawn(self, slot: Slot, *, quiet: bool = False) -> ChildHandle:
        """Forks a child for ``slot``. Raises CannotBoot if this process has threads, OSError if the
        system has no process or descriptor left."""
        refuse_threads()
        pipes = _Pipes.open()
        assignment = self._assignment(slot, pipes, quiet)
        try:
            pid = self._fork(assignment, (pipes.control, pipes.report))
        except OSError:
            pipes.close_master_ends()
            raise
        finally:
            pipes.close_child_ends()
        self._log.debug("spawned", child=slot.name, pid=pid)
        identity = lease.identity(socket.gethostname(), pid, assignment.nonce)
        report = Reader[Fact](pipes.report, facts)
        return ChildHandle(slot, pid, _pidfd(pid), pipes.control, report, identity)

    def _assignment(self, slot: Slot, pipes: _Pipes, quiet: bool) -> Assignment:
        self._number += 1
        return Assignment(
            slot.name,
            slot.capsule,
            secrets.token_hex(6),
            pipes.child_control,
            pipes.child_report,
            quiet,
            self._generation,
            self._number,
        )

    def _fork(self, assignment: Assignment, new_ends: tuple[int, int]) -> int:
        """Forks with all signals blocked: none may reach a child that still has the master's
        handlers."""
        closing = (*new_ends, *self._descriptors())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._run_child(assignment, closing, before)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run_child(
        self, assignment: Assignment, closing: Iterable[int], mask: Iterable[int]
    ) -> NoReturn:
        """The rest of a child's life. It never returns: the code after the call, and the exit hooks
        that the child has inherited, are the master's."""
        code = INTERNAL_ERROR
        try:
            reset()
            for fd in closing:
                os.close(fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            with Path(os.devnull).open(encoding="utf-8") as null:
                os.dup2(null.fileno(), 0)  # a job must not read what is typed at the terminal
            run = clock.main if assignment.capsule is None else child.main
            code = run(self._config, assignment)
        except BaseException:  # noqa: BLE001 - no child may run the master's code
            traceback.print_exc()
        finally:
            exit_process(code)


class _Pipes(NamedTuple):
    """The control pipe and the report pipe of one child. ``control`` and ``report`` are the
    master's ends."""

    child_control: int
    control: int
    report: int
    child_report: int

    @classmethod
    def open(cls) -> _Pipes:
        """Opens all four ends, or none. Raises OSError."""
        control = os.pipe()
        try:
            pipes = cls(*control, *os.pipe())
        except OSError:
            for end in control:
                os.close(end)
            raise
        for end in (pipes.control, pipes.child_report):
            os.set_blocking(end, False)
        return pipes

    def close_master_ends(self) -> None:
        """When there is no child."""
        os.close(self.control)
        os.close(self.report)

    def close_child_ends(self) -> None:
        """In the master, after the fork."""
        os.close(self.child_control)
        os.close(self.child_report)


def refuse_threads(places: Sequence[str] = ()) -> None:
    """Raises CannotBoot if this process has threads: a lock that one of them holds would stay
    locked in every child. ``places`` are their names with the lines that started them, if known."""
    others = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
    if others:
        names = ", ".join(places or others)
        raise CannotBoot(
            f"cannot fork: the preloaded app has started the threads {names}; start them in "
            '@forkq.on("startup"), or set preload = false'
        )


def _pidfd(pid: int) -> int | None:
    """A descriptor that wakes the selector when the child dies; None where only SIGCHLD does."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
