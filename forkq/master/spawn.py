"""The fork: the only module in which a copy of the master becomes a child or a clock."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from ..child import main as child
from ..clock import main as clock
from ..config.config import Config
from ..errors import CannotBoot
from ..runtime.assignment import Assignment, Generation, exit_process, release_in_job_forks
from ..runtime.exit_codes import CANNOT_BOOT, INTERNAL_ERROR
from ..runtime.pipe import (
    Exiting,
    Fact,
    Order,
    PipeReader,
    Serves,
    facts,
    make_unbootable,
    orders,
    send,
)
from ..runtime.shared_files import SharedFiles
from ..store.watch.waker import Waker
from ..wire import lease
from .child_handle import ChildHandle, pidfd_of
from .handover import FORMAT, CanaryRecord, Fixed, become
from .signals import reset
from .slot import Slot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How far the oom_score_adj of a solo child, and of an ordinary one, is above the master's. The
# kernel may kill a second process before the memory of the first one is free. Without this, that
# could be the master, which is as large as an idle child.
_SOLO: Final = 600
_ORDINARY: Final = 200
_HIGHEST: Final = 1000
_NEVER: Final = -1000
_ADJ: Final = Path("/proc/self/oom_score_adj")


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

    def spawn(self, slot: Slot, *, quiet: bool = False, fresh: Fixed | None = None) -> ChildHandle:
        """Forks a child for ``slot``. Raises CannotBoot if this process has threads, OSError if the
        system has no process or descriptor left. ``fresh``: it goes on in a fresh interpreter."""
        refuse_threads()
        pipes = _Pipes.open()
        assignment = self._assignment(slot, pipes, quiet)
        try:
            pid = self._fork(assignment, (pipes.control, pipes.report), fresh)
        except OSError:
            pipes.close_master_ends()
            raise
        finally:
            pipes.close_child_ends()
        self._log.debug("spawned", child=slot.name, pid=pid)
        identity = lease.identity(socket.gethostname(), pid, assignment.nonce)
        report = PipeReader[Fact](pipes.report, facts)
        child = ChildHandle(
            slot,
            pid,
            pidfd_of(pid),
            pipes.control,
            report,
            pipes.files,
            identity,
            carries=dict(assignment.ended),
        )
        slot.ended.clear()  # not before: the system may refuse the fork
        return child

    def _assignment(self, slot: Slot, pipes: _Pipes, quiet: bool) -> Assignment:
        self._number += 1
        nonce = secrets.token_hex(6)
        return Assignment(
            slot.name,
            slot.capsule,
            lease.solo_nonce(nonce) if slot.solo else nonce,
            pipes.child_control,
            pipes.child_report,
            quiet,
            self._generation,
            self._number,
            pipes.files,
            dict(slot.ended),
            slot.shard,
            sole=slot.sole,
        )

    def _fork(self, assignment: Assignment, new_ends: tuple[int, int], fresh: Fixed | None) -> int:
        """Forks with all signals blocked: none may reach a child that still has the master's
        handlers."""
        closing = (*new_ends, *self._descriptors())
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._run_child(assignment, closing, before, fresh)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run_child(
        self,
        assignment: Assignment,
        closing: Iterable[int],
        mask: Iterable[int],
        fresh: Fixed | None,
    ) -> NoReturn:
        """The rest of a child's life. It never returns: the code after the call, and the exit hooks
        that the child has inherited, are the master's."""
        code = INTERNAL_ERROR
        try:
            reset()
            for fd in closing:
                os.close(fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if assignment.capsule is not None:
                stand_before_master(solo=assignment.solo)
            if not self._config.development.foreground:
                with Path(os.devnull).open(encoding="utf-8") as null:
                    os.dup2(null.fileno(), 0)  # a job must not read what is typed at the terminal
            if fresh is not None:
                code = _become_fresh(assignment, fresh)
            else:
                run = clock.main if assignment.capsule is None else child.main
                code = run(self._config.of_shard(assignment.shard), assignment)
        except BaseException:  # noqa: BLE001 - no child may run the master's code
            traceback.print_exc()
        finally:
            exit_process(code)


def _become_fresh(assignment: Assignment, fresh: Fixed) -> int:
    """In a forked child: executes the command line of the tree, which then calls ``run_canary``."""
    capsule, files = assignment.capsule, assignment.files
    assert capsule is not None and files is not None, "a canary has both"  # noqa: PT018
    record = CanaryRecord(
        format=FORMAT,
        fixed=fresh,
        name=assignment.name,
        nonce=assignment.nonce,
        control=assignment.control,
        report=assignment.report,
        files=files,
        quiet=assignment.quiet,
        capsule=capsule.name,
    )
    reason = become(record)
    send(assignment.report, make_unbootable(reason))
    return CANNOT_BOOT


def run_canary(record: CanaryRecord, config: Config) -> NoReturn:
    """The rest of the life of a child that was started by exec. If the new configuration does not
    have its capsule, it runs the jobs of the first one. Its generation is as old as can be: it must
    not publish periodic jobs of a code that may be rolled back."""
    code = INTERNAL_ERROR
    capsule = next((c for c in config.capsules if c.name == record.capsule), config.capsules[0])
    generation = Generation(secrets.token_hex(6), 0.0)
    try:
        for name in capsule.queue_names:
            send(record.report, Serves(name, capsule.shard))
        code = child.main(
            config.of_shard(capsule.shard),
            Assignment(
                record.name,
                capsule,
                record.nonce,
                record.control,
                record.report,
                record.quiet,
                generation,
                files=record.files,
            ),
        )
    except BaseException:  # noqa: BLE001 - as in a forked child
        traceback.print_exc()
    finally:
        exit_process(code)


class _Pipes(NamedTuple):
    """The control pipe and the report pipe of one child, and the files that it shares with the
    master. ``control`` and ``report`` are the master's ends."""

    child_control: int
    control: int
    report: int
    child_report: int
    files: SharedFiles

    @classmethod
    def open(cls) -> _Pipes:
        """Opens them all, or none. Raises OSError."""
        opened: list[int] = []
        try:
            for _ in range(2):
                opened += os.pipe()
            child_control, control, report, child_report = opened
            pipes = cls(child_control, control, report, child_report, SharedFiles.make())
        except OSError:
            for end in opened:
                os.close(end)
            raise
        for end in (pipes.control, pipes.child_report):
            os.set_blocking(end, False)
        return pipes

    def close_master_ends(self) -> None:
        """When there is no child."""
        for fd in (self.control, self.report, *self.files):
            os.close(fd)

    def close_child_ends(self) -> None:
        """In the master, after the fork."""
        os.close(self.child_control)
        os.close(self.child_report)


class ChildThread:
    """A child, or the clock if ``slot`` is the clock's, as a thread of this process, with the pipes
    of a forked one. Made in the main thread, where the app of a child is imported; it runs from
    ``start`` on. ``code``: its exit code once it has ``ended``. Raises what the app raises."""

    def __init__(
        self, config: Config, slot: Slot, log: FilteringBoundLogger, *, quiet: bool
    ) -> None:
        self._config = config
        self._slot = slot
        self._log = log
        self._pipes = pipes = _Pipes.open()
        nonce = secrets.token_hex(6)
        ends = (pipes.child_control, pipes.child_report)
        self._assignment = Assignment(
            slot.name, slot.capsule, nonce, *ends, quiet, files=pipes.files, in_master=True
        )
        self._no_term = Waker()  # signals go to the master's loop
        release_in_job_forks(*ends, pipes.control, pipes.report)
        self._child = None if slot.capsule is None else self._booted()
        self._thread = threading.Thread(target=self._live, name=slot.name, daemon=True)
        self.code = INTERNAL_ERROR

    def start(self) -> ChildHandle:
        """Begins to run jobs, or to be the clock. Threads of Linux have numbers as processes do."""
        self._thread.start()
        pid = os.getpid() if self._child is not None else self._thread.native_id
        assert pid is not None
        identity, report = self._assignment.identity, PipeReader[Fact](self._pipes.report, facts)
        return ChildHandle(
            self._slot, pid, None, self._pipes.control, report, self._pipes.files, identity
        )

    def ended(self, wait: float = 0.0) -> bool:
        """Whether it has ended, or does within ``wait`` seconds."""
        self._thread.join(wait)
        return not self._thread.is_alive()

    def _booted(self) -> child.Child:
        control = PipeReader[Order](self._assignment.control, orders)
        return child.boot(self._config, self._assignment, self._no_term.fd, control)

    def _live(self) -> None:
        try:
            if self._child is not None:
                self.code = self._child.run(quiet=self._assignment.quiet)
            else:
                clock_loop = clock.Clock(self._config, self._assignment, self._no_term.fd)
                self.code = clock_loop.run()
        except BaseException as error:  # noqa: BLE001 - it must not end without a word
            self._log.error(
                f"the thread {self._slot.name} has failed; this process ends", exc_info=error
            )
            send(self._assignment.report, Exiting())


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


def stand_before_master(*, solo: bool, file: Path = _ADJ) -> None:
    """In a child: has the kernel kill it before the master and the clock, and a solo child before
    the others, when memory runs out. The kernel takes the process with the highest score: its share
    of the memory in thousandths, plus its ``oom_score_adj``. What a job starts inherits that. It
    adds to what a unit or a container has set, and where that leaves no room for the whole steps,
    they are smaller. A master that is never killed has children that count from 0: those must not
    be safe from it, too. It needs no right."""
    with suppress(OSError, ValueError):  # not Linux, or a sandbox without /proc
        own = int(file.read_text())
        own = 0 if own == _NEVER else own
        step = _SOLO if solo else _ORDINARY
        file.write_text(str(own + min(_SOLO, _HIGHEST - own) * step // _SOLO))
