"""Small mode (``processes = "one"``): master, child and clock are threads of one process.

The main thread is the master's loop without what needs a second process: nothing is forked,
frozen, killed or rescued. The child and the clock are the same code as in a tree, behind the same
pipes, so orders and facts travel as they do there. docs/small-mode.md says what is lost,
docs/internals.md how a job and a signal travel.
"""

from __future__ import annotations

import faulthandler
import signal
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from .. import registry
from ..errors import CannotBoot, CannotStartYet, ForkqError
from ..runtime import log as process_log
from ..runtime.app_frames import app_traceback
from ..runtime.app_loader import is_lasting
from ..runtime.assignment import exit_process
from ..runtime.exit_codes import CLEAN, INTERNAL_ERROR, INTERRUPTED
from ..runtime.pipe import DumpStacks, RunSuspects, Stop
from .handover import FORMAT, MasterRecord, RestartReport, become
from .loop import Given, MasterProcess
from .spawn import ChildThread
from .stop import GRACE, HINTS

# All in seconds. The longest sleep of the loop, how long the clock may take to end, how long
# systemd waits for the import of the app.
_TICK: Final = 1.0
_CLOCK_LIMIT: Final = 1.0
_BOOT_LIMIT: Final = 300.0
# The loop may be late by a sleep or two on a busy host.
_SHORTEST_ALARM: Final = 3.0


class OneRestart(msgspec.Struct):
    """The restart of one process: its jobs end as at a stop, then it executes its command again.
    ``requested``: this program is to do so. The next one gets the ``report``."""

    report: RestartReport = msgspec.field(default_factory=RestartReport)
    requested: bool = False

    @property
    def under_way(self) -> bool:
        """From the request until the next program is ready."""
        return self.report.state == "replacing"


