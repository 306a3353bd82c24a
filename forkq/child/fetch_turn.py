"""Processors drive the fetcher: the one whose turn it is fetches for all, the others wait.

To pass the turn on costs a thread switch, which is more than a tiny job takes. So a processor whose
jobs are tiny reserves the turn while it performs them, and resumes it for the next fetch. One of
those that wait watches it: if the processor does not take its next job within a millisecond, its
job was not tiny, and the watcher takes the turn over (docs/decisions/003-leader-follower.md has the
figures). While each processor performs, a separate thread looks after what is leased ahead.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from ..config.capsule import Capsule
from ..store.connection import RedisConnection
from ..store.outage import Outage
from ..wire.lease import UnitOfWork
from .failure.ends import Ends, OpenEndings
from .fetch.channel import FetchChannel
from .fetch.fetcher import Fetcher
from .fetch.leases import Leases, moves
from .fetch.plan import FetchPace

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_TINY_JOBS: Final = 32  # in a row: then the turn is reserved
# Seconds. Python itself lets a busy thread run for 5 ms before another one gets the interpreter.
_RESERVED_FOR: Final = 1e-3

_Place: TypeAlias = "deque[bool]"


class Hand:
    """What one processor has: the unit that it took last, and perhaps the turn.

    An app can raise an exception in any thread at any bytecode (``PyThreadState_SetAsyncExc``). So
    units and turn move by ``moves``, and this object tells who has what even after its thread has
    died. ``turn`` has the token of the turn while the processor uses it; ``reserved`` has it while
    the processor performs a job, since ``reserved_at``, and another one may take it over.
    """

    __slots__ = ("reserve", "reserved", "reserved_at", "resume", "take_ready", "turn", "units")

    def __init__(self) -> None:
        self.units: deque[UnitOfWork] = deque()
        self.take_ready: Iterator[None] | None = None  # set by FetchTurn
        self.turn: _Place = deque()
        self.reserved: _Place = deque()
        self.reserved_at = 0.0
        self.reserve = moves(self.turn, self.reserved)
        self.resume = moves(self.reserved, self.turn)


class UnitSource(Protocol):
    """What processors take units from."""

    def take(self, hand: Hand) -> UnitOfWork | None:
        """The next unit, which is in ``hand``; waits for one. None: there will be none."""

    def abandon(self, hand: Hand) -> None:
        """Returns what a dead processor has in its hand."""


class FetchTurn:
    """What processors take jobs from. One token: free, with a processor, or reserved by one. Who
    has it has the turn, and drives the fetcher. Thread-safe."""

    def __init__(self, fetcher: Fetcher, leases: Leases, pace: FetchPace, ends: Ends) -> None:
        self._fetcher = fetcher
        self._leases = leases
        self._pace = pace
        self._ends = ends
        self.watch = LeaseWatch(fetcher)
        self._free: SimpleQueue[bool] = SimpleQueue()
        self._free.put(True)
        self._first_waiting = threading.RLock()
        self._absent: Hand | None = None  # who reserved the turn last
        self._watched = False

    def take(self, hand: Hand) -> UnitOfWork | None:
        """The next job to perform; waits for one. None once the child is quiet.

        The last job in ``hand`` is done with. If an exception is raised here, other processors go
        on.
        """
        hand.units.clear()
        try:
            take = hand.take_ready
            if take is None:
                take = hand.take_ready = self._leases.taker(hand.units)
            unit = self._fetcher.next(hand.units, take)
            if unit is None:
                return self._take_in_turn(hand, take)
            if hand.reserved:
                self.renew(hand, unit.taken)
        except BaseException:
            self._fetcher.drop_locks()
            self.drop_locks(hand)
            raise
        return unit

    def _take_in_turn(self, hand: Hand, take: Iterator[None]) -> UnitOfWork | None:
        """Takes the turn, drives the fetcher until a unit is ready, and leaves the turn again."""
        if not self.resume(hand):
            self.wait(hand)
        fetcher, watch = self._fetcher, self.watch
        while (unit := fetcher.next(hand.units, take)) is None and fetcher.step():
            watch.start_if_wanted()
        self.leave(hand, performs=unit is not None)
        if unit is not None:
            unit.taken = time.monotonic()
        return unit

    def abandon(self, hand: Hand) -> None:
        """Returns the job of a dead processor to its queue, and frees its turn."""
        self._leases.occupy(hand, on=False)
        units = self._leases.units()
        for unit in hand.units:
            if units.get(unit.sequence) is unit:
                self._fetcher.done(unit, self._ends.return_to_queue(unit))
        self.release(hand)

    def resume(self, hand: Hand) -> bool:
        """Takes back the turn that this processor reserved. False if it did not, or lost it."""
        if not hand.reserved:
            return False
        try:
            next(hand.resume)
        except IndexError:  # a watcher took it over just now
            return False
        return True

    def wait(self, hand: Hand) -> None:
        """Waits for the turn. The first processor that waits watches the one that has reserved
        it."""
        with self._first_waiting:
            while not self._acquire(hand, self._note_watch()):
                if self._take_over(hand):
                    break
            self._watched = False

    def leave(self, hand: Hand, *, performs: bool) -> None:
        """Ends the turn of a processor that goes to perform a job, or ends."""
        if performs and self._watched and self._pace.tiny_jobs >= _TINY_JOBS:
            hand.reserved_at = time.monotonic()
            self._absent = hand
            next(hand.reserve)
            # Only now look again: either we see here that no processor watches any more, or the
            # one that stopped watching sees in _note_watch that the turn is reserved.
            if self._is_watched() or not self.resume(hand):
                return
        self.release(hand)

    def renew(self, hand: Hand, since: float) -> None:
        """Reserves the turn anew for a processor that has it reserved, and that performs its next
        job ``since`` then, without a fetch in between."""
        if self._watched and self._pace.tiny_jobs >= _TINY_JOBS:
            hand.reserved_at = since  # if a watcher took the turn over just now, no harm
        else:
            self.release(hand)

    def release(self, hand: Hand) -> None:
        """Frees the turn if ``hand`` has it: its processor waits for no job, or is dead."""
        if hand.reserved:
            self._free_token(hand.reserved)
        if hand.turn:
            self._free_token(hand.turn)

    def drop_locks(self, hand: Hand) -> None:
        """Drops the lock of this thread, and frees its turn: an exception ended a call of the
        thread here."""
        with suppress(RuntimeError):  # another thread holds it
            self._first_waiting.release()
        self.release(hand)

    def _acquire(self, hand: Hand, seconds: float | None) -> bool:
        try:
            hand.turn.extend(map(self._free.get, (True,), (seconds,)))
        except Empty:
            return False
        return True

    def _free_token(self, token: _Place) -> None:
        with suppress(IndexError):  # a watcher took it over just now
            any(map(self._free.put, map(deque.pop, (token,))))

    def _is_watched(self) -> bool:
        return self._watched

    def _note_watch(self) -> float | None:
        """Notes whether the first that waits watches. Returns how long it may sleep before it looks
        again; None: until it is woken."""
        self._watched = self._pace.tiny_jobs >= _TINY_JOBS
        absent = self._absent
        is_reserved = absent is not None and bool(absent.reserved)
        return _RESERVED_FOR if self._watched or is_reserved else None

    def _take_over(self, hand: Hand) -> bool:
        """Takes the turn over from a processor that has reserved it for too long. False if none
        has."""
        absent = self._absent
        if absent is None or time.monotonic() - absent.reserved_at <= _RESERVED_FOR:
            return False
        try:
            next(moves(absent.reserved, hand.turn))
        except IndexError:
            return False
        self._pace.tiny_jobs = 0
        return True


class FetchParts(msgspec.Struct, frozen=True):
    """What fetches for a child, what processors take from, and how jobs end."""

    ends: Ends
    channel: FetchChannel
    leases: Leases
    fetcher: Fetcher
    turn: FetchTurn


def make_fetch(
    capsule: Capsule,
    ends: Ends,
    connection: RedisConnection,
    outage: Outage,
    log: FilteringBoundLogger,
    *,
    solo: bool = False,
    ahead: bool = True,
) -> FetchParts:
    """The parts of one child, which fetch from ``connection``. Only with ``ahead`` jobs are leased
    for which nothing is free."""
    channel = FetchChannel(capsule, ends.identity, ends.keys, connection, log, solo=solo)
    leases = Leases(capsule.concurrency, OpenEndings(log, outage))
    pace = FetchPace(capsule.concurrency, time.monotonic(), ahead=ahead and not solo)
    fetcher = Fetcher(channel, leases, pace, outage)
    return FetchParts(ends, channel, leases, fetcher, FetchTurn(fetcher, leases, pace, ends))


class LeaseWatch:
    """A thread, since each processor may be busy: it lets the fetcher look after jobs that are
    leased ahead. It begins with the first of them, and sleeps while nothing is due."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._thread: threading.Thread | None = None
        self._has_ended = False

    @property
    def runs(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start_if_wanted(self) -> None:
        """Starts the thread if jobs may be leased ahead and none runs: an exception may have ended
        it. If the system has none left, nothing is leased ahead. One thread at a time calls
        this."""
        if self._fetcher.watch == "none" or self._has_ended or self.runs:
            return
        thread = threading.Thread(target=self._run, name="lease-watch", daemon=True)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def end(self) -> None:
        """Ends the thread: no processor runs any more."""
        self._has_ended = True
        self._fetcher.note_watch(on=False)

    def _run(self) -> None:
        pause: float | None = 0.0
        self._fetcher.note_watch(on=True)
        try:
            while not self._has_ended:
                pause = self._fetcher.look(pause)
        except BaseException:
            self._fetcher.drop_locks()
            raise
        finally:
            self._fetcher.note_watch(on=False)
