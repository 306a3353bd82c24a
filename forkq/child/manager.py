"""The processors of a child: starts, quiets, interrupts and replaces them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from ..wire.lease import UnitOfWork
from .fetch_turn import FetchParts, UnitSource
from .heartbeat.stats import Tally, Totals, total
from .interrupt import InterruptRegion
from .processor import Processor

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Manager:
    """Used by the child's main thread."""

    def __init__(
        self,
        concurrency: int,
        fetch: FetchParts,
        make_processor: Callable[[str, Tally], Processor],
        log: FilteringBoundLogger,
        source: UnitSource | None = None,
    ) -> None:
        self._source: UnitSource = fetch.turn if source is None else source
        self._fetcher = fetch.fetcher
        self._leases = fetch.leases
        self._make_processor = make_processor
        self._log = log
        self._names = (f"processor-{number}" for number in count())
        self.tallies = [Tally() for _ in range(concurrency)]  # the counts of each processor
        self._processors = [self._new(tally) for tally in self.tallies]
        self._gate = threading.Event()
        self._quiet = False

    def start(self) -> None:
        """Starts all processors; they wait for ``open``. Raises RuntimeError if the system has no
        thread left."""
        for processor in self._processors:
            processor.start(self._gate)

    def open(self) -> None:
        """Lets the processors take jobs from now on."""
        self._gate.set()

    def quiet(self) -> None:
        """Lets no processor take another job."""
        self._quiet = True
        self._fetcher.quiet()

    def interrupt(self) -> int:
        """Raises Shutdown in every job that still runs. Returns how many there are."""
        return sum(processor.region.interrupt() for processor in self._processors)

    def lose(self, unit: UnitOfWork) -> None:
        """Ends the coroutine of ``unit``, if it is one: another host has the job."""
        for processor in self._processors:
            processor.region.lose(unit)

    @property
    def idle(self) -> bool:
        """Whether every processor has ended."""
        return not any(processor.alive for processor in self._processors)

    @property
    def busy(self) -> int:
        """How many processors perform a job now."""
        return sum(1 for unit in self._leases.units().values() if unit.thread)

    @property
    def unfinished(self) -> int:
        """How many processors perform a job, and one more while Redis has leases of jobs that are
        done: if this process ended now, they would run again."""
        return self.busy + self._fetcher.owes

    @property
    def regions(self) -> list[InterruptRegion]:
        """The region of each processor."""
        return [processor.region for processor in self._processors]

    def counts(self) -> tuple[int, int]:
        """How many jobs were processed, and how many of them failed."""
        tallies = self.tallies
        return sum(tally.processed for tally in tallies), sum(tally.failed for tally in tallies)

    def tally(
        self,
        ran_twice: Mapping[str, int] | None = None,
        ended: Mapping[str, int] | None = None,
    ) -> Totals:
        """The counts of all processors, by class."""
        return total(self.tallies, ran_twice, ended)

    def replace_the_dead(self) -> None:
        """Replaces processors with a dead thread; their jobs go back. All the dead are abandoned
        before the first replacement can fetch."""
        dead = [number for number, one in enumerate(self._processors) if not one.alive]
        for number in dead:
            if self._processors[number].has_died:  # else its thread could not be started
                self._source.abandon(self._processors[number].hand)
        if self._quiet:
            return
        for number in dead:
            self._replace(number)

    def _replace(self, number: int) -> None:
        """Starts a replacement. If the system has no thread left, the next call tries again. If the
        app raises an exception in the new thread before that has begun, ``start`` never returns:
        the master finds this child silent, and replaces it."""
        dead = self._processors[number]
        replacement = self._new(dead.tally)  # its counts go on
        if dead.has_died:
            self._log.error("a processor died; replaced", processor=number)
        self._processors[number] = replacement
        try:
            replacement.start(self._gate)
        except RuntimeError as error:
            self._log.error("a processor cannot be started; trying again", error=str(error))

    def _new(self, tally: Tally) -> Processor:
        return self._make_processor(next(self._names), tally)
