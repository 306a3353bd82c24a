"""The processors of a child, as one: start, quiet, interrupt, and are they done yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from .fetcher import Fetcher
from .processor import Processor
from .stats import Totals, total


class Manager:
    """Owned by the child's main thread."""

    def __init__(
        self, concurrency: int, fetcher: Fetcher, hire: Callable[[str], Processor], log: Any
    ) -> None:
        self._fetcher = fetcher
        self._hire = hire
        self._log = log
        self._number = count()
        self._processors = [self._new() for _ in range(concurrency)]
        self._gate = threading.Event()
        self._quiet = False

    def start(self) -> None:
        """Starts all processors; they wait for ``open``. Raises RuntimeError if the system has no
        thread left."""
        for processor in self._processors:
            processor.start(self._gate)

    def open(self) -> None:
        """The processors take jobs from now on."""
        self._gate.set()

    def quiet(self) -> None:
        """No processor takes another job."""
        self._quiet = True
        self._fetcher.quiet()

    def interrupt(self) -> int:
        """Raises Shutdown in every job that still runs. Returns in how many."""
        return sum(processor.region.interrupt() for processor in self._processors)

    @property
    def idle(self) -> bool:
        """Whether every processor has ended."""
        return not any(processor.alive for processor in self._processors)

    @property
    def busy(self) -> int:
        """How many processors perform a job now."""
        return sum(1 for unit in self._fetcher.in_flight() if unit.thread)

    def counts(self) -> tuple[int, int]:
        """How many jobs were processed, and how many of them failed."""
        tallies = [processor.tally for processor in self._processors]
        return sum(tally.processed for tally in tallies), sum(tally.failed for tally in tallies)

    def tally(self, ran_twice: int = 0) -> Totals:
        """What all processors have done, class by class."""
        return total([processor.tally for processor in self._processors], ran_twice)

    def replace_the_dead(self) -> None:
        """A processor whose thread died makes room for a new one; its job goes back."""
        if self._quiet:
            return
        for place, processor in enumerate(self._processors):
            if not processor.alive:
                if processor.ident:  # else it is an heir that could not be started
                    self._log.error("a processor died; replaced", processor=place)
                    self._fetcher.abandon(processor.ident)
                heir = self._new()
                heir.tally = processor.tally  # goes on with its books: nothing counts twice or less
                self._processors[place] = heir
                self._start(heir)

    def _start(self, heir: Processor) -> None:
        """Starts a replacement, or leaves that to the next look: the others must go on."""
        try:
            heir.start(self._gate)
        except RuntimeError as error:
            self._log.error("a processor cannot be started; trying again", error=str(error))

    def _new(self) -> Processor:
        return self._hire(f"processor-{next(self._number)}")
