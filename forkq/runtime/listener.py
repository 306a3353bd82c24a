"""A TCP socket that takes connections, for ``forkq web`` and ``forkq metrics``."""

from __future__ import annotations

import os
import socket
from typing import Final

from ..errors import ForkqError

BACKLOG: Final = 128  # connections that wait to be accepted


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` (a name, IPv4 or IPv6). Raises ForkqError if that cannot be
    had, with the remedy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ForkqError(
            f"cannot listen at {host}:{port}: {why}; --listen chooses another address"
        ) from None
