"""Finds a master that hangs or was stopped: it writes its time to the pidfile no more.

Its children go on meanwhile, but one that dies is not replaced, and nothing else would tell.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..config.config import Config
from ..config.private_files import life_shown, read_trusted
from ..errors import ForkqError
from ..runtime.liveness import STOPPED, kernel_state

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class MasterLiveness:
    """Used by the clock, which calls ``check`` with each of its beats. Logs a silent master once,
    and once when it is back."""

    def __init__(self, config: Config, log: FilteringBoundLogger) -> None:
        self._pidfile = config.pidfile
        self._limit = config.silent_after
        self._watches = not config.in_one_process  # else this process is the master
        self._log = log
        self._silent_since: float | None = None
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Reads when the master has last shown that it lives."""
        if not self._watches:
            return
        now = time.monotonic()
        # This clock was stopped, perhaps with its master: that gets time to write.
        was_stopped = now - self._checked_at > self._limit
        self._checked_at = now
        beat_at = self._last_beat()
        if beat_at is None or was_stopped:
            return
        if self._silent_since is not None and beat_at > self._silent_since:
            seconds = round(beat_at - self._silent_since)
            self._silent_since = None
            self._log.warning("the master is back", silent_for=seconds)
        elif self._silent_since is None and now - beat_at >= self._limit:
            self._silent_since = beat_at
            self._log_silence(round(now - beat_at))

    def _last_beat(self) -> float | None:
        """When the master last wrote its time (monotonic); None if the file cannot be read, or is
        not this master's."""
        with suppress(OSError, ForkqError, ValueError):
            if int(read_trusted(self._pidfile)) == os.getppid():
                return life_shown(self._pidfile)
        return None

    def _log_silence(self, seconds: int) -> None:
        pid = os.getppid()
        state = kernel_state(pid)
        stopped = state in STOPPED
        self._log.error(
            "the master is silent; its children go on, but none that dies is replaced",
            master=pid,
            silent_for=seconds,
            process=state,
            hint=f"kill -CONT {pid} lets it go on" if stopped else "restart it if this stays so",
        )
