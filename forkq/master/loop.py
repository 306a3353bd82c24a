"""The master: one thread, one loop. It looks after its children and does nothing else.

It never blocks: it sleeps in the selector until a signal, a fact, a death or a deadline wakes it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from setproctitle import setproctitle

from ..config.config import Config
from ..runtime.exit_codes import CANNOT_BOOT, CLEAN
from ..runtime.log import catch_up
from ..runtime.pipe import Quiet
from .children import Children
from .embedded_redis import EmbeddedRedis
from .inspection import Inspection
from .leader_relay import Leadership
from .pidfile import TITLE, Pidfile
from .rescue import Rescue
from .rolling_restart import Rolling
from .signals import Signals, ignore
from .status_file import StatusFile
from .stop import GRACE, StopSequence
from .systemd import SystemdNotifier
from .watchdog import Watchdog

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How long a stopping master waits for Redis to take the last jobs back.
_LAST_RESCUE: Final = 1.0
# And how long before its last moment it gives that up, to end in time.
_EXIT: Final = 1.25
_KILLS_AT_ONCE: Final = 3  # the third Ctrl-C
_TICK: Final = 1.0


class Master:
    """Holds the tree together from ``run`` to its exit code."""

    def __init__(
        self,
        config: Config,
        pidfile: Pidfile,
        rescue: Rescue,
        notifier: SystemdNotifier,
        embedded: EmbeddedRedis | None,
        log: FilteringBoundLogger,
    ) -> None:
        self._config = config
        self._pidfile = pidfile
        self._rescue = rescue
        self._notifier = notifier
        self._embedded = embedded
        self._log = log
        self._signals = Signals()
        self._children = Children(config, rescue, self._signals, self._descriptors, log)
        self._stopping = StopSequence(self._children, rescue, log)
        self._rolling = Rolling(self._children, log)
        self._inspection = Inspection(self._children, config.boot_timeout, log)
        self._leadership = Leadership()
        self._watchdog = Watchdog(self._children.children, config.silent_after, log)
        self._status = StatusFile(config, log)
        self._ready = False
        self._quiet = False
        self._interrupts = 0
        self._exit_code = CLEAN

    def run(self) -> int:
        """Forks the children and keeps them alive until told to stop. Returns the exit code."""
        self._begin()
        while self._children.children or not self._stopping.begun:
            self._children.wait(self._next_deadline())
            self._obey_signals()
            self._children.hear()
            self._children.reap()
            self._inspection.enforce()
            self._watchdog.look()
            self._stopping.enforce()
            self._respawn()  # first: it boots while its predecessor's jobs go back
            self._rescue.work()
            self._children.tell_deaths()
            self._leadership.go_on(self._children.slots, self._children.children)
            self._show()
        self._end()
        return self._exit_code

    def _begin(self) -> None:
        self._signals.install()
        names = [slot.name for slot in self._children.slots]
        self._log.info("starting", children=names, pidfile=str(self._pidfile.path))
        self._children.fill()

    def _obey_signals(self) -> None:
        """Handlers enqueue, the loop decides: here is what each signal means."""
        for number in self._signals.read():
            action = _ACTIONS.get(number)
            if action is not None:
                action(self)

    def _respawn(self) -> None:
        """Fills the free places, goes on with a rolling restart, gives up on what cannot boot."""
        if self._stopping.begun:
            return
        if self._children.boot_failure is not None:
            self._log.error("cannot boot; giving up", **self._children.boot_failure)
            self._exit_code = CANNOT_BOOT
            self._stop()
            return
        self._children.fill(quiet=self._quiet)
        self._rolling.go_on(quiet=self._quiet)

    def _show(self) -> None:
        """Tells how we stand: process title, systemd, status file."""
        summary = f"{self._children.summary()}{self._note()}"
        tag = f"[{self._config.tag}] " if self._config.tag else ""
        setproctitle(f"{TITLE} {tag}{summary}")
        self._notifier.ping()
        if self._children.was_ready and not self._rolling.under_way and not self._stopping.begun:
            self._announce(summary)
        self._notifier.status(summary)
        self._status.write(self._state(), self._children.children.values(), ready=self._works())
        if self._embedded is not None:
            self._embedded.check()
        catch_up()

    def _announce(self, summary: str) -> None:
        if not self._ready:
            self._ready = True
            self._log.info("ready", children=len(self._children.slots))
        self._notifier.ready(summary)

    def _end(self) -> None:
        """Nothing is left running: the last jobs go back, then our own traces go."""
        limit = min(time.monotonic() + _LAST_RESCUE, self._stopping.latest - _EXIT)
        self._rescue.hurry(limit)
        while not self._rescue.work() and time.monotonic() < limit:
            self._children.wait(min(limit, self._rescue.due or limit))
        if self._embedded is not None:
            self._log.info("stopping the embedded server, last of all")
            self._embedded.stop()
        if self._rescue.due is not None:
            self._log.warning("jobs stay leased in redis; the next start gives them back")
        self._status.remove()
        self._pidfile.release()
        self._log.info("stopped", exit_code=self._exit_code)
        ignore()

    # What the signals do

    def _stop(self) -> None:
        if self._stopping.begun:
            return
        self._notifier.stopping(self._config.timeout + GRACE + 2 * _LAST_RESCUE)
        self._stopping.begin(self._config.timeout)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts < _KILLS_AT_ONCE:
            self._stop()
        else:
            self._log.warning("third interrupt: killing; jobs in flight keep their leases")
            self._rescue.resign()
            self._children.kill()

    def _go_quiet(self) -> None:
        self._log.info("quiet: no new jobs; running ones go on until the stop")
        self._quiet = True
        self._children.order(Quiet())

    def _dump_stacks(self) -> None:
        for child in self._children.children.values():
            child.dump_stacks()

    def _restart(self) -> None:
        if self._stopping.begun:
            self._log.info("no rolling restart: the tree is stopping")
            return
        self._children.fill_now()
        if self._rolling.begin():
            self._notifier.reloading()

    def _hang_up(self) -> None:
        self._log.info("hangup: logs go to standard error, so there is no file to reopen")

    # How we stand

    def _next_deadline(self) -> float:
        """When the loop must look again, though nothing happens (monotonic)."""
        moments = [
            time.monotonic() + min(_TICK, self._notifier.watchdog or _TICK),
            self._stopping.due,
            self._rescue.due,
            self._status.due,
            self._inspection.due,
            None if self._stopping.begun else self._children.due,
        ]
        return min(moment for moment in moments if moment is not None)

    def _works(self) -> bool:
        """Whether every place is filled with a child that takes jobs, as far as we know."""
        if self._quiet or self._stopping.begun or not self._children.all_ready:
            return False
        return not self._children.silent

    def _state(self) -> str:
        if self._stopping.begun:
            return "stopping"
        if self._quiet:
            return "quiet"
        if self._children.degraded:
            return "degraded"
        return "running" if self._ready else "booting"

    def _note(self) -> str:
        state = self._state()
        if state == "degraded":
            return f" (degraded: {', '.join(self._children.degraded)} cannot boot)"
        return "" if state == "running" else f" ({state})"

    def _descriptors(self) -> list[int]:
        """Ours alone: what a new child must close, besides what the family knows of."""
        return [
            *self._signals.descriptors(),
            self._pidfile.descriptor(),
            *self._rescue.descriptors(),
            *self._notifier.descriptors(),
        ]


_ACTIONS: Final[dict[int, Callable[[Master], None]]] = {
    signal.SIGTERM: Master._stop,
    signal.SIGINT: Master._interrupt,
    signal.SIGTSTP: Master._go_quiet,
    signal.SIGTTIN: Master._dump_stacks,
    signal.SIGUSR2: Master._restart,
    signal.SIGHUP: Master._hang_up,
}
