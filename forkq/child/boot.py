"""The boot of a child: a thread that obeys the master while the app is imported."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import CannotBoot
from ..runtime.assignment import Assignment, exit_process
from ..runtime.exit_codes import CLEAN
from ..runtime.pipe import (
    DumpStacks,
    Exiting,
    HoldClasses,
    Order,
    PipeReader,
    Quiet,
    Stop,
    orders,
    send,
)
from ..runtime.stack_dump import dump_stacks
from ..store.watch.waker import Waker

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class BootWatch:
    """Listens to the master from the fork until ``end``. Until then the child has fetched nothing,
    so it may end at any line of the app's own code.

    ``quiet``: the child must fetch nothing when it is ready. ``held``: the classes whose jobs run
    alone.
    """

    def __init__(self, assignment: Assignment, term_fd: int, log: FilteringBoundLogger) -> None:
        self.orders: PipeReader[Order] = PipeReader(assignment.control, orders)
        self.quiet = assignment.quiet
        self.held: tuple[str, ...] = ()
        self._report = assignment.report
        self._term_fd = term_fd
        self._log = log
        self._end = Waker()
        self._thread = threading.Thread(target=self._run, name="boot", daemon=True)

    def start(self) -> None:
        """Starts the thread. Raises CannotBoot."""
        start_threads(self._thread.start)

    def end(self) -> None:
        """Ends the thread: from here on the child's main loop reads the orders."""
        self._end.wake()
        self._thread.join()

    def _run(self) -> None:
        poller = select.poll()  # select() cannot look at descriptors from 1024 on
        for fd in (self._end.fd, self._term_fd, self.orders.fd):
            poller.register(fd, select.POLLIN)
        while self._end.fd not in (ready := [fd for fd, _ in poller.poll()]):
            if self._term_fd in ready and signal.SIGTERM in os.read(self._term_fd, 4096):
                self._exit()
            for order in self.orders.read():
                self._obey(order)
            if self.orders.ended:
                self._log.error("the master is gone; stopping")
                self._exit()

    def _obey(self, order: Order) -> None:
        if isinstance(order, Stop):
            self._exit()
        elif isinstance(order, Quiet):
            self.quiet = True
        elif isinstance(order, HoldClasses):
            self.held = order.names
        elif isinstance(order, DumpStacks):
            dump_stacks((), self._log)

    def _exit(self) -> None:
        send(self._report, Exiting())
        exit_process(CLEAN)


def start_threads(start: Callable[[], None]) -> None:
    """Calls ``start``, which starts threads. Raises CannotBoot if the system gives no more."""
    try:
        start()
    except RuntimeError as error:
        raise CannotBoot(
            f"the system gives no more threads: {error}; lower the concurrency, or raise the limit "
            "(TasksMax= of systemd, pids of a container, ulimit -u)"
        ) from None
