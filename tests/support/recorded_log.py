"""A logger for tests: structlog's own, which remembers its lines instead of writing them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

if TYPE_CHECKING:
    _Logger = Any
else:
    _Logger = structlog.make_filtering_bound_logger(logging.DEBUG)


class RecordedLog(_Logger):  # type: ignore[misc]
    """A FilteringBoundLogger of all levels. ``lines``: (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        super().__init__(None, [self._record], {})

    def events(self) -> list[str]:
        """What was logged, in order."""
        return [event for _, event, _ in self.lines]

    def _record(self, _: object, level: str, values: dict[str, Any]) -> NoReturn:
        self.lines.append((level, values.pop("event"), values))
        raise structlog.DropEvent
