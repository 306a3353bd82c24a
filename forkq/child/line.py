"""The fetcher's line to Redis: one connection, and at most one fetch under way on it.

Not thread-safe: the fetcher sees to it that one thread at a time uses it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import NoScriptError

from ..capsule import Capsule
from ..connection import ResponseError, Wire
from ..keys import Keys
from ..lease import Unit, owner
from ..scripts import FETCH, REQUEUE

# How many fetches without an answer are remembered: one for each connection that was lost.
_UNHEARD: Final = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """A fetch: how many jobs it wants from sequence number ``first`` on, what it acknowledges, and
    whether the server shall tell of changes after it."""

    first: int
    want: int
    done: Sequence[Unit]
    watched: bool

    @property
    def sequences(self) -> range:
        """Under which numbers it may have leased jobs."""
        return range(self.first, self.first + self.want)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a fetch brought: ``short`` if less than it wanted, ``told`` if it brought nothing and
    we shall hear of it when there is something; ``gone`` if it acknowledged what had no lease any
    more: done a second time after a lost reply, or given to others."""

    units: Sequence[Unit]
    short: bool
    told: bool
    gone: bool


class Line:
    """Every method but ``hang_up`` raises ConnectionLost or RedisError."""

    def __init__(self, capsule: Capsule, identity: str, keys: Keys, wire: Wire, log: Any) -> None:
        self.tracks = True
        self._wire = wire
        self._log = log
        self._owner = owner(identity)
        self._names = capsule.queue_names
        self._weights = [weight for _, weight in capsule.queues]
        self._in_order = capsule.mode == "strict"
        self._lists = keys.lists_and_leases(self._names)
        self._sequence = 1
        self._under_way: Request | None = None
        self._unheard: deque[range] = deque(maxlen=_UNHEARD)

    @property
    def wire(self) -> Wire:
        """The connection, for other commands while no fetch is under way."""
        return self._wire

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._wire.connected

    @property
    def busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._under_way is not None

    def open(self) -> None:
        """Connects, and asks the server to tell us of changes."""
        if not self._wire.connected:
            self._wire.connect()
            self._track()

    def send(self, want: int, done: Sequence[Unit], *, watch: bool = False) -> None:
        """Sends a fetch. No sequence number is ever used twice, whatever becomes of it."""
        self._under_way = Request(self._sequence, want, done, watch)
        self._sequence += want
        self._transmit(self._under_way)

    def receive(self) -> Answer:
        """The answer to the fetch under way."""
        request = self._under_way
        assert request is not None
        taken = self._reply(request)
        self._under_way = None
        gone = len(taken) % 2 == 1
        if gone:
            taken.pop()
        pairs = zip(taken[::2], taken[1::2], strict=True)
        names = self._names
        units = [
            Unit(queue, names[queue - 1], sequence, payload)
            for sequence, (queue, payload) in enumerate(pairs, request.first)
        ]
        short = len(units) < max(1, request.want)
        return Answer(units, short, told=not units and request.watched, gone=gone)

    def has_heard(self, sequence: int) -> bool:
        """Whether all is known that may have been leased under that number; False while the fetch
        that took it is under way, and for ever if its answer was lost. Any thread may ask."""
        request = self._under_way
        if request is not None and sequence in request.sequences:
            return False
        return not any(sequence in unheard for unheard in list(self._unheard))

    def requeue(self, keep: Iterable[int]) -> None:
        """Puts back every lease of this child but those with the sequence numbers ``keep``."""
        self._wire.script(REQUEUE, self._lists, (self._owner, self._sequence, *keep))

    def wait(self, seconds: float, wake: int) -> None:
        """Waits until the server tells of a change, or the descriptor ``wake`` is readable."""
        self._wire.wait(seconds, wake)

    def hang_up(self) -> Sequence[Unit]:
        """Closes the connection. Returns what the fetch under way, if any, was to acknowledge: to
        do that again does no harm."""
        self._wire.close()
        request = self._under_way
        if request is None:
            return ()
        if request.want:
            self._unheard.append(request.sequences)  # first: it must never be in neither
        self._under_way = None
        return request.done

    def _transmit(self, request: Request) -> None:
        fetch = (
            "EVALSHA",
            FETCH.sha,
            len(self._lists),
            *self._lists,
            request.want,
            self._owner,
            request.first,
            0 if self._in_order else random.getrandbits(31) | 1,
            *self._weights,
            *_by_queue(request.done),
        )
        if request.watched:
            self._wire.send(("CLIENT", "CACHING", "YES"), fetch)
        else:
            self._wire.send(fetch)

    def _reply(self, request: Request) -> list[Any]:
        """The script's answer; a server that does not know the script is told its text."""
        try:
            return self._read(request)
        except NoScriptError:
            self._wire.call("SCRIPT", "LOAD", FETCH.text)
            self._transmit(request)
            return self._read(request)

    def _read(self, request: Request) -> list[Any]:
        if request.watched:
            self._wire.read()
        reply: list[Any] = self._wire.read()
        return reply

    def _track(self) -> None:
        if not self.tracks:
            return
        try:
            self._wire.track()
        except ResponseError as error:
            self.tracks = False
            self._log.warning(
                "redis does not tell of new jobs; polling for them instead", error=str(error)
            )


def _by_queue(done: Sequence[Unit]) -> list[int]:
    """What fetch.lua wants of the jobs to acknowledge: queue, how many, their sequence numbers."""
    groups: dict[int, list[int]] = {}
    for unit in done:
        groups.setdefault(unit.queue, []).append(unit.sequence)
    flat: list[int] = []
    for queue, sequences in groups.items():
        flat += (queue, len(sequences), *sequences)
    return flat
