"""The fetcher's connection to Redis, and at most one fetch under way on it.

Not thread-safe: the fetcher has one thread at a time use it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import NoScriptError

from ...config.capsule import Capsule
from ...store.connection import RedisConnection, ResponseError
from ...store.server_time import ServerTime
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork, owner
from ...wire.times import steady
from .damaged_keys import DamagedKeys
from .fetch_request import FetchKind, FetchReply, FetchRequest
from .lease_returns import LeaseReturns
from .queue_notes import QueueNotes
from .queue_selector import QueueOffer, QueueSelector
from .tracked_keys import TrackedKeys, changed_by
from .wake_up import WakeUp

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# About how many bytes of payloads a fetch brings (fetch.lua), besides one job.
_FETCH_BYTES: Final = 524_288
# What fetch.lua says if a rule was in force, and seconds until a fetch asks for more than then.
_RULES_IN_FORCE: Final = 2
_RULED_FOR: Final = 1.0
# How many fetches with a lost reply are remembered: one for each connection that was lost.
_LOST_REPLIES: Final = 1000


class FetchConnection:
    """Every method but ``disconnect`` raises ConnectionLost or RedisError. That of a ``solo`` child
    fetches from the lists of suspects, and returns leases to them."""

    def __init__(
        self,
        capsule: Capsule,
        identity: str,
        keys: Keys,
        connection: RedisConnection,
        log: FilteringBoundLogger,
        *,
        solo: bool = False,
    ) -> None:
        self.tracks = True
        self.log = log
        self.on_writes_lost: Callable[[], None] = lambda: None
        self._connection = connection
        in_order = capsule.mode == "strict"
        self._kind = FetchKind.of_queues(owner(identity), in_order=in_order)
        if solo:
            self._kind = FetchKind.of_suspects(keys, owner(identity), in_order=in_order)
            keys = keys.of_suspects
        self._keys = keys
        self._selector = QueueSelector(capsule, keys)
        self._tracked = TrackedKeys()
        self.wake_up = WakeUp(connection, self._selector, self._kind)
        self._damaged = DamagedKeys(keys, log)
        self._returns = LeaseReturns(self._kind.owner, keys, connection, log)
        self._notes = QueueNotes(keys, connection, self._selector, self._damaged, log)
        connection.on_change(self._on_changes)
        self._most = _FETCH_BYTES  # so many payloads of the last size fit into a reply
        self._was_open = False
        self._ruled_until = 0.0
        self._sequence = 1
        self._under_way: FetchRequest | None = None
        self._lost: deque[range] = deque(maxlen=_LOST_REPLIES)

    @property
    def connection(self) -> RedisConnection:
        """The connection, for other commands while no fetch is under way."""
        return self._connection

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as this process knows."""
        return self._connection.connected

    @property
    def counts(self) -> bool:
        """Whether ``send`` needs to know how many jobs stay in flight."""
        return self._selector.counts

    @property
    def is_ruled(self) -> bool:
        """Whether a rule was in force lately: nothing can be leased ahead."""
        return time.monotonic() < self._ruled_until

    @property
    def sent_at(self) -> float:
        """When the fetch under way was sent (monotonic)."""
        return 0.0 if self._under_way is None else self._under_way.sent_at

    @property
    def busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._under_way is not None

    def open(self) -> None:
        """Connects, and asks Redis to say which keys change."""
        if not self._connection.connected:
            self._connection.connect()
            ServerTime().measure(self._connection)  # a job that fails needs it for its retry
            self._changed(None)
            self._track()
            self.note_queues_again()
            self._notes.write()
            if self._was_open:
                self.on_writes_lost()
            self._was_open = True

    def note_queues_again(self) -> None:
        """Redis's note of the queues of this child may be gone. Any thread may call."""
        self._notes.note_again()

    def look_for_queues(self) -> None:
        """Finds and notes the queues that the patterns stand for, if there may be new ones."""
        self._notes.look(tracks=self.tracks)

    def send(
        self,
        want: int,
        done: Sequence[UnitOfWork],
        *,
        free: int = 0,
        register: bool = False,
        held: Mapping[str, int] | None = None,
    ) -> None:
        """Sends a fetch for ``want`` jobs, or for ``free`` if a rule is in force. A sequence number
        is used once, even if the fetch fails."""
        want = min(want, self._most)
        offer = self._offer(want, done)
        if self.wake_up.has_report:
            register = False
            self.wake_up.forget()
        registers = self._tracked.missing(self._selector.wanting(offer)) if register else ()
        self._under_way = FetchRequest(
            self._sequence, want, free, time.monotonic(), steady(), done, registers, offer, held
        )
        self._sequence += want
        self._transmit(self._under_way)

    def receive(self) -> FetchReply:
        """The reply to the fetch under way."""
        request = self._under_way
        assert request is not None
        lease_gone, marked, reasons, damaged, *taken = self._reply(request)
        self._under_way = None
        payloads = taken[1::2]
        units = request.units(taken[::2], payloads)
        if payloads:
            self._most = max(1, _FETCH_BYTES // _largest(payloads, units))
        if marked == _RULES_IN_FORCE:
            self._ruled_until = time.monotonic() + _RULED_FOR
        short = len(units) < (request.free if marked == _RULES_IN_FORCE else request.want)
        if damaged or self._damaged.any:
            self._damaged.update(request, units, damaged, reasons, complete=short and not marked)
        if self._selector.dynamic:
            self._selector.turn(Counter([unit.queue_name for unit in units]))
        if short:
            tracked = self._is_tracked(request, reasons, units, marked=bool(marked))
        else:  # there are more jobs: no processor waits, and nothing needs to be tracked
            tracked = False
            self._tracked.changed(None)
        seconds = time.monotonic() - request.sent_at
        return FetchReply(units, short, tracked, seconds, lease_gone=bool(lease_gone))

    def knows(self, sequence: int) -> bool:
        """Whether all is known that was leased under that number. False while the fetch that asked
        for it is under way, and for ever if its reply was lost. Any thread may call."""
        request = self._under_way
        if request is not None and sequence in request.sequences:
            return False
        return not any(sequence in lost for lost in self._lost.copy())

    def put_back(self, units: Sequence[UnitOfWork]) -> bool:
        """Returns these, the youngest first, to the head of their queues. False if a queue is
        damaged: some leases stay. Not while a fetch is under way."""
        complete = self._returns.put_back(units)
        self._changed(None)  # Redis does not tell this connection of its own changes
        return complete

    def requeue(self, keep: Iterable[int]) -> bool:
        """Returns to its queue each lease of this child but those with the sequence numbers
        ``keep``. False if a queue is damaged: its leases stay."""
        selector = self._selector
        names = sorted(selector.offered) if selector.dynamic else selector.offer().names
        complete = self._returns.requeue(names, self._sequence, keep)
        self._changed(None)  # as above
        return complete

    def wait(self, seconds: float, wake: int, want: int) -> bool:
        """As ``WakeUp.wait``, which prepares a fetch for ``want`` jobs."""
        self.wake_up.prepare(self._sequence, min(want, self._most))
        return self.wake_up.wait(seconds, wake, busy=self._under_way is not None)

    def send_prepared(self, want: int) -> bool:
        """Sends that fetch, if Redis has reported a change and the fetch will still do."""
        request = self.wake_up.take(self._sequence, min(want, self._most))
        if request is None or self._notes.is_due:
            return False
        self._under_way = request
        self._sequence += request.want
        self._connection.send(self.wake_up.packed)
        return True

    def disconnect(self) -> Sequence[UnitOfWork]:
        """Closes the connection. Returns what the fetch under way, if any, was to acknowledge: to
        do that again does no harm."""
        self._connection.close()
        self.wake_up.forget()
        request = self._under_way
        if request is None:
            return ()
        if request.want:
            self._lost.append(request.sequences)  # first: it must never be in neither
            self._most = 1  # the payloads may have been too large to come in time
        self._under_way = None
        return request.done

    def _offer(self, want: int, done: Sequence[UnitOfWork]) -> QueueOffer:
        if not self._selector.dynamic:
            return self._selector.offer()
        also = [unit.queue_name for unit in done]
        if want == 0:
            return self._selector.nothing(also)
        return self._selector.offer(also, turning=not self.tracks)

    def _on_changes(self, keys: list[bytes] | None) -> None:
        self._changed(keys)
        if keys is None:  # Redis says that all keys are gone
            self.note_queues_again()
            self.on_writes_lost()

    def _changed(self, keys: Collection[bytes] | None) -> None:
        self._tracked.changed(keys)
        if self._selector.dynamic:
            self._selector.changed(keys)

    def _is_tracked(
        self,
        request: FetchRequest,
        reasons: Sequence[Any],
        units: Sequence[UnitOfWork],
        *,
        marked: bool,
    ) -> bool:
        """Whether Redis will say when there is more than that fetch brought."""
        self._tracked.discard(changed_by(self._keys, request.done, units))
        if marked:
            self._tracked.changed(None)
        if units and not reasons and not self._selector.dynamic:
            self._selector.note_all_empty()
            return False  # the script changed a list, so that is no longer registered
        return self._selector.judge(request.offer, reasons, self._tracked)

    def _transmit(self, request: FetchRequest) -> None:
        self._connection.send(*request.commands(self._kind))

    def _reply(self, request: FetchRequest) -> list[Any]:
        """The script's reply. A server that does not know the script gets its text."""
        try:
            return self._read(request)
        except NoScriptError:
            self._connection.call("SCRIPT", "LOAD", self._kind.script.text)
            self._transmit(request)
            return self._read(request)

    def _read(self, request: FetchRequest) -> list[Any]:
        if request.registers:
            self._connection.read()
            self._connection.read()
            self._tracked.add(request.registers)
        reply: list[Any] = self._connection.read()
        return reply

    def _track(self) -> None:
        if not self.tracks:
            return
        try:
            self._connection.track()
        except ResponseError as error:
            self.tracks = False
            self.log.warning(
                "redis does not tell of new jobs; polling for them instead", error=str(error)
            )


def _largest(payloads: Sequence[Any], units: Sequence[UnitOfWork]) -> int:
    """How large the largest payload is, at least 1. Those that were left in Redis are numbers, and
    their units get an empty one."""
    try:
        return max(1, *map(len, payloads))  # one may be empty
    except TypeError:
        sizes = [payload if type(payload) is int else len(payload) for payload in payloads]
        for unit, payload in zip(units, payloads, strict=True):
            if type(payload) is int:
                unit.payload, unit.left_bytes = b"", payload
        return max(1, *sizes)
