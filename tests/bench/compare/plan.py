"""Which cells a run has, and in which order: rounds outermost, forkq beside each of its peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from tests.bench.compare.peers import FORKQ

NETWORKS = (0.0, 0.7, 1.2, 5.0)  # milliseconds of round trip
NOOP, NAP = "noop", "nap"
NAPS = (0.0, 1.2, 5.0)  # the networks on which jobs of 10 ms are run
WIDE = 25
WIDE_PEERS = ("sidekiq", "sidekiq-yjit")  # the peers that are also run with that many threads


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    round: int
    kind: str
    threads: int
    network: float
    peer: str


def plan(
    peers: Sequence[str], kinds: Sequence[str], networks: Sequence[float], threads: int, rounds: int
) -> Iterator[Cell]:
    """All cells of the run."""
    for number, kind, network in product(range(rounds), kinds, networks):
        if kind == NAP and network not in NAPS:
            continue
        for peer in in_turn(peers):
            yield Cell(number, kind, threads, network, peer)
        wide = [peer for peer in peers if peer in WIDE_PEERS]
        if kind == NOOP and wide and threads != WIDE:
            for peer in in_turn(wide):
                yield Cell(number, kind, WIDE, network, peer)


def in_turn(peers: Sequence[str], ours: str = FORKQ) -> Iterator[str]:
    """forkq, A, B, forkq, C, D, forkq: each peer stands beside a cell of forkq's."""
    for place, peer in enumerate(peers):
        if place % 2 == 0:
            yield ours
        yield peer
    if len(peers) % 2 == 0:
        yield ours
