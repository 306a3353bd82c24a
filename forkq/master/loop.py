"""The master: one thread, one loop, which keeps the children alive. It runs no jobs.

The loop waits in three calls. ``Children.wait`` sleeps until a signal, a fact, a death or a
deadline wakes it. ``Rescue.advance`` and ``StopSequence.advance`` wait for Redis: each turn for one
connect or one answer at most, and each step of those ends at ``rescue.TIMEOUT``. A host name in the
URL is looked up in the resolver's own time. In a turn the memory of one child may be measured
(``MemoryMeter``), for which the kernel takes up to a tenth of a second. After the loop ``_finish``
waits for the last rescue, and for the end of the embedded server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ..config.config import Config
from ..runtime.exit_codes import CANNOT_BOOT, CANNOT_BOOT_YET, CLEAN, INTERRUPTED
from ..runtime.pipe import DumpStacks, Quiet
from .children import Children
from .embedded_redis import EmbeddedRedis
from .handover import Fixed, MasterRecord
from .hard_limits import HardLimits
from .health import Health, RuleTable
from .isolation import Isolation
from .pidfile import Pidfile
from .recycling import (
    FarTooLarge,
    TooLarge,
    TooManyJobs,
    TooOld,
    Undrained,
    warn_without_memory,
)
from .relays import FreshCounts, HeldClassRelay, LeaderRelay
from .replacement import Removals, Replacements
from .rescue import Rescue
from .restart import Reload, Restart, Succession
from .signals import Signals, ignore
from .slot import Slots
from .status_file import Conditions, Display
from .stop import GRACE, HINTS, StopSequence
from .systemd import SystemdNotifier
from .unresponsive import Garbled, Stuck, Unhealthy

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that a stopping master waits for Redis to take the last jobs back.
_LAST_RESCUE: Final = 1.0
# It gives that up so many seconds before the last process must be gone.
_EXIT_RESERVE: Final = 1.25
_TICK: Final = 1.0


class Given(msgspec.Struct, frozen=True):
    """What a master is given: ``embedded`` is the server that it runs itself, ``fixed`` what its
    next program needs to be the same tree."""

    config: Config
    pidfile: Pidfile
    rescue: Rescue
    notifier: SystemdNotifier
    embedded: EmbeddedRedis | None
    fixed: Fixed
    log: FilteringBoundLogger


class MasterProcess:
    """What the master of a tree and the one process of small mode have alike: what they are given,
    what they pass on and show, and how they end."""

    def __init__(self, given: Given) -> None:
        self._config = config = given.config
        self._pidfile = given.pidfile
        self._rescue = given.rescue
        self._notifier = given.notifier
        self._embedded = given.embedded
        self._log = log = given.log
        self._signals = Signals()
        self._children = Children(config, given.rescue, self._signals, self._descriptors, log)
        self._conditions = Conditions.begin(config.silent_after)
        self._display = Display(config, self._children, self._conditions, given.notifier, log)
        self._fresh_counts = FreshCounts(self._children)
        self._held_class_relay = HeldClassRelay(self._children)
        self._leader_relay = LeaderRelay()
        self._quiet = False
        self._interrupts = 0

    def _descriptors(self) -> list[int]:
        """What a new child must close, besides the descriptors that ``Children`` knows."""
        return [
            *self._signals.descriptors(),
            self._pidfile.descriptor(),
            *self._rescue.descriptors(),
            *self._notifier.descriptors(),
        ]

    def _check_embedded_redis(self) -> None:
        if self._embedded is not None:
            self._embedded.check()

    def _end(self, exit_code: int) -> None:
        """Removes what is this process's own, when nothing runs any more."""
        if self._embedded is not None:
            self._log.info("stopping the embedded server, last of all")
            self._embedded.stop()
        self._display.remove()
        self._pidfile.release()
        self._log.info("stopped", exit_code=exit_code)
        ignore()

    def _go_quiet(self) -> None:
        self._log.info("quiet: no new jobs; running ones go on until the stop")
        self._quiet = True
        self._children.send_all(Quiet())

    def _hang_up(self) -> None:
        self._log.info("hangup: logs go to standard error, so there is no file to reopen")


