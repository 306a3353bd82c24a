"""Tells the log when too many parked jobs leave no room for others, and when that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...runtime.log import LogOnce
from .in_flight import InFlight

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class ParkedNotice:
    """The fetcher's. Any thread may call."""

    def __init__(self, in_flight: InFlight, processors: int, log: FilteringBoundLogger) -> None:
        self._in_flight = in_flight
        self._processors = processors
        self._log = log
        self._log_once = LogOnce(log)

    def update(self) -> None:
        """A job was parked or settled."""
        too_many, parked = self._in_flight.parked_too_many(), len(self._in_flight.parked)
        if too_many >= self._processors:
            self._log_once.error(
                "parked",
                "fetching no more jobs: too many keep their leases without a processor",
                kept=parked,
                remedy="redis does not take failed jobs: make room there, or mend its retry and "
                "dead sets",
            )
        elif too_many <= 0 and self._log_once.over("parked"):
            self._log.info("fetching jobs again", kept=parked)
