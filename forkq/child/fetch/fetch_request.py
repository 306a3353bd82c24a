"""One fetch as fetch.lua wants it, and what comes back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...store.scripts import FETCH, FETCH_SUSPECTS, Script
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from .queue_selector import QueueOffer

_LARGEST_SEED: Final = 31  # bits

# Not frozen: a frozen dataclass takes longer to make, and each fetch makes both of these.


@dataclass(frozen=True, slots=True)
class FetchKind:
    """What is the same in all fetches of a child: the script, the keys after those of its queues,
    and the owner of the leases. ``in_order``: no queue is drawn by weight."""

    script: Script
    more_keys: tuple[str, ...]
    owner: str
    in_order: bool

    @classmethod
    def of_queues(cls, owner: str, *, in_order: bool) -> FetchKind:
        """The fetches of an ordinary child."""
        return cls(FETCH, (), owner, in_order)

    @classmethod
    def of_suspects(cls, keys: Keys, owner: str, *, in_order: bool) -> FetchKind:
        """The fetches of a solo child."""
        return cls(FETCH_SUSPECTS, (keys.suspected,), owner, in_order)


@dataclass(slots=True)
class FetchRequest:
    """A fetch: how many jobs it wants from sequence number ``first`` on, and how many of them at
    most (``free``) if a rule is in force, when it was sent (``sent_at`` is monotonic, ``asked`` is
    times.steady), which units it acknowledges, which keys it registers so that Redis says when they
    change, from which queues it may take, and how many jobs of each queue stay in flight (None: not
    counted)."""

    first: int
    want: int
    free: int
    sent_at: float
    asked: float
    done: Sequence[UnitOfWork]
    registers: Sequence[str]
    offer: QueueOffer
    held: Mapping[str, int] | None

    @property
    def sequences(self) -> range:
        """The numbers under which it may have leased jobs."""
        return range(self.first, self.first + self.want)

    def commands(self, kind: FetchKind) -> list[tuple[Any, ...]]:
        """What is sent to Redis; the script comes last.

        The keys are registered before the script looks at them, so no change is missed. A script's
        own reads would not do: Redis up to 7.0 tracks all of its KEYS for them, and no other keys.
        """
        offer = self.offer
        fetch = (
            "EVALSHA",
            kind.script.sha,
            len(offer.keys) + len(kind.more_keys),
            *offer.keys,
            *kind.more_keys,
            self.want,
            kind.owner,
            self.first,
            0 if kind.in_order else random.getrandbits(_LARGEST_SEED) | 1,
            offer.count,
            self.free,
            *self._acknowledged(),
            *self._rules(),
        )
        if not self.registers:
            return [fetch]
        return [("CLIENT", "CACHING", "YES"), ("EXISTS", *self.registers), fetch]

    def units(self, queues: Sequence[int], payloads: Sequence[Any]) -> list[UnitOfWork]:
        """What it has leased: the script numbers the queues from 1. A large payload is its length
        here, and left in Redis."""
        names, sent_at, asked = self.offer.names, self.sent_at, self.asked
        return [
            UnitOfWork(queue, names[queue - 1], sequence, payload, sent_at, asked=asked)
            for sequence, (queue, payload) in enumerate(
                zip(queues, payloads, strict=True), self.first
            )
        ]

    def _acknowledged(self) -> list[int]:
        """The jobs to acknowledge: for each queue its number, how many, their sequence numbers."""
        groups: dict[str, list[int]] = {}
        for unit in self.done:
            groups.setdefault(unit.queue_name, []).append(unit.sequence)
        flat = [len(groups)]
        for queue, sequences in groups.items():
            flat += (self.offer.numbers[queue], len(sequences), *sequences)
        return flat

    def _rules(self) -> Sequence[Any]:
        """Groups, rules, and for each queue its number and how many jobs stay in flight. Without
        any of these the script takes its short way."""
        offer = self.offer
        if self.held is None:
            return offer.rules if any(offer.rules) else ()
        numbers = offer.numbers
        held = [(numbers[name], count) for name, count in self.held.items() if name in numbers]
        return [*offer.rules, len(held), *(part for pair in held for part in pair)]


@dataclass(slots=True)
class FetchReply:
    """What a fetch brought. ``short``: less than it wanted; ``tracked``: Redis will say when there
    is more. ``seconds``: from the request to now. ``lease_gone``: it acknowledged a unit without a
    lease: one that was acknowledged before a reply was lost, or that was given to another host."""

    units: Sequence[UnitOfWork]
    short: bool
    tracked: bool
    seconds: float
    lease_gone: bool
