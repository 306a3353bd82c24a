"""A whole clock but for its process: the real loop in a thread, on the pipes of a master."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from forkq.clock.main import Clock
from forkq.config.config import Config, RedisSettings
from forkq.runtime.assignment import Assignment
from forkq.runtime.pipe import Fact, LeaseHeld, Order, Reader, Stop, facts, send

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

NOWHERE = Path("/nonexistent")


class InProcessClock:
    """Runs from `with` on; ends with it, as a stopped clock does."""

    def __init__(self, url: str, *, nonce: str = "0123456789ab", quiet: bool = False) -> None:
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        os.set_blocking(report, False)  # as the master makes it: nobody may be reading
        self._woken, self._wake = os.pipe()
        self._ends = (control, self._control, self._report, report, self._woken, self._wake)
        self._facts: Reader[Fact] = Reader(self._report, facts)
        self.heard: list[Fact] = []
        self.code: int | None = None
        config = Config(pidfile=NOWHERE, state_dir=NOWHERE, redis=RedisSettings(url=url))
        assignment = Assignment("clock", None, nonce, control, report, quiet)
        self._clock = Clock(config, assignment, self._woken)
        self._thread = threading.Thread(target=self._run, name="clockwork", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        for end in self._ends:
            os.close(end)

    @property
    def leads_until(self) -> float:
        """What it has last reported; 0 if nothing."""
        self.heard += self._facts.read()
        told = [fact.until for fact in self.heard if isinstance(fact, LeaseHeld)]
        return told[-1] if told else 0.0

    def order(self, order: Order) -> None:
        """As the master does."""
        assert send(self._control, order)

    def stop(self) -> None:
        """Stops it, and waits until it has ended."""
        if self._thread.is_alive():
            self.order(Stop(0.0))
            self._thread.join(15)
        self.heard += self._facts.read()
        assert not self._thread.is_alive(), "the clock does not stop"

    def _run(self) -> None:
        self.code = self._clock.run()
        self._clock._connection.close()  # which the end of a process does
