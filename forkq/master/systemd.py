"""Talking to systemd: sd_notify, a datagram to a socket, so that no library is needed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class SystemdNotifier:
    """Tells systemd how we stand. Without systemd it tells nobody.

    ``watchdog`` is how often to ``ping``, in seconds, or None: half of what systemd allows.
    """

    def __init__(self, environ: Mapping[str, str], log: FilteringBoundLogger) -> None:
        self._log = log
        self._socket: socket.socket | None = None
        self._address = environ.get("NOTIFY_SOCKET", "")
        self.watchdog = _watchdog(environ)
        self._last = ""
        self._is_ready = False
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        """All children are ready; also ends a reload. Said once."""
        if self._is_ready:
            return
        self._is_ready = True
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def reloading(self) -> None:
        """A rolling restart begins; ``ready`` ends it."""
        self._is_ready = False
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``; sent when it has changed."""
        if text != self._last:
            self._last = text
            self._send(f"STATUS={text}")

    def stopping(self, seconds: float) -> None:
        """We stop, and shall be done within ``seconds``: systemd is to wait that long."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def descriptors(self) -> list[int]:
        """What a forked child must close."""
        return [self._socket.fileno()] if self._socket is not None else []

    def ping(self) -> None:
        """We are alive: the watchdog may rest."""
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
            self._log.debug("systemd did not take a notice", error=str(error))


def _watchdog(environ: Mapping[str, str]) -> float | None:
    limit = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(limit) / 2e6 if limit.isdigit() and ours else None