class Master(MasterProcess):
    """Holds the tree together from ``run`` to its exit code."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        config, rescue, fixed, log = given.config, given.rescue, given.fixed, given.log
        children, silence = self._children, self._conditions.silence
        self._replacements = replacements = Replacements(children, silence.has, log)
        self._removals = Removals(children, rescue, log)
        table = health_table(config, children.slots, self._conditions, replacements)
        self._health = Health(table, children, replacements, self._removals, log)
        self._stop_sequence = StopSequence(children, self._removals, rescue, log)
        self._restart = Restart(children, replacements, fixed, self._hand_over, log)
        self._reload = Reload(children, replacements, log)
        self._isolation = Isolation(config.capsules, children, silence.has)
        self._succession = Succession(
            *(fixed, given.pidfile, children, silence),
            *(self._leader_relay, self._signals, given.notifier),
        )
        self._exit_code = CLEAN

    def run(self) -> int:
        """Forks the children and keeps them alive until told to stop. Returns the exit code."""
        self._start()
        while self._children.by_pid or not self._stop_sequence.begun:
            self._children.wait(self._next_deadline())  # for a signal, a fact, a death, a deadline
            self._obey(self._signals.read())
            self._children.read_facts()  # what the children and the clock have sent
            self._removals.advance()  # of children that must go: requeue, kill
            self._children.reap()  # the dead: empties their slots, opens their rescues
            self._health.check(stopping=self._stop_sequence.begun, quiet=self._quiet)  # the rules
            self._stop_sequence.advance()  # after the deadline: removes all children
            self._fill_slots()  # before the rescue: new children boot meanwhile
            self._held_class_relay.advance()  # before the new children fetch
            self._rescue.advance()  # returns the jobs of dead children to their queues
            self._children.deaths.log()  # after the rescue, so that no line delays it
            self._leader_relay.advance(self._children.slots, self._children.by_pid)
            self._check_embedded_redis()
            self._show_state()
        self._finish()
        return self._exit_code

    def _start(self) -> None:
        self._signals.install()
        names, pidfile = [slot.name for slot in self._children.slots], str(self._pidfile.path)
        self._log.info("starting", children=names, pidfile=pidfile)
        warn_without_memory(self._children.slots, self._log)
        self._children.fill_slots()

    def _obey(self, numbers: list[int]) -> None:
        for number in numbers:
            action = _ACTIONS.get(number)
            if action is not None:
                action(self)

    def _fill_slots(self) -> None:
        """Replaces children, the dead ones too; runs suspects alone; gives up on a failed boot."""
        if self._stop_sequence.begun:
            return
        if self._children.slots.boot_failure is not None:
            self._children.deaths.log(wait=0.0)  # the traceback first
            self._log.error("cannot boot; giving up", **self._children.slots.boot_failure)
            lasting = self._children.slots.cannot_ever_boot
            self._exit_code = CANNOT_BOOT if lasting else CANNOT_BOOT_YET
            self._stop()
            return
        self._reload.advance(quiet=self._quiet)
        self._restart.advance(quiet=self._quiet)
        self._replacements.advance(quiet=self._quiet)
        self._children.fill_slots(quiet=self._quiet)
        self._isolation.advance(quiet=self._quiet)

    def _show_state(self) -> None:
        self._display.show(
            self._restart,
            stopping=self._stop_sequence.begun,
            quiet=self._quiet,
            reported_at=self._fresh_counts.note_answers(),
        )

    def _rescue_last_jobs(self) -> None:
        limit = min(time.monotonic() + _LAST_RESCUE, self._stop_sequence.latest - _EXIT_RESERVE)
        self._rescue.limit_waits(limit)
        while not self._rescue.advance() and time.monotonic() < limit:
            self._children.wait(min(limit, self._rescue.due or limit))

    def _finish(self) -> None:
        """Returns the last jobs to their queues, and removes the master's own files."""
        self._rescue_last_jobs()
        self._children.deaths.log(wait=0.0)
        if self._rescue.due is not None and (leases := self._rescue.leases):
            self._log.warning(
                "jobs stay leased in redis; the next start gives them back", jobs=leases
            )
        elif self._rescue.due is not None:
            self._log.warning("redis did not take the last counts; no job is known to stay leased")
        self._end(self._exit_code)

    # What the signals do

    def _stop(self) -> None:
        if not self._stop_sequence.begun:
            self._notifier.stopping(self._config.timeout + GRACE + 2 * _LAST_RESCUE)
            self._stop_sequence.begin(self._config.timeout)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts in HINTS:
            self._stop()
            self._stop_sequence.interrupted(self._interrupts)
        else:
            self._log.warning("third interrupt: killing; the next start gives its jobs back")
            self._exit_code = self._exit_code or INTERRUPTED
            self._rescue.abandon()
            self._children.kill_all()

    def _dump_stacks(self) -> None:
        """Orders each child to log its stacks. A silent one may not read orders, and gets a
        signal."""
        for child in self._children:
            child.send(DumpStacks())
            if self._conditions.silence.has(child):
                child.signal_stacks()

    def _begin_restart(self) -> None:
        if self._stop_sequence.begun:
            self._log.info("no rolling restart: the tree is stopping")
            return
        for slot in self._children.slots:
            slot.due = 0.0  # there may be new code that boots
        if self._restart.request():
            self._notifier.reloading()

    def _hand_over(self) -> str:
        """Executes the master's next program. Returns only if that fails, with the reason; with ""
        if the master must return jobs to their queues or obey a signal first."""
        if any(x is not None for x in (self._rescue.due, self._removals.due, *self._replacements)):
            return ""
        numbers, reason = self._succession.execute(self._restart, quiet=self._quiet)
        self._obey(numbers)
        return reason

    def take_over(self, record: MasterRecord) -> None:
        """Takes over children and state of the program before this one. Called before ``run``."""
        self._succession.take_over(record, self._restart)
        self._isolation.begin_anew()
        self._display.inherit()
        self._quiet = record.quiet

    def _next_deadline(self) -> float:
        """When the loop must go round, even if nothing happens (monotonic)."""
        moments = [
            time.monotonic() + min(_TICK, self._notifier.watchdog or _TICK),
            self._stop_sequence.due,
            self._removals.due,
            self._rescue.due,
            self._display.due,
            self._health.due(stopping=self._stop_sequence.begun),
            self._restart.due,
        ]
        if not self._stop_sequence.begun:
            moments += [self._children.slots.due, self._isolation.due]
        return min(moment for moment in moments if moment is not None)


