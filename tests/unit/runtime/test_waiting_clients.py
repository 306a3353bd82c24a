"""Which clients a server closes that it waits for."""

from __future__ import annotations

import pytest

from forkq.runtime.waiting_clients import Peer, WaitingClients, network_of

PATIENCE = 10.0


class Server:
    """A server with a made-up time."""

    def __init__(self, most: int = 100) -> None:
        self.now = 0.0
        self.closed: list[Peer] = []
        self.waiting = WaitingClients(PATIENCE, most, lambda: self.now)

    def opens(self, *peers: Peer) -> None:
        for peer in peers:
            self.waiting.opened(peer, lambda peer=peer: self.closed.append(peer))  # type: ignore[misc]

    def later(self, seconds: float) -> list[Peer]:
        """Those that it closes by then."""
        self.now += seconds
        self.waiting.close_late()
        found, self.closed = self.closed, []
        return found


def of(address: str, *ports: int) -> list[Peer]:
    return [(address, port) for port in ports]


def test_each_has_its_time() -> None:
    server = Server()
    server.opens(*of("192.0.2.1", 1))
    assert server.later(PATIENCE / 2) == []
    server.opens(*of("192.0.2.1", 2))
    assert server.later(PATIENCE / 2) == of("192.0.2.1", 1)
    assert server.later(PATIENCE / 2) == of("192.0.2.1", 2)
    assert server.later(PATIENCE) == []


def test_the_time_of_an_answer_is_not_counted() -> None:
    server = Server()
    [peer] = of("192.0.2.1", 1)
    server.opens(peer)
    server.waiting.answers(peer)
    assert server.later(100 * PATIENCE) == []
    server.waiting.waits(peer)
    assert server.later(PATIENCE - 1) == []
    assert server.later(1) == [peer]


def test_one_that_has_gone_is_forgotten() -> None:
    server = Server()
    [peer] = of("192.0.2.1", 1)
    server.opens(peer)
    server.waiting.closed(peer)
    server.waiting.waits(peer)  # its last request ends
    assert server.later(PATIENCE) == []


def test_the_address_that_has_most_loses_its_oldest() -> None:
    server = Server(most=5)
    server.opens(*of("192.0.2.1", 1), *of("203.0.113.9", 1, 2, 3), *of("192.0.2.2", 1))
    assert server.closed == []
    server.opens(*of("192.0.2.3", 1), *of("203.0.113.9", 4))
    assert server.closed == of("203.0.113.9", 1, 2)


def test_a_flood_from_one_address_closes_no_other_one() -> None:
    server = Server(most=10)
    server.opens(*of("192.0.2.1", 1, 2))
    server.opens(*of("203.0.113.9", *range(1000)))
    assert server.closed == of("203.0.113.9", *range(1000 - 8))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_client(address: str, network: str) -> None:
    assert network_of(address) == network
