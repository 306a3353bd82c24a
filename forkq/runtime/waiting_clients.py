"""Clients that a server waits for: a request that is not whole, or an answer that is not read.

They hold a connection and cost their sender nothing, before any password. So each has little time,
and there are few of them. For ``forkq web`` and ``forkq metrics``.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

Peer: TypeAlias = "tuple[str, int]"  # the address and the port of a client


class WaitingClients:
    """Closes clients that the server has waited for longer than ``patience`` seconds. If it waits
    for more than ``most``, it closes one of the address that has most of them: the one that it has
    waited for longest. So a client that sends its request at once is served, also beside a flood
    from its own address. Thread-safe."""

    def __init__(
        self, patience: float, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience = patience
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._close: dict[Peer, Callable[[], None]] = {}
        # By network, then the one first that has waited longest: when its time is over.
        self._until: dict[str, dict[Peer, float]] = {}

    def opened(self, peer: Peer, close: Callable[[], None]) -> None:
        """Notes that a client has connected. ``close`` ends its connection; it is called once at
        most."""
        with self._lock:
            self._close[peer] = close
        self.waits(peer)

    def waits(self, peer: Peer) -> None:
        """Notes that from now on the server waits for that client."""
        with self._lock:
            self._forget(peer)
            if peer not in self._close:
                return
            ours = self._until.setdefault(network_of(peer[0]), {})
            ours[peer] = self._clock() + self._patience
            too_many = sum(map(len, self._until.values())) > self._most
            close = self._take(self._oldest_of_the_most()) if too_many else None
        if close is not None:
            close()

    def answers(self, peer: Peer) -> None:
        """Notes that the client waits for the server now."""
        with self._lock:
            self._forget(peer)

    def closed(self, peer: Peer) -> None:
        """Notes that the connection has ended."""
        with self._lock:
            self._forget(peer)
            self._close.pop(peer, None)

    def close_late(self) -> None:
        """Closes the clients whose time is over. Call it about once a second."""
        with self._lock:
            now = self._clock()
            late = [
                peer
                for ours in self._until.values()
                for peer, until in ours.items()
                if until <= now
            ]
            closes = [self._take(peer) for peer in late]
        for close in closes:
            close()

    def _oldest_of_the_most(self) -> Peer:
        most = max(self._until, key=lambda network: len(self._until[network]))
        return next(iter(self._until[most]))

    def _take(self, peer: Peer) -> Callable[[], None]:
        self._forget(peer)
        return self._close.pop(peer)

    def _forget(self, peer: Peer) -> None:
        network = network_of(peer[0])
        ours = self._until.get(network, {})
        ours.pop(peer, None)
        if not ours:
            self._until.pop(network, None)


def network_of(address: str) -> str:
    """The network of a client's address: an IPv6 network of 64 bits counts as one client."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of a Unix socket, or of a test
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address
