"""The real loop of a clock, in a thread of the test's process, on pipes like a master's."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkq.clock.main import Clock
from forkq.config.config import Config, RedisSettings
from forkq.runtime.assignment import Assignment
from forkq.runtime.pipe import Fact, LeaseHeld, Order, PipeReader, Stop, facts, send

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

NOWHERE = Path("/nonexistent")


class InProcessClock:
    """Runs within a `with` block, and stops at its end."""

    def __init__(
        self, url: str, *, nonce: str = "0123456789ab", quiet: bool = False, **more: Any
    ) -> None:
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        os.set_blocking(
            report, False
        )  # as the master makes it: a full pipe must not block the clock
        self._term_read, self._term_write = os.pipe()
        self._ends = (
            control,
            self._control,
            self._report,
            report,
            self._term_read,
            self._term_write,
        )
        self._facts: PipeReader[Fact] = PipeReader(self._report, facts)
        self.received: list[Fact] = []
        self.code: int | None = None
        config = Config(pidfile=NOWHERE, state_dir=NOWHERE, redis=RedisSettings(url=url), **more)
        assignment = Assignment("clock", None, nonce, control, report, quiet)
        self._clock = Clock(config, assignment, self._term_read)
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

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

    def facts(self) -> list[Fact]:
        """All that it has reported so far."""
        self.received += self._facts.read()
        return self.received

    @property
    def leads_until(self) -> float:
        """The time that it has reported last; 0 if none."""
        self.received += self._facts.read()
        times = [fact.until for fact in self.received if isinstance(fact, LeaseHeld)]
        return times[-1] if times else 0.0

    def order(self, order: Order) -> None:
        """Sends an order, as the master does."""
        assert send(self._control, order)

    def stop(self) -> None:
        """Stops it, and waits until it has ended."""
        if self._thread.is_alive():
            self.order(Stop(0.0))
            self._thread.join(15)
        self.received += self._facts.read()
        assert not self._thread.is_alive(), "the clock does not stop"

    def _run(self) -> None:
        self.code = self._clock.run()
        self._clock._connection.close()  # as the end of its process would
