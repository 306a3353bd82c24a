"""The fetcher's line to Redis: one connection, and at most one fetch under way on it.

Not thread-safe: the fetcher sees to it that one thread at a time uses it.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

from ...config.capsule import Capsule
from ...limits.patterns import readable
from ...store.connection import Call, DamagedKey, RedisConnection, ResponseError
from ...store.damage import about
from ...store.scripts import FETCH, QUEUES_IN_FLIGHT, REQUEUE
from ...store.server_time import ServerTime
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork, owner
from .queue_selector import QueueOffer, QueueSelector
from .tracked_keys import TrackedKeys

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# About how many bytes of payloads a fetch brings (fetch.lua), beside one job.
_FETCH_BYTES: Final = 524_288
# Of how many queues one script gives leases back.
_CHUNK: Final = 500
_REQUEUE_BYTES: Final = 4 << 20  # and about how much of their payloads
# Where the server does not tell of new queues, we look for them so often.
_LOOK_FOR_QUEUES: Final = 1.0

# How many fetches without an answer are remembered: one for each connection that was lost.
_UNHEARD: Final = 1000


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch: how many jobs it wants from sequence number ``first`` on, what it acknowledges,
    which keys it registers so that the server tells when they change, from which queues it may
    take, and how many jobs of each queue stay in flight (None: not counted)."""

    first: int
    want: int
    done: Sequence[UnitOfWork]
    registers: Sequence[str]
    offer: QueueOffer
    held: Mapping[str, int] | None

    @property
    def sequences(self) -> range:
        """Under which numbers it may have leased jobs."""
        return range(self.first, self.first + self.want)


@dataclass(frozen=True, slots=True)
class FetchReply:
    """What a fetch brought: ``short`` if less than it wanted, ``told`` if we shall hear of it when
    there is more; ``gone`` if it acknowledged what had no lease any more: done a second time after
    a lost reply, or given to others."""

    units: Sequence[UnitOfWork]
    short: bool
    told: bool
    gone: bool


