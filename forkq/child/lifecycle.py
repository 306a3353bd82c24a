"""Calls the app's handlers of lifecycle events; logs what they raise, and goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .. import registry

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


def call_handlers(event: registry.Event, log: FilteringBoundLogger) -> None:
    """Calls the handlers that the app has registered for ``event``, in this thread."""
    for handler in registry.handlers(event):
        try:
            handler()
        except BaseException as error:  # SystemExit must not end the child either
            log.error("a lifecycle handler failed", event_name=event, exc_info=error)


class Election:
    """Calls the handlers of ``leader`` in a thread of their own, since apps do their leader's work
    in them. Handlers that still run from an earlier election are not called a second time."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._thread: threading.Thread | None = None

    def won(self) -> None:
        """Calls the handlers: this child is the leader from now on."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=call_handlers, args=("leader", self._log), name="leader", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError as error:  # the child goes on without its handlers
                self._log.error("the leader's handlers cannot be called", error=str(error))
