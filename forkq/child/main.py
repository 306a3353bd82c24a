"""A child: it loads the app, performs jobs until it is told to stop, and leaves nothing behind.

The main thread listens to the master and keeps time; it runs no job and never waits for Redis
while jobs run.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterable
from selectors import EVENT_READ, DefaultSelector
from typing import Final

from setproctitle import setproctitle

from .. import default_client, registry
from ..config.capsule import Capsule
from ..config.config import Config
from ..errors import ForkqError
from ..process_state import announce_stopping, note_served, set_leader_until
from ..runtime import log
from ..runtime.app_frames import app_traceback
from ..runtime.app_loader import is_lasting, load_app
from ..runtime.assignment import Assignment, install_signals
from ..runtime.exit_codes import CANNOT_BOOT, CLEAN, LEASES_LEFT
from ..runtime.pipe import (
    Beat,
    DumpStacks,
    Exiting,
    HoldClasses,
    Lead,
    Order,
    PipeReader,
    Quiet,
    Ready,
    RunSuspects,
    SendBeat,
    State,
    end_of,
    make_unbootable,
    send,
)
from ..runtime.stack_dump import dump_stacks
from ..runtime.unblocked_output import READER_LIMIT
from ..runtime.unserved import unserved
from ..wire.lease import UnitOfWork
from ..wire.printable import class_and_jid, shown_name
from . import debugger
from .alone import AloneRunner
from .boot import BootWatch, start_threads
from .build import AnyManager, Builder, Parts
from .event_loop import LoopState
from .lifecycle import Lifecycle

_LONGEST_WAIT: Final = 1.0
# While it stops, and until it knows whether Redis answers, which the master logs.
_SHORT_WAIT: Final = 0.02
# How long Redis may take for the last flush and the end of the record.
_LAST_FLUSH_LIMIT: Final = 1.0
# After its deadline and this time, a child that the master has not killed ends itself.
_GRACE: Final = 4.0
# How many jobs the line about the stop names.
_MOST_JOBS: Final = 10
# Bytes of why Redis is lost, for the status.
_LONGEST_REASON: Final = 300
# How many jobs the line about queues names that no capsule serves.
_MOST_QUEUES: Final = 10


def main(config: Config, assignment: Assignment) -> int:
    """Runs a child from the fork to its exit code."""
    term_fd = install_signals(assignment)
    setproctitle(f"forkq child {assignment.name} [booting]")
    log.bind(pid=os.getpid(), capsule=assignment.name)
    log.wait_for_reader(READER_LIMIT)
    log.bound_job_lines(config.log.max_job_lines)
    watch = BootWatch(assignment, term_fd, log.logger())
    try:
        watch.start()
        child = boot(config, assignment, term_fd, watch.orders)
    except ForkqError as error:
        send(assignment.report, make_unbootable(str(error), lasting=is_lasting(error)))
        return CANNOT_BOOT
    except BaseException as error:  # noqa: BLE001 - the app may raise anything, SystemExit too
        reason = app_traceback(error)
        send(assignment.report, make_unbootable(reason, lasting=is_lasting(error)))
        return CANNOT_BOOT
    watch.end()
    child.hold_classes(watch.held)
    return child.run(quiet=watch.quiet)


def boot(config: Config, assignment: Assignment, term_fd: int, orders: PipeReader[Order]) -> Child:
    """Loads the app, and makes and starts the child, which is to be ``run``. Raises what the app
    raises. Called in the main thread: the app may set up what only that may."""
    debugs = config.development.foreground
    if debugs:
        debugger.install()
    lifecycle = Lifecycle(log.logger(), watched=not debugs)  # at a prompt the loop stands still
    lifecycle.call("fork")
    default_client.serve(config)  # before the app, which may configure another address
    load_app(config.app)
    if not registry.names():
        log.logger().warning("the app has registered no job", app=list(config.app))
    assert assignment.capsule is not None
    if assignment.number <= 1 and assignment.capsule.name == config.capsules[0].name:
        _warn_of_unserved_queues(config)
    note_served(assignment.capsule.queue_names)
    child = Child(config, assignment, assignment.capsule, term_fd, orders, lifecycle)
    lifecycle.boot()
    log.respect_app(takeover=config.log.takeover)
    start_threads(child.start)
    if assignment.capsule.is_async:
        # Python's garbage collector looks through all objects again and again while thousands of
        # coroutines come and go. What the app has loaded stays for ever, and is left out.
        gc.collect()
        gc.freeze()
    return child


def _warn_of_unserved_queues(config: Config) -> None:
    """Warns of the queues of the app that no capsule serves. The first child of a tree does, and
    the canary that tries new code (its number is 0)."""
    found = [
        f"{shown_name(queue)!r} of {whose}{f' (did you mean {meant!r}?)' if meant else ''}"
        for queue, whose, meant in unserved(config)
    ]
    if found:
        log.logger().warning(
            "no capsule of this tree works on these queues: jobs wait until another tree does",
            queues=found[:_MOST_QUEUES],
            more=len(found[_MOST_QUEUES:]),
            served=config.queue_names,
        )


class Child:
    """The main loop of one child. ``term_fd``: readable when TERM was sent to this process."""

    def __init__(
        self,
        config: Config,
        assignment: Assignment,
        capsule: Capsule,
        term_fd: int,
        orders: PipeReader[Order],
        lifecycle: Lifecycle,
    ) -> None:
        self._assignment = assignment
        self._concurrency = capsule.concurrency
        self._term_fd = term_fd
        self._timeout = config.timeout
        self._beat_every = config.beat_every
        self._log = log.logger()
        self._orders = orders
        self._state: State = "running"
        self._deadline: float | None = None
        self._interrupted = False
        self._last_beat: Beat | None = None
        self._next_beat = 0.0
        self._asked_at = 0.0
        self._lifecycle = lifecycle
        self._held: set[str] = set()
        parts = self._build(config, assignment)
        self._alone = AloneRunner(
            parts.fetcher, lambda: self._build(config, assignment.for_suspects), self._log
        )
        self._parts = parts
        self._heartbeat = parts.heartbeat
        self._selector = DefaultSelector()
        self._selector.register(self._orders, EVENT_READ)
        self._selector.register(term_fd, EVENT_READ)
        self._selector.register(parts.limits.waker.fd, EVENT_READ)

    def _build(self, config: Config, assignment: Assignment) -> Parts:
        assert assignment.capsule is not None
        return Builder(
            config,
            assignment,
            assignment.capsule,
            self._log,
            on_order=self._obey_web_ui,
            is_quiet=lambda: self._state != "running",
            held=self._held,
            loop=self._lifecycle.loop,
        ).build()

    @property
    def _all_parts(self) -> list[Parts]:
        """The parts of this child, and the parts with which it runs suspects, if it does."""
        return [self._parts] if self._alone.parts is None else [self._parts, self._alone.parts]

    @property
    def _in_flight(self) -> list[UnitOfWork]:
        return [unit for parts in self._all_parts for unit in parts.leases.units().values()]

    @property
    def _managers(self) -> list[AnyManager]:
        return [parts.manager for parts in self._all_parts]

    def start(self) -> None:
        """Starts all threads. They do nothing in Redis before ``run``: a child that is short of
        threads, or is told to end meanwhile, leaves no lease, record or count. Raises
        RuntimeError."""
        log.begin_batching()
        self._heartbeat.start()
        self._parts.manager.start()

    def hold_classes(self, names: Iterable[str]) -> None:
        """Makes the jobs of these classes run alone from now on. Processors read the set
        meanwhile."""
        found = set(names)
        self._held |= found
        self._held &= found

    def run(self, *, quiet: bool) -> int:
        """Performs jobs until the master, a signal or the master's death ends it."""
        if quiet:
            self._go_quiet("quiet")
        # Ready is sent before a job can end this process, and before the ends of earlier children
        # are counted: a child that dies without it has counted none, so the next one does.
        send(self._assignment.report, Ready(self._assignment.identity))
        self._report_state()
        self._heartbeat.open()
        self._parts.manager.open()
        while not self._is_over():
            self._listen()
            self._enforce()
            self._report_state()
            log.report_dropped_lines()
        return self._finish()

    def _is_over(self) -> bool:
        return self._state in ("stopping", "retiring") and (
            all(manager.idle for manager in self._managers) or self._is_past_grace()
        )

    def _is_past_grace(self) -> bool:
        """Whether jobs ignore the stop, and the master has not killed this child."""
        return self._deadline is not None and time.monotonic() > self._deadline + _GRACE

    def _listen(self) -> None:
        """Waits for an order or a signal, not for long, and obeys."""
        longest = min(_LONGEST_WAIT, self._beat_every)
        is_settled = self._state in ("running", "quiet") and self._knows_redis
        pause = longest if is_settled else _SHORT_WAIT
        limits = {parts.limits.waker.fd: parts.limits for parts in self._all_parts}
        pause = min(limit.wait(pause) for limit in limits.values())
        for key, _ in self._selector.select(pause):
            if key.fd == self._term_fd:
                self._obey_term()
            elif key.fd in limits:
                limits[key.fd].waker.clear()
            else:
                for order in self._orders.read():
                    self._obey(order)
                if self._orders.ended:
                    self._stop_without_master()

    @property
    def _knows_redis(self) -> bool:
        """Whether Redis has answered, or is known to be lost."""
        return bool(self._heartbeat.redis_at or self._heartbeat.redis_lost)

    def _obey(self, order: Order) -> None:
        if isinstance(order, Quiet):
            self._go_quiet("quiet")
        elif isinstance(order, DumpStacks):
            self._dump_stacks()
        elif isinstance(order, Lead):
            self._lead(order.until)
        elif isinstance(order, SendBeat):
            self._asked_at = order.asked_at
        elif isinstance(order, RunSuspects):
            self._run_suspects(on=order.on)
        elif isinstance(order, HoldClasses):
            self.hold_classes(order.names)
        elif order.deadline is None:
            self._go_quiet("retiring")
        else:
            self._stop(order.deadline)

    def _dump_stacks(self) -> None:
        dump_stacks(self._in_flight, self._log, LoopState(self._lifecycle.loop).stacks())

    def _lead(self, until: float) -> None:
        if set_leader_until(until):
            self._lifecycle.won()

    def _run_suspects(self, *, on: bool) -> None:
        if self._state == "running":
            before = self._alone.parts
            self._alone.order(on=on)
            if self._alone.parts is not before:
                self._selector.register(self._all_parts[-1].limits.waker.fd, EVENT_READ)

    def _obey_term(self) -> None:
        if signal.SIGTERM in os.read(self._term_fd, 4096):
            self._stop(time.monotonic() + self._timeout)

    def _obey_web_ui(self, name: str) -> None:
        """Passes on the order of a web UI or a command, which the heartbeat has found, as the
        signal that it names."""
        self._log.info("order from a web UI or a command", signal=name)
        if name == "TERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif name == "TSTP":
            self._go_quiet("quiet")
        elif name == "TTIN":
            self._dump_stacks()

    def _stop_without_master(self) -> None:
        self._selector.unregister(self._orders)
        self._log.error("the master is gone; stopping")
        self._stop(time.monotonic() + self._timeout)

    def _go_quiet(self, state: State) -> None:
        first = self._state == "running"
        if self._state != "stopping":  # nothing comes after a stop
            self._state = state
        if first:
            log.end_batching()
            announce_stopping()
            for parts in self._all_parts:
                parts.manager.quiet()
                parts.heartbeat.soon()
            self._lifecycle.call("quiet")

    def _stop(self, deadline: float) -> None:
        """Makes the child quiet; jobs that still run at ``deadline`` are interrupted. Of several
        deadlines the earliest counts."""
        if self._deadline is not None:
            self._deadline = min(self._deadline, deadline)
            return
        self._deadline = deadline
        self._go_quiet("stopping")
        units = [unit for unit in self._in_flight if unit.thread]
        if running := [class_and_jid(unit.payload) for unit in units]:
            self._log.info("the stop waits for these jobs", running=running[:_MOST_JOBS])
        self._lifecycle.call("shutdown")

    def _enforce(self) -> None:
        self._alone.advance()
        for parts in self._all_parts:
            parts.manager.replace_the_dead()
            parts.limits.enforce()
        late = self._deadline is not None and time.monotonic() >= self._deadline
        if late and not self._interrupted:
            self._interrupted = True
            count = sum(manager.interrupt() for manager in self._managers)
            if count:
                self._log.warning("deadline reached; jobs interrupted", jobs=count)

    def _report_state(self) -> None:
        """Sends a Beat to the master and sets the process title: when the state has changed, and
        often enough for the master to know that this loop runs."""
        managers, retiring = self._managers, self._state == "retiring"
        begun = self._parts.limits.last_begun()
        busy = sum(one.unfinished if retiring else one.busy for one in managers)
        counts, redis_at = self._parts.manager.counts(), self._heartbeat.redis_at
        lost = end_of(self._heartbeat.redis_lost, _LONGEST_REASON)
        refused, gets_jobs = self._heartbeat.refused, self._heartbeat.gets_jobs
        asked_at = self._asked_at
        long_at = max(parts.runs.long_at for parts in self._all_parts)
        beat = Beat(
            *(busy, self._state, *counts, redis_at, asked_at, lost, begun, refused, gets_jobs),
            long_at=long_at,
            wants_sole=self._parts.runs.wants_sole,
        )
        if beat == self._last_beat and time.monotonic() < self._next_beat:
            return
        if not send(self._assignment.report, beat):
            return
        self._last_beat, self._next_beat = beat, time.monotonic() + self._beat_every
        if self._assignment.in_master:  # the title is the master's
            return
        running = f"{busy} of {self._concurrency} busy"
        note = running if self._state == "running" else f"{running}, {self._state}"
        setproctitle(f"forkq child {self._assignment.name} [{note}]")

    def _finish(self) -> int:
        """Returns leases, writes the counters, removes the record. Returns the exit code."""
        if not all(manager.idle for manager in self._managers):
            busy = sum(manager.busy for manager in self._managers)
            reason = "jobs ignored the stop" if busy else "processors did not end"
            self._log.error(f"{reason}; leaving the rest to the rescue", jobs=busy)
            send(self._assignment.report, Exiting(self._leases))
            return LEASES_LEFT
        returned = [parts.fetcher.give_back() for parts in self._all_parts]
        self._report_state()  # if the last flush fails, the master adds these counts
        until = time.monotonic() + _LAST_FLUSH_LIMIT
        heartbeats = [parts.heartbeat for parts in self._all_parts]
        flushed = [
            heartbeat.stop(until, gone=gone)
            for heartbeat, gone in zip(heartbeats, returned, strict=True)
        ]
        self._lifecycle.exit(self._time_left)
        send(self._assignment.report, Exiting(self._leases))
        return CLEAN if all(returned) and all(flushed) else LEASES_LEFT

    @property
    def _time_left(self) -> float:
        """Seconds until the deadline of the stop, at least those of the last flush."""
        left = self._timeout if self._deadline is None else self._deadline - time.monotonic()
        return max(_LAST_FLUSH_LIMIT, left)

    @property
    def _leases(self) -> int:
        """How many leases Redis has of this child, as far as it knows."""
        return sum(len(parts.leases.sequences()) for parts in self._all_parts)
