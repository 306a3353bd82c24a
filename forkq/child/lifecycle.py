"""Calls the app's handlers of lifecycle events; logs what they raise, and goes on."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from .. import registry
from .event_loop import EventLoop

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Lifecycle:
    """Calls the handlers of one child, in the thread that asks. Those that are ``async def`` run in
    ``loop``, the event loop of the child, as its jobs do: both share sessions and pools.
    ``watched``: the log names a job that blocks it."""

    def __init__(self, log: FilteringBoundLogger, *, watched: bool = True) -> None:
        self.loop = EventLoop(log, watched=watched)
        self._log = log
        self._under_way: list[Future[BaseException | None]] = []
        self._leading: threading.Thread | None = None

    def boot(self) -> None:
        """Calls the handlers of ``startup``. Raises what they raise."""
        for handler in registry.handlers("startup"):
            self._run(handler)

    def call(self, event: registry.Event) -> None:
        """Calls the handlers of ``event``. One that is ``async def`` is begun and not waited for: a
        job may block the loop, and the caller has the deadline of the stop to keep."""
        for handler in registry.handlers(event):
            if registry.is_async(handler):
                future = self.loop.start(handler)
                future.add_done_callback(lambda done: self._tell(event, done.result()))
                self._under_way.append(future)
            else:
                self._try(event, handler)

    def exit(self, limit: float) -> None:
        """Calls the handlers of ``exit``, and ends the loop. What is ``async def``, of this event
        or an earlier one, has ``limit`` seconds to end."""
        wait(self._under_way, limit)
        self.call("exit")
        if wait(self._under_way, limit).not_done:
            self._log.error("async lifecycle handlers did not end in time", limit=round(limit, 1))
        self.loop.close()

    def won(self) -> None:
        """Calls the handlers of ``leader``, since this child is the leader from now on: in a thread
        of their own, since apps do their leader's work in them. Handlers that still run from an
        earlier election are not called a second time."""
        if self._leading is None or not self._leading.is_alive():
            self._leading = threading.Thread(target=self._lead, name="leader", daemon=True)
            try:
                self._leading.start()
            except RuntimeError as error:  # the child goes on without its handlers
                self._log.error("the leader's handlers cannot be called", error=str(error))

    def _lead(self) -> None:
        for handler in registry.handlers("leader"):
            self._try("leader", handler)

    def _try(self, event: registry.Event, handler: registry.EventHandler) -> None:
        try:
            self._run(handler)
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the child either
            self._tell(event, error)

    def _run(self, handler: registry.EventHandler) -> None:
        if registry.is_async(handler):
            self.loop.run(handler)
        else:
            handler()

    def _tell(self, event: registry.Event, error: BaseException | None) -> None:
        if error is not None:
            self._log.error("a lifecycle handler failed", event_name=event, exc_info=error)