class OneProcess(MasterProcess):
    """Holds the threads together, from ``boot`` to the exit code of ``run``."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._fixed = given.fixed
        self._restart = OneRestart()
        self._stopping = self._runs_suspects = False

    def take_over(self, record: MasterRecord) -> None:
        """Takes over the state of the program before this one. Called before ``boot``."""
        self._restart.report, self._quiet = record.restart, record.quiet

    def boot(self) -> None:
        """Imports the app, in the main thread. Raises CannotBoot if the next try would fail, too,
        else CannotStartYet."""
        process_log.bound_job_lines(self._config.log.max_job_lines)
        self._notifier.going_blind(_BOOT_LIMIT)
        slot, clock_slot = self._children.slots
        try:
            self._child = ChildThread(self._config, slot, self._log, quiet=self._quiet)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the app may raise anything, SystemExit too
            reason = str(error) if isinstance(error, ForkqError) else app_traceback(error)
            kind = CannotBoot if is_lasting(error) else CannotStartYet
            raise kind(f"cannot boot: {reason}") from None
        self._warn_of_hard_timeouts()
        self._clock = ChildThread(self._config, clock_slot, self._log, quiet=self._quiet)
        self._notifier.back()

    def _warn_of_hard_timeouts(self) -> None:
        """Names the jobs whose definition asks for what this process cannot do."""
        specs = filter(None, map(registry.find, sorted(registry.with_time_limit)))
        if named := [spec.name for spec in specs if spec.options.get("hard_timeout")]:
            self._log.warning(
                "one process ends no job at its hard_timeout: it only logs that the job goes on",
                jobs=named,
            )

    def run(self) -> int:
        """Runs jobs until it is told to stop. Returns the exit code, with which the process must
        end at once: threads may still run jobs that ignored the stop."""
        self._start()
        while self._child_handle.told.exiting is None:
            self._children.wait(self._next_deadline())  # for a signal, a fact, a deadline
            self._obey(self._signals.read())
            self._children.read_facts()
            self._relay()
            if self._clock_handle.told.exiting is not None:  # it has failed, as its log line says
                self._child_handle.send(Stop(time.monotonic() + self._config.timeout))
            self._check_embedded_redis()
            self._display.measure(self._child_handle)
            self._show_state()
            self._set_alarm()
        return self._finish()

    def _obey(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            _ACTIONS.get(number, _ignored)(self)

    def _set_alarm(self) -> None:
        """Has the process end, with its stacks in standard error, if this loop does not come back
        within ``kill_silent_after``: a job holds the interpreter, which the alarm does not need."""
        if limit := self._config.kill_silent_after:
            faulthandler.dump_traceback_later(max(limit, _SHORTEST_ALARM), exit=True)

    def _start(self) -> None:
        self._signals.install()
        pidfile = str(self._pidfile.path)
        self._log.info("starting", processes="one", pidfile=pidfile)
        self._child_handle = self._child.start()
        self._clock_handle = self._clock.start()
        for handle in (self._child_handle, self._clock_handle):
            self._children.add(handle)

    def _relay(self) -> None:
        """Passes on what the clock has found. Suspects run alone, in the child itself."""
        self._held_class_relay.advance()
        self._leader_relay.advance(self._children.slots, self._children.by_pid)
        wait = bool(self._clock_handle.told.suspects)
        if wait != self._runs_suspects:
            self._runs_suspects = wait
            self._child_handle.send(RunSuspects(on=wait))

    def _show_state(self) -> None:
        restart = self._restart
        if restart.under_way and not restart.requested and self._children.slots.were_ready:
            restart.report.state = "done"
        self._display.show(
            self._restart,
            stopping=self._stopping,
            quiet=self._quiet,
            reported_at=self._fresh_counts.note_answers(),
        )

    def _next_deadline(self) -> float:
        tick = time.monotonic() + min(_TICK, self._notifier.watchdog or _TICK)
        return min(tick, self._display.due)

    def _finish(self) -> int:
        """Executes the next program, or returns the exit code. Called when the child has ended."""
        faulthandler.cancel_dump_traceback_later()
        has_ended = self._child.ended(_CLOCK_LIMIT)
        self._clock_handle.send(Stop(0.0))
        self._clock.ended(_CLOCK_LIMIT)
        code = self._child.code if has_ended else INTERNAL_ERROR
        if code != CLEAN:
            self._log.warning("jobs stay leased in redis; the next start gives them back")
        self._obey(self._signals.block())  # what comes now waits for the next program
        if self._restart.requested and not self._stopping:
            code = self._execute(code)
        else:
            code = CLEAN if self._stopping else INTERNAL_ERROR
        self._end(code)
        return code

    def _execute(self, code: int) -> int:
        """Executes the next program of this process. Returns only if it cannot: the exit code.
        While this process lives, no clock takes the leases that its child has left for those of a
        dead one. So with such leases it ends, and a service manager starts the next one."""
        reason = "jobs stay leased"
        if code == CLEAN:
            self._notifier.going_blind(_BOOT_LIMIT)
            report = self._restart.report
            record = MasterRecord(
                format=FORMAT, fixed=self._fixed, pidfile=self._pidfile.descriptor(), children=[],
                leader=0, quiet=self._quiet, restart=report, again=False,
            )  # fmt: skip
            process_log.flush()
            reason = become(record)
        self._log.error("cannot restart in this process; it ends", reason=reason)
        return INTERNAL_ERROR

    # What the signals do

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._log.info("stopping", waiting_at_most=self._config.timeout)
        self._notifier.stopping(self._config.timeout + GRACE + 2 * _CLOCK_LIMIT)
        self._child_handle.send(Stop(time.monotonic() + self._config.timeout))

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts in HINTS:
            self._stop()
            jobs, hint = self._child_handle.running, HINTS[self._interrupts]
            self._log.info("waiting for running jobs", jobs=jobs, hint=hint)
        else:
            self._log.warning("third interrupt: killing; the next start gives its jobs back")
            self._end(INTERRUPTED)
            exit_process(INTERRUPTED)

    def _begin_restart(self) -> None:
        if self._stopping or self._restart.requested:
            return
        self._log.info(
            "restart: running jobs end, or go back after the time-out; then the new code is loaded",
            at_most=self._config.timeout,
        )
        self._restart.requested = True
        self._restart.report = RestartReport(time.monotonic(), "replacing")
        self._notifier.reloading()
        self._child_handle.send(Stop(time.monotonic() + self._config.timeout))


def _ignored(_: OneProcess) -> None:
    """A signal that means nothing here."""


_ACTIONS: Final[dict[int, Callable[[OneProcess], None]]] = {
    signal.SIGTERM: OneProcess._stop,
    signal.SIGQUIT: OneProcess._stop,
    signal.SIGINT: OneProcess._interrupt,
    signal.SIGTSTP: OneProcess._go_quiet,
    signal.SIGTTIN: lambda one: one._children.send_all(DumpStacks()),
    signal.SIGUSR2: OneProcess._begin_restart,
    signal.SIGHUP: OneProcess._hang_up,
    signal.SIGURG: lambda one: one._fresh_counts.ask(),
}