class FetchConnection:
    """Every method but ``hang_up`` raises ConnectionLost or RedisError."""

    def __init__(
        self,
        capsule: Capsule,
        identity: str,
        keys: Keys,
        connection: RedisConnection,
        log: FilteringBoundLogger,
    ) -> None:
        self.tracks = True
        self._connection = connection
        self._log = log
        self._owner = owner(identity)
        self._in_order = capsule.mode == "strict"
        self._keys = keys
        self._selector = QueueSelector(capsule, keys)
        self._watched = TrackedKeys()
        connection.on_change(self._hear_server)
        self.on_gap: Callable[[], None] = lambda: None
        self._names_due = 0.0
        self._fitting = _FETCH_BYTES  # so many payloads of the last size fit into an answer
        self._damaged: set[str] = set()  # keys that we have named
        self._noted: Set[str] = frozenset()  # the queues that we have said we may hold leases of
        self._notes_doubtful = True
        self._complained = False
        self._opened = False
        self._sequence = 1
        self._under_way: FetchRequest | None = None
        self._unheard: deque[range] = deque(maxlen=_UNHEARD)

    @property
    def connection(self) -> RedisConnection:
        """The connection, for other commands while no fetch is under way."""
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._connection.connected

    @property
    def counts(self) -> bool:
        """Whether it wants to be told in ``send`` what stays in flight."""
        return self._selector.counts

    @property
    def busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._under_way is not None

    def open(self) -> None:
        """Connects, and asks the server to tell us of changes."""
        if not self._connection.connected:
            self._connection.connect()
            ServerTime().measure(
                self._connection
            )  # before a job can fail, and need a time for its retry
            self._hear(None)
            self._track()
            self.note_queues_again()
            self._note_queues()
            if self._opened:
                self.on_gap()
            self._opened = True

    def note_queues_again(self) -> None:
        """What we have noted in Redis may be gone. Any thread may say so."""
        self._notes_doubtful = True

    def look_for_queues(self) -> None:
        """Finds the queues that our patterns stand for, if there may be new ones; and notes each
        before anything of it is leased."""
        if self._find_queues() or self._notes_doubtful:
            self._note_queues()

    def _find_queues(self) -> bool:
        if not self._selector.dynamic:
            return False
        late = not self.tracks and time.monotonic() >= self._names_due
        if not self._selector.stale and not late:
            return False
        self._names_due = time.monotonic() + _LOOK_FOR_QUEUES
        if self.tracks:
            self._connection.call("CLIENT", "CACHING", "YES")
        try:
            self._selector.learn(readable(self._connection.call("SMEMBERS", self._keys.queues)))
        except DamagedKey:
            self._selector.stale = False  # the queues that we know are all that we can offer
            self._report_damage([self._keys.queues])
        return True

    def _note_queues(self) -> None:
        """A queue may be deleted while its job is in flight: the sweep must know where to look."""
        noted: Collection[str] = () if self._notes_doubtful else self._noted
        self._notes_doubtful, self._noted = False, self._selector.names
        new = sorted(self._noted.difference(noted))
        chunks = [new[start : start + _CHUNK] for start in range(0, len(new), _CHUNK)]
        calls = [Call(QUEUES_IN_FLIGHT, (self._keys.fetched,), chunk) for chunk in chunks]
        for reply in self._connection.exchange(calls) if calls else ():
            if isinstance(reply, DamagedKey):
                self._report_damage([self._keys.fetched])
            elif isinstance(reply, ResponseError) and not self._complained:
                self._complained = True
                self._log.error("cannot note the queues of this child", error=str(reply))

    def send(
        self,
        want: int,
        done: Sequence[UnitOfWork],
        *,
        watch: bool = False,
        held: Mapping[str, int] | None = None,
    ) -> None:
        """Sends a fetch. No sequence number is ever used twice, whatever becomes of it."""
        want = min(want, self._fitting)
        offer = self._offer(want, done)
        registers = self._watched.missing(self._selector.wanting(offer)) if watch else ()
        self._under_way = FetchRequest(self._sequence, want, done, registers, offer, held)
        self._sequence += want
        self._transmit(self._under_way)

    def receive(self) -> FetchReply:
        """The answer to the fetch under way."""
        request = self._under_way
        assert request is not None
        gone, marked, reasons, damaged, *taken = self._reply(request)
        self._under_way = None
        if damaged:
            self._report_damage([key.decode("utf-8", "replace") for key in damaged])
        if taken:
            self._fitting = max(1, _FETCH_BYTES // max(map(len, taken[1::2])))
        names = request.offer.names
        pairs = zip(taken[::2], taken[1::2], strict=True)
        units = [
            UnitOfWork(queue, names[queue - 1], sequence, payload)
            for sequence, (queue, payload) in enumerate(pairs, request.first)
        ]
        short = len(units) < request.want
        if self._selector.dynamic:
            self._selector.turn(Counter([unit.queue_name for unit in units]))
        told = self._judge(request, reasons, units, bool(marked)) if short else self._forget()
        return FetchReply(units, short, told, gone=bool(gone))

    def has_heard(self, sequence: int) -> bool:
        """Whether all is known that may have been leased under that number; False while the fetch
        that took it is under way, and for ever if its answer was lost. Any thread may ask."""
        request = self._under_way
        if request is not None and sequence in request.sequences:
            return False
        return not any(sequence in unheard for unheard in list(self._unheard))

    def requeue(self, keep: Iterable[int]) -> bool:
        """Puts back every lease of this child but those with the sequence numbers ``keep``. False
        if a queue is damaged: its leases stay."""
        complete = True
        arguments = (self._owner, self._sequence, _REQUEUE_BYTES, *keep)
        names = (
            sorted(self._selector.offered)
            if self._selector.dynamic
            else self._selector.offer().names
        )
        for start in range(0, len(names), _CHUNK):
            lists = self._keys.lists_and_leases(names[start : start + _CHUNK])
            complete = self._requeue(lists, arguments) and complete
        self._hear(None)  # the server does not tell us of what we do ourselves
        return complete

    def _requeue(self, lists: Sequence[str], arguments: Sequence[Any]) -> bool:
        """Puts back what is in flight of some queues, a bounded number of bytes at a time."""
        try:
            while self._connection.script(REQUEUE, (self._keys.queues, *lists), arguments)[1]:
                pass
        except DamagedKey as error:
            self._log.error("jobs cannot go back", error=str(error))
            return False
        return True

    def wait(self, seconds: float, wake: int) -> bool:
        """Waits until the server tells of a change, a queue has a token again, or the descriptor
        ``wake`` is readable. Returns whether it was not the descriptor."""
        patience = max(0.0, self._selector.due - time.monotonic())
        told = self._connection.wait(min(seconds, patience), wake)
        if told and self._under_way is None:  # else it may be an answer, which is not ours to take
            self._connection.hear()
        return told or self._selector.due <= time.monotonic()

    def hang_up(self) -> Sequence[UnitOfWork]:
        """Closes the connection. Returns what the fetch under way, if any, was to acknowledge: to
        do that again does no harm."""
        self._connection.close()
        request = self._under_way
        if request is None:
            return ()
        if request.want:
            self._unheard.append(request.sequences)  # first: it must never be in neither
            self._fitting = 1  # perhaps the payloads were too large to come in time
        self._under_way = None
        return request.done

    def _report_damage(self, keys: Iterable[str]) -> None:
        """One line for each key. What it belongs to is left out; the rest goes on."""
        for key in keys:
            if key not in self._damaged:
                self._damaged.add(key)
                self._log.error("damaged key; left out until it is mended", **about(key))

    def _offer(self, want: int, done: Sequence[UnitOfWork]) -> QueueOffer:
        if not self._selector.dynamic:
            return self._selector.offer()
        also = [unit.queue_name for unit in done]
        if want == 0:
            return self._selector.nothing(also)
        return self._selector.offer(also, turning=not self.tracks)

    def _hear_server(self, keys: list[bytes] | None) -> None:
        self._hear(keys)
        if keys is None:  # all is gone
            self.note_queues_again()
            self.on_gap()

    def _hear(self, keys: list[bytes] | None) -> None:
        self._watched.hear(keys)
        if self._selector.dynamic:
            self._selector.hear(keys)

    def _forget(self) -> bool:
        """There was enough: nobody waits, and a busy child keeps no account of what changed."""
        self._watched.hear(None)
        return False

    def _judge(
        self,
        request: FetchRequest,
        reasons: Sequence[Any],
        units: Sequence[UnitOfWork],
        marked: bool,
    ) -> bool:
        """Whether we shall hear of it when there is more than that fetch brought."""
        self._watched.discard(self._changed(request.done, units))
        if marked:
            self._watched.hear(None)
        return self._selector.judge(request.offer, reasons, self._watched)

    def _changed(self, done: Sequence[UnitOfWork], taken: Sequence[UnitOfWork]) -> Iterator[str]:
        """What fetch.lua changes of the keys that one may wait for, but for new marks."""
        freed = Counter([unit.queue_name for unit in done])
        for name, count in Counter([unit.queue_name for unit in taken]).items():
            yield from self._keys.lists_and_leases([name])
            freed[name] -= count
        for name, count in freed.items():
            yield self._keys.inflight(name)
            if count > 0:
                yield from (self._keys.full(name), self._keys.busy(name))

    def _transmit(self, request: FetchRequest) -> None:
        offer = request.offer
        fetch = (
            "EVALSHA",
            FETCH.sha,
            len(offer.keys),
            *offer.keys,
            request.want,
            self._owner,
            request.first,
            0 if self._in_order else random.getrandbits(31) | 1,
            offer.count,
            *_done(request),
            *_rules(request),
        )
        if request.registers:
            # Registered first, then looked at: so no change is missed. A script's own reads will
            # not do: Redis up to 7.0 takes all of its KEYS for them, and no others.
            register = ("EXISTS", *request.registers)
            self._connection.send(("CLIENT", "CACHING", "YES"), register, fetch)
        else:
            self._connection.send(fetch)

    def _reply(self, request: FetchRequest) -> list[Any]:
        """The script's answer; a server that does not know the script is told its text."""
        try:
            return self._read(request)
        except NoScriptError:
            self._connection.call("SCRIPT", "LOAD", FETCH.text)
            self._transmit(request)
            return self._read(request)

    def _read(self, request: FetchRequest) -> list[Any]:
        if request.registers:
            self._connection.read()
            self._connection.read()
            self._watched.add(request.registers)
        reply: list[Any] = self._connection.read()
        return reply

    def _track(self) -> None:
        if not self.tracks:
            return
        try:
            self._connection.track()
        except ResponseError as error:
            self.tracks = False
            self._log.warning(
                "redis does not tell of new jobs; polling for them instead", error=str(error)
            )


def _done(request: FetchRequest) -> list[int]:
    """What fetch.lua wants of the jobs to acknowledge: queue, how many, their sequence numbers."""
    groups: dict[str, list[int]] = {}
    for unit in request.done:
        groups.setdefault(unit.queue_name, []).append(unit.sequence)
    flat = [len(groups)]
    for queue, sequences in groups.items():
        flat += (request.offer.numbers[queue], len(sequences), *sequences)
    return flat


def _rules(request: FetchRequest) -> Sequence[Any]:
    """What fetch.lua wants of groups, rules, and jobs that stay in flight: queue, how many. Where
    there is nothing to say it wants nothing, and takes the short way."""
    offer = request.offer
    if request.held is None:
        return offer.rules if any(offer.rules) else ()
    numbers = request.offer.numbers
    held = [(numbers[name], count) for name, count in request.held.items() if name in numbers]
    return [*offer.rules, len(held), *(part for pair in held for part in pair)]
