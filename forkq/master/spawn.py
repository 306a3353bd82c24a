"""The fork: the one place where a master turns into a child or a clock."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from .. import lease
from ..child import main as child
from ..clock import main as clock
from ..config import Config
from ..errors import CannotBoot
from ..exits import BLIND
from ..pipe import Fact, Quiet, Reader, facts
from ..post import Post
from .handle import Child, Slot
from .signals import reset


class Spawner:
    """Forks children. ``ours`` tells which descriptors of the master a child must close."""

    def __init__(self, config: Config, ours: Callable[[], Iterable[int]], log: Any) -> None:
        self._config = config
        self._ours = ours
        self._log = log

    def spawn(self, slot: Slot, *, quiet: bool = False) -> Child:
        """Forks the child that fills ``slot``. Raises CannotBoot if threads are running."""
        refuse_threads()
        their_control, our_control = os.pipe()
        our_report, their_report = os.pipe()
        for end in (our_control, their_report):
            os.set_blocking(end, False)
        nonce = secrets.token_hex(6)
        pid = self._fork(slot, nonce, their_control, their_report, (our_control, our_report))
        os.close(their_control)
        os.close(their_report)
        self._log.debug("spawned", child=slot.name, pid=pid)
        born = Child(
            slot=slot,
            pid=pid,
            pidfd=_pidfd(pid),
            control=our_control,
            report=Reader[Fact](our_report, facts),
            identity=lease.identity(socket.gethostname(), pid, nonce),
        )
        if quiet:
            born.order(Quiet())
        return born

    def _fork(
        self, slot: Slot, nonce: str, control: int, report: int, masters: tuple[int, int]
    ) -> int:
        """Forks with all signals blocked, so that none meets a child with the master's handlers."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                reset()
                for fd in (*masters, *self._ours()):
                    os.close(fd)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                identity = lease.identity(socket.gethostname(), os.getpid(), nonce)
                self._become(Post(slot.name, slot.capsule, identity, control, report))
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become(self, post: Post) -> NoReturn:
        """The rest of a child's life. Never returns: inherited exit hooks are the master's."""
        code = BLIND
        try:
            with Path(os.devnull).open(encoding="utf-8") as nothing:
                os.dup2(nothing.fileno(), 0)  # a job that reads must not steal from the terminal
            run = clock.main if post.capsule is None else child.main
            code = run(self._config, post)
        except BaseException:  # noqa: BLE001 - nothing may return into the master's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


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
