"""One exchange with Redis at a time: what a child sends, what the reply means, what goes back.

``Exchange`` is the core: a value that knows what is sent and what a reply means, without I/O.
``FetchChannel`` drives it over a connection.

A child that waits is woken by the server's report of a change. To read that report first would
delay the job. So it stays unread, if it can: the reply to the fetch comes after it and passes it
on. Such a fetch registers no keys, since it is not known yet which of them changed. It is made
before the wait, when there is time for it (docs/decisions/019).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import NoScriptError

from ...config.capsule import Capsule
from ...limits.patterns import decoded_names
from ...store.connection import Call, DamagedKey, RedisConnection, ResponseError, pack
from ...store.scripts import FETCH, FETCH_SUSPECTS, LEASE_RETURN, QUEUES_IN_FLIGHT, Script
from ...store.server_time import ServerTime
from ...store.steps import requeue_calls
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork, owner
from ...wire.times import steady
from ..failure.ends import Ending, SentEndings, read_replies, send_again, sendings
from .leases import Leases, end_again
from .portions import count_by_queue
from .queues import FetchQueues, QueueOffer

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LARGEST_SEED: Final = 31  # bits
# What fetch.lua says if a rule was in force.
_RULES_IN_FORCE: Final = 2
# How many fetches with a lost reply are remembered: one for each connection that was lost.
_LOST_REPLIES: Final = 1000
# Of how many queues one script notes the names.
_QUEUES: Final = 500
# Seconds. A child that waits looks for itself now and then, in case a wake-up was lost. A server
# that is gone is noticed sooner (RedisConnection.wait).
_LONGEST_WAIT: Final = 60.0
# A solo child that a rule keeps waiting notes that again, before its last note counts no more
# (TURN_SECONDS in rules.lua).
_LONGEST_WAIT_OF_SOLO: Final = 5.0
# Seconds. How often new queues are looked for where Redis does not say that there are some.
_LOOK_EVERY: Final = 1.0


class Exchange(msgspec.Struct):
    """What a child sends, and what came back.

    It wants ``want`` jobs from sequence number ``first`` on, and ``free`` of them at most if a rule
    is in force. It was sent at ``sent_at`` (monotonic), ``asked`` (times.steady). It tells that the
    units ``ended`` are done, and ``sent`` moves others. It registers the keys
    ``registers``, so that Redis says when they change. ``in_flight``: how many jobs of each queue
    stay in flight (None: not counted).

    ``units``: what it brought. ``short``: fewer than it wanted. ``tracked``: Redis will say when
    there are more. ``seconds``: from the request to the reply. ``lease_gone``: it told of a unit
    without a lease: one that was told of before a reply was lost, or that was given to another
    host. ``largest``: its largest payload, 0 without one. ``ruled``: a rule was in force.
    """

    first: int
    want: int
    free: int
    ended: Sequence[UnitOfWork]
    sent: SentEndings
    offer: QueueOffer
    registers: Sequence[str] = ()
    in_flight: Mapping[str, int] | None = None
    sent_at: float = 0.0
    asked: float = 0.0

    units: Sequence[UnitOfWork] = ()
    short: bool = False
    tracked: bool = False
    seconds: float = 0.0
    lease_gone: bool = False
    largest: int = 0
    ruled: bool = False

    @property
    def sequences(self) -> range:
        """The numbers under which it may have leased jobs."""
        return range(self.first, self.first + self.want)

    def commands(
        self, script: Script, keys: Keys, more_keys: Sequence[str], owner: str
    ) -> list[tuple[Any, ...]]:
        """What is sent to Redis; the fetch script comes last.

        The keys are registered before the script looks at them, so no change is missed. A script's
        own reads would not do: Redis up to 7.0 tracks all of its KEYS for them, and no other keys.
        """
        offer = self.offer
        told, queues = self._told()
        marks = map(keys.awaited, queues)
        script_keys = (*offer.keys, *marks, *offer.rule_keys, *more_keys)
        fetch = (
            *("EVALSHA", script.sha, len(script_keys)),
            *script_keys,
            self.want,
            owner,
            self.first,
            0 if offer.in_order else random.getrandbits(_LARGEST_SEED) | 1,
            offer.count,
            self.free,
            len(offer.names),
            *told,
            *self._rules(),
        )
        calls = [each.call.command for each in self.sent.calls]
        if not self.registers:
            return [*calls, fetch]
        return [*calls, ("CLIENT", "CACHING", "YES"), ("EXISTS", *self.registers), fetch]

    def answered(self, queues: Sequence[int], payloads: Sequence[Any]) -> None:
        """Notes which payloads the script has leased; it numbers the queues from 1. A large payload
        is its length here, and left in Redis; its unit gets an empty one."""
        names, sent_at, asked = self.offer.names, self.sent_at, self.asked
        self.units = [
            UnitOfWork(queue, names[queue - 1], sequence, payload, sent_at, asked=asked)
            for sequence, (queue, payload) in enumerate(
                zip(queues, payloads, strict=True), self.first
            )
        ]
        if not payloads:
            return
        try:
            self.largest = max(1, *map(len, payloads))  # one may be empty
        except TypeError:
            for unit, payload in zip(self.units, payloads, strict=True):
                if type(payload) is int:
                    unit.payload, unit.left_bytes = b"", payload
            self.largest = max(1, *(unit.left_bytes or len(unit.payload) for unit in self.units))

    def _told(self) -> tuple[list[int], Iterable[str]]:
        """The ends to tell, as fetch.lua wants them, and their queues."""
        groups: dict[str, list[int]] = {}
        for unit in self.ended:
            groups.setdefault(unit.queue_name, []).append(unit.sequence)
        flat = [len(groups)]
        for queue, sequences in groups.items():
            flat += (self.offer.numbers[queue], len(sequences), *sequences)
        return flat, groups

    def _rules(self) -> Sequence[Any]:
        """Groups, rules, and for each queue its number and how many jobs stay in flight. Without
        any of these the script takes its short way."""
        offer = self.offer
        if self.in_flight is None:
            return offer.rules if any(offer.rules) else ()
        numbers = offer.numbers
        stay = [(numbers[name], count) for name, count in self.in_flight.items() if name in numbers]
        return [*offer.rules, len(stay), *(part for pair in stay for part in pair)]


class FetchChannel:
    """The fetcher's way to Redis, with at most one exchange under way. Not thread-safe: the fetcher
    has one thread at a time use it. Every method but ``disconnect`` and ``knows`` raises
    ConnectionLost or RedisError.

    That of a ``solo`` child fetches from the lists of suspects, and returns leases to them.
    ``tracks``: whether Redis says when a key changes. ``on_writes_lost`` is called when what this
    child wrote in Redis may be gone: the connection is new, or Redis says that all keys are gone.
    """

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
        self.connection = connection  # for other commands while no exchange is under way
        self.tracks = True
        self.under_way: Exchange | None = None
        self.on_writes_lost: Callable[[], None] = lambda: None
        self._keys = keys.of_suspects if solo else keys
        self._owner = owner(identity)
        self._solo_keys = (keys.of_suspects.suspected,) if solo else ()
        self.queues = FetchQueues(capsule, self._keys, log)
        self._log = log
        self._sequence = 1
        self._lost: deque[range] = deque(maxlen=_LOST_REPLIES)
        self._prepared: tuple[Exchange, bytes] | None = None
        self._has_report = False  # a report of a change is unread
        self._noted: Set[str] | None = None  # None: never
        self._look_due = 0.0
        connection.on_change(self._on_changes)

    @property
    def has_reply(self) -> bool:
        """Whether the reply to the exchange under way has begun to come."""
        return self.connection.wait(0.0)

    def open(self) -> None:
        """Connects, and asks Redis to say which keys change."""
        if not self.connection.connected:
            self.connection.connect()
            ServerTime().measure(self.connection)  # a job that fails needs it for its retry
            self.queues.changed(None)
            self._track()
            was_open = self._noted is not None
            self.note_queues_again()
            self._note_queues()
            if was_open:
                self.on_writes_lost()

    def disconnect(self, leases: Leases) -> None:
        """Closes the connection. What the exchange under way, if any, was to tell of ``leases`` has
        ended again: to tell it twice does no harm."""
        self.connection.close()
        self._forget_report()
        exchange = self.under_way
        if exchange is None:
            return
        if exchange.want:
            self._lost.append(exchange.sequences)  # first: it must never be in neither
        self.under_way = None
        untold = [ending for ending in exchange.sent.endings if ending.reply is None]
        end_again(leases, exchange.ended, untold)

    def knows(self, sequence: int) -> bool:
        """Whether this child knows all that was leased under that sequence number. False while the
        fetch that asked for it is under way, and for ever if its reply was lost. Any thread may
        call."""
        exchange = self.under_way
        if exchange is not None and sequence in exchange.sequences:
            return False
        return not any(sequence in lost for lost in self._lost.copy())

    # The exchange

    def send(self, want: int, leases: Leases, *, free: int = 0, register: bool = False) -> None:
        """Tells of what has ended in ``leases``, and asks for ``want`` jobs, or for ``free`` if a
        rule is in force. A sequence number is used once, even if the fetch fails."""
        queues = self.queues
        if want:
            self._learn_queues()
        ended: Sequence[UnitOfWork] = ()
        endings: Sequence[Ending] = ()
        try:
            ended, endings = leases.take_ended()
            portions = queues.portions
            portions.freed = False
            counted = queues.counts or portions.in_force
            counts = self._counts(leases, ended) if counted else None
            if queues.dynamic:
                also = [unit.queue_name for unit in (*ended, *(one.unit for one in endings))]
                offer = queues.offer(also, turning=not self.tracks, nothing=want == 0)
            else:
                offer = queues.offer()
            if self._has_report:
                register = False
                self._forget_report()
            exchange = Exchange(self._sequence, want, free, ended, sendings(endings), offer)
            if register and self.tracks:
                exchange.registers = queues.missing(offer)
            exchange.in_flight = counts
            exchange.sent_at, exchange.asked = monotonic(), steady()
            self.under_way = exchange
        except BaseException:  # no memory, or one of the app's
            end_again(leases, ended, endings)
            raise
        self._sequence += want
        self.connection.send(*self._commands(exchange))

    def receive(self) -> Exchange:
        """Reads the reply to the exchange under way, and returns that exchange."""
        exchange, queues = self.under_way, self.queues
        assert exchange is not None
        late, (lease_gone, marked, reasons, damaged, *taken) = self._reply(exchange)
        self.under_way = None
        exchange.answered(taken[::2], taken[1::2])
        units = exchange.units
        exchange.lease_gone, exchange.ruled = bool(lease_gone), marked == _RULES_IN_FORCE
        exchange.short = len(units) < (exchange.free if exchange.ruled else exchange.want)
        exchange.tracked = queues.judge(
            exchange.offer,
            reasons,
            damaged,
            exchange.ended,
            units,
            moved={ending.unit.queue_name for ending in exchange.sent.endings},
            short=exchange.short,
            marked=bool(marked),
            late=late,
        )
        if units and self.queues.portions.in_force:
            exchange.tracked = False  # the next portion may follow
        exchange.seconds = monotonic() - exchange.sent_at
        return exchange

    def note_queues_again(self) -> None:
        """Redis's note of the queues that this child may have leases of may be gone. A queue may be
        deleted while its job is in flight: the sweep of another host looks for leases in the queues
        that are noted. Any thread may call."""
        self._noted = frozenset()

    # Waiting

    def wait(self, wake: int, want: int) -> bool:
        """Waits until Redis says that a key changed, a queue has a token again for one of the
        ``want`` jobs, or the descriptor ``wake`` is readable, and not for very long. Returns
        whether it was not the descriptor. While an exchange is under way, what comes may be its
        reply, which ``receive`` reads. Prepares a fetch for ``want`` jobs."""
        self._prepare(want)
        self._has_report, queues = False, self.queues
        longest = _LONGEST_WAIT_OF_SOLO if self._solo_keys else _LONGEST_WAIT
        token_at = queues.blocked_until if want else inf
        readable = self.connection.wait(max(0.0, min(longest, token_at - monotonic())), wake)
        if readable and self.under_way is None:
            # Patterns and long lists offer only queues of which a change was read.
            self._has_report = not queues.dynamic and self.connection.has_report()
            if not self._has_report:
                self.connection.read_changes()
        return readable or token_at <= monotonic()

    def read_changes(self) -> None:
        """Reads what ``wait`` has left unread."""
        if self._has_report:
            self._forget_report()
            self.connection.read_changes()

    def send_prepared(self, want: int) -> bool:
        """Sends the fetch that ``wait`` has prepared. False if no report woke this child, or if
        that fetch will not do any more."""
        found = self._prepared if self._has_report else None
        if found is None or self._noted is not self.queues.names:
            return False
        exchange, packed = found
        if (exchange.first, exchange.want) != (self._sequence, want):
            return False
        self._forget_report()
        exchange.sent_at, exchange.asked = monotonic(), steady()
        self.under_way = exchange
        self._sequence += want
        self.connection.send(packed)
        return True

    # What goes back

    def return_leases(self, units: Sequence[UnitOfWork]) -> bool:
        """Returns these, the youngest first, to the head of their queues. A lease that is gone
        changes nothing. False if a queue is damaged: the leases of others may stay, too. Not while
        an exchange is under way."""
        queues = {unit.queue_name: None for unit in units}
        numbers = {name: number for number, name in enumerate(queues, 1)}
        moves = [part for unit in units for part in (numbers[unit.queue_name], unit.sequence)]
        keys = (self._keys.queues, *self._keys.of_returns(queues))
        complete = self._try(LEASE_RETURN, keys, (self._owner, *moves)) is not None
        self.queues.changed(None)  # Redis does not tell this connection of its own changes
        return complete

    def compare_leases(self, keep: Iterable[int]) -> bool:
        """Returns each lease of this child to its queue, but those with the sequence numbers
        ``keep``. False if a queue is damaged: its leases stay."""
        queues, complete = self.queues, True
        names = sorted(queues.offered) if queues.dynamic else queues.offer().names
        for call in requeue_calls(self._keys, names, self._owner, self._sequence, keep):
            complete = self._requeue(call) and complete
        queues.changed(None)  # as above
        return complete

    def _requeue(self, call: Call) -> bool:
        """Returns the leases of some queues, a bounded number of bytes at a time."""
        while (reply := self._try(call.script, call.keys, call.arguments)) is not None:
            if not reply[1]:
                return True
        return False

    def _try(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """The script's reply; None if a queue is damaged."""
        try:
            return self.connection.script(script, keys, arguments)
        except DamagedKey as error:
            self._log.error("jobs cannot go back", error=str(error))
            return None

    # How

    def _counts(self, leases: Leases, ended: Sequence[UnitOfWork]) -> Mapping[str, int]:
        """How many jobs of each queue stay in flight. Sets the portions of the next fetch."""
        counts = count_by_queue(leases.units().values(), ended)
        for name in self.queues.portions.prepare(counts):
            self.queues.wake(name)
        return counts

    def _commands(self, exchange: Exchange) -> list[tuple[Any, ...]]:
        return exchange.commands(self._script, self._keys, self._solo_keys, self._owner)

    @property
    def _script(self) -> Script:
        return FETCH_SUSPECTS if self._solo_keys else FETCH

    def _reply(self, exchange: Exchange) -> tuple[bool, list[Any]]:
        """Whether an ending was done after the fetch, and the reply of that. A server that does not
        know a script gets its text."""
        calls = exchange.sent.calls
        if calls:
            read_replies(self.connection, calls)
        try:
            reply = self._read(exchange)
        except NoScriptError:
            self.connection.call("SCRIPT", "LOAD", self._script.text)
            self.connection.send(*self._commands(exchange)[len(calls) :])
            reply = self._read(exchange)
        finally:
            late = bool(calls) and send_again(self.connection, calls)
        return late, reply

    def _read(self, exchange: Exchange) -> list[Any]:
        if exchange.registers:
            self.connection.read()
            self.connection.read()
            self.queues.registered(exchange.registers)
        reply: list[Any] = self.connection.read()
        return reply

    def _prepare(self, want: int) -> None:
        """Makes a fetch for ``want`` jobs that neither tells an end nor registers keys."""
        self._prepared = None
        if self.queues.dynamic or self.queues.counts or self.queues.portions.in_force or not want:
            return
        exchange = Exchange(self._sequence, want, want, (), SentEndings(), self.queues.offer())
        [command] = self._commands(exchange)
        self._prepared = exchange, pack([command])

    def _forget_report(self) -> None:
        """Leaves a report that is unread to the next reply, which passes it on."""
        self._has_report, self._prepared = False, None

    def _on_changes(self, keys: list[bytes] | None) -> None:
        self.queues.changed(keys)
        if keys is None:  # Redis says that all keys are gone
            self.note_queues_again()
            self.on_writes_lost()

    def _track(self) -> None:
        if not self.tracks:
            return
        try:
            self.connection.track()
        except ResponseError as error:
            self.tracks = False
            self._log.warning(
                "redis does not tell of new jobs; polling for them instead", error=str(error)
            )

    def _learn_queues(self) -> None:
        """Finds the queues that the patterns stand for, if there may be new ones, and notes each
        before anything of it is leased. A solo child removes names itself, of which Redis does not
        tell it, so it looks each time."""
        queues = self.queues
        is_polled = queues.dynamic and not self.tracks and monotonic() >= self._look_due
        if queues.stale or is_polled or (self._solo_keys and queues.dynamic):
            self._look_due = monotonic() + _LOOK_EVERY
            self._read_names()
        self._note_queues()

    def _read_names(self) -> None:
        if self.tracks:
            self.connection.call("CLIENT", "CACHING", "YES")
        try:
            names = decoded_names(self.connection.call("SMEMBERS", self._keys.queues))
        except DamagedKey:
            self.queues.stale = False  # the queues that are known are all that can be offered
            self.queues.found_damaged([self._keys.queues])
        else:
            self.queues.learn(names)
            self.queues.found_sound([self._keys.queues])

    def _note_queues(self) -> None:
        """Notes the queues that are not noted yet."""
        noted, names = self._noted or frozenset(), self.queues.names
        if noted is names:
            return
        self._noted = names
        new = sorted(names.difference(noted))
        chunks = [new[start : start + _QUEUES] for start in range(0, len(new), _QUEUES)]
        calls = [Call(QUEUES_IN_FLIGHT, (self._keys.fetched,), chunk) for chunk in chunks]
        for reply in self.connection.exchange(calls) if calls else ():
            self.queues.noted(reply)
