"""Messages to systemd (sd_notify): datagrams to a socket, so that no library is needed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# While children boot, systemd hears so often that it is to wait for so many seconds more. A master
# that hangs meanwhile is ended when the last extension is over.
_EXTEND_EVERY: Final = 5.0
_EXTENSION: Final = 30.0


class SystemdNotifier:
    """Tells systemd the state of the tree. Without systemd it sends nothing.

    ``watchdog`` is how often to ``ping``, in seconds, or None: half of what systemd allows.
    """

    def __init__(self, environ: Mapping[str, str], log: FilteringBoundLogger) -> None:
        self._log = log
        self._socket: socket.socket | None = None
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog = _watchdog(environ)
        self._last_status = ""
        self._is_ready = False
        self._extend_at = 0.0
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def booting(self) -> None:
        """Says that children boot. Asks systemd for more time than its unit gives to a start or a
        reload: ``boot_timeout`` alone limits a boot."""
        now = time.monotonic()
        if now >= self._extend_at:
            self._extend_at = now + _EXTEND_EVERY
            self._send(f"EXTEND_TIMEOUT_USEC={_microseconds(_EXTENSION)}")

    def ready(self, status: str) -> None:
        """Says that all children are ready, once for each start or reload."""
        if self._is_ready:
            return
        self._is_ready = True
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def reloading(self) -> None:
        """Says that a rolling restart begins; ``ready`` ends it."""
        self._is_ready = False
        self._extend_at = 0.0
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def going_blind(self, seconds: float) -> None:
        """Says that the loop will not run for up to ``seconds``, while the master's next program
        starts."""
        limit = _microseconds(seconds)
        watchdog = "" if self.watchdog is None else f"\nWATCHDOG_USEC={limit}"
        self._send(f"EXTEND_TIMEOUT_USEC={limit}{watchdog}")

    def back(self) -> None:
        """Says that the loop runs again: the watchdog gets its own time back."""
        if self.watchdog is not None:
            self._send(f"WATCHDOG_USEC={_microseconds(self.watchdog * 2)}\nWATCHDOG=1")

    def status(self, text: str) -> None:
        """Sends the line for ``systemctl status`` if it has changed."""
        if text != self._last_status:
            self._last_status = text
            self._send(f"STATUS={text}")

    def stopping(self, seconds: float) -> None:
        """Says that the tree stops, and needs ``seconds`` at most: systemd is to wait that long."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={_microseconds(seconds)}")

    def descriptors(self) -> list[int]:
        """What a forked child must close."""
        return [self._socket.fileno()] if self._socket is not None else []

    def ping(self) -> None:
        """Feeds the watchdog of systemd: the master's loop goes on."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        address = self._address
        if address.startswith("@"):  # an abstract socket
            address = "\0" + address[1:]
        try:
            self._socket.sendto(message.encode(), address)
        except OSError as error:
            self._log.debug("systemd did not take a message", error=str(error))


def _microseconds(seconds: float) -> int:
    return int(seconds * 1e6)


def _watchdog(environ: Mapping[str, str]) -> float | None:
    limit = environ.get("WATCHDOG_USEC", "")
    is_for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit) / 2e6 if limit.isdigit() and is_for_us else None