def health_table(
    config: Config,
    slots: Slots,
    conditions: Conditions,
    replacements: Replacements,
) -> RuleTable:
    """The rules about living children. Each may have its child replaced, removed or killed."""
    silence, cut_off, meter = conditions
    return RuleTable(
        always=(Stuck(config.boot_timeout), silence),
        until_stop=(
            Garbled(slots),
            HardLimits(config.timeout, replacements),
            cut_off,
            Unhealthy(config, silence, cut_off, replacements),
            FarTooLarge(meter),
            Undrained(),
        ),
        until_quiet=(
            TooManyJobs(meter, replacements),
            TooOld(meter, replacements),
            TooLarge(meter, replacements),
        ),
    )


_ACTIONS: Final[dict[int, Callable[[Master], None]]] = {
    signal.SIGTERM: Master._stop,
    signal.SIGQUIT: Master._stop,
    signal.SIGINT: Master._interrupt,
    signal.SIGTSTP: Master._go_quiet,
    signal.SIGTTIN: Master._dump_stacks,
    signal.SIGUSR1: lambda master: master._reload.request(),
    signal.SIGUSR2: Master._begin_restart,
    signal.SIGHUP: Master._hang_up,
    signal.SIGURG: lambda master: master._fresh_counts.ask(),
}
