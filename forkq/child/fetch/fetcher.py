"""The one fetcher of a child: leases jobs for its processors and acknowledges what they finish.

There is no fetcher thread. Processors take from a shared deque, and whichever finds it empty
leads: it talks to Redis, and fills the deque for the others (lead.py). Whenever a processor is
free, somebody is listening to Redis. Acknowledgements travel in the next fetch; while the last
batch still runs, the next fetch is already under way.

Never are more jobs leased than there are processors, so a job that is fetched starts at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ...config.capsule import Capsule
from ...store.connection import IDLE, ConnectionLost, RedisConnection, RedisError
from ...store.outage import Backoff, Outage
from ...wire.lease import UnitOfWork
from .fetch_connection import FetchConnection
from .fetch_turn import FetchTurn, Hand
from .in_flight import InFlight
from .waker import Waker
from .wakeup_backoff import WakeupBackoff

# A waiting child looks for itself now and then, in case a wake-up went astray. A server that is
# gone is noticed sooner, by keepalive.
_LONGEST_WAIT: Final = 60.0
# How often the leases in Redis are held against our own.
_LOOK_OVER: Final = 120.0


class Fetcher:
    """Thread-safe: processors call ``take`` and ``acknowledge``, the manager the rest."""

    def __init__(self, capsule: Capsule, line: FetchConnection, outage: Outage) -> None:
        self._concurrency = capsule.concurrency
        self._enough = max(1, capsule.concurrency * 3 // 4)
        self._line = line
        self._turn = threading.RLock()  # who talks to Redis just now; it knows its owner
        self._lead = FetchTurn()  # who waits for Redis on behalf of all
        self._waker = Waker()  # wakes the one who waits
        self._reach = outage.part("redis gives no jobs", "redis gives jobs again")
        self._backoff = Backoff()

        self._books = InFlight()

        self._quiet = False
        self._waiting = False
        self._starved = False  # the last fetch brought less than it wanted
        self._told = False  # and the server will tell when there is more
        self._woken = False  # since then the server has told us something
        self._doubtful = False  # our books and Redis's may differ
        self._look_over_due = time.monotonic() + _LOOK_OVER
        self._herd = WakeupBackoff()

        self._look: Callable[[RedisConnection], None] = lambda connection: None
        self._on_lost: Callable[[UnitOfWork], None] = lambda unit: None

    # What processors call

    def take(self, hand: Hand | None = None) -> UnitOfWork | None:
        """The next job to perform; waits for one. None once the child is quiet. What ``hand`` holds
        of its last job is done with. Whatever is raised here, the others can go on."""
        hand = Hand() if hand is None else hand
        hand.units.clear()
        try:
            unit = self._take(hand)
        except BaseException:
            self._doubtful = True  # it may have struck between a request and its answer
            with suppress(RuntimeError):  # the turn is not ours
                self._turn.release()
            self._lead.recover(hand)
            raise
        if unit is not None:
            unit.taken = time.monotonic()
        return unit

    def _take(self, hand: Hand) -> UnitOfWork | None:
        leading = self._lead.resume(hand)
        unit = self._pop(hand)
        if unit is None:
            if not leading:
                self._lead.wait(hand)
            unit = self._next(hand)
            leading = True
        if leading:
            self._lead.leave(hand, performs=unit is not None)
        return unit

    def acknowledge(self, unit: UnitOfWork) -> float:
        """``unit`` is done: its lease is dropped with the next fetch. Returns the seconds since it
        was taken."""
        self._books.finish(unit)
        elapsed = time.monotonic() - unit.taken
        self._lead.performed(elapsed)
        if self._waiting:
            self._waker.ring()
        return elapsed

    def forget(self, unit: UnitOfWork) -> None:
        """``unit`` was settled by another script, or belongs to somebody else by now."""
        self._books.forget(unit)
        if unit.lost:
            self._on_lost(unit)
        # Whoever is about to wait must hear of it, too: a fetch that counted this unit as ours may
        # have found its queue full.
        self._waker.ring()

    def park(self, unit: UnitOfWork) -> None:
        """``unit`` keeps its lease, but its processor is free for another one."""
        unit.thread = 0
        self._books.park(unit)
        self._waker.ring()  # whoever waits may fetch again

    # What losses.py needs

    def report_losses(
        self, *, look: Callable[[RedisConnection], None], on_lost: Callable[[UnitOfWork], None]
    ) -> None:
        """Has ``look`` called whenever leases may have been taken from us, or an acknowledgement
        found none, on a wire that is free just then; and ``on_lost`` when a unit is forgotten that
        is marked lost."""
        self._look, self._on_lost = look, on_lost

    def report_gaps(self, told: Callable[[], None]) -> None:
        """Has ``told`` called when what this child wrote in Redis may be gone: the connection is
        new, or the server says that all keys are gone."""
        self._line.on_gap = told

    def note_queues_again(self) -> None:
        """The note of the queues that we may hold leases of may be gone."""
        self._line.note_queues_again()

    def find(self, sequence: int) -> UnitOfWork | None:
        """The unit in flight of that number, if there is one."""
        return self._books.in_flight.get(sequence)

    def has_heard(self, sequence: int) -> bool:
        """Whether we know all that became of the fetch that asked for that number."""
        return self._line.has_heard(sequence)

    # What the manager calls

    def abandon(self, hand: Hand) -> None:
        """The processor of ``hand`` died: its job goes back to its queue, and its lead is free."""
        for unit in hand.units:
            if self.find(unit.sequence) is unit:
                self._books.forget(unit)
                self._doubtful = True  # the next exchange gives back what nobody here knows of
                self._waker.ring()
        self._lead.release(hand)

    def quiet(self) -> None:
        """Fetches nothing more. Processors get what is leased already, then None."""
        self._quiet = True
        self._waker.ring()

    def in_flight(self) -> list[UnitOfWork]:
        """Every unit whose lease this child holds, performed or about to be."""
        return self._books.units()

    def flush(self) -> None:
        """Sends what is done but could not be sent when the last processor ended."""
        if self._quiet and self._books.done:
            self._exchange()

    def give_back(self) -> bool:
        """Acknowledges what is done and puts all else back to the head of its queue.

        Call it when no processor runs any more. False if Redis did not take it: the leases stay,
        and whoever finds their owner gone puts them back.
        """
        with self._turn:
            try:
                complete = self._square(keep=())
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
            self._books.clear()
            return complete

    # What any processor does when it takes a job

    def _pop(self, hand: Hand) -> UnitOfWork | None:
        unit, done = self._books.next(hand), self._books.done
        if unit is not None and done and (len(done) >= self._enough or self._all_busy()):
            self._send_ahead()
        return unit

    def _all_busy(self) -> bool:
        """Whether no processor is left that would lead, and so send what is done."""
        books = self._books
        return len(books.in_flight) - len(books.ready) - len(books.parked) >= self._concurrency

    def _room(self) -> int:
        """How many jobs the processors can take."""
        return 0 if self._quiet else max(0, self._concurrency - self._books.working())

    def _send_ahead(self) -> None:
        """Sends the next fetch now; whoever leads next reads the answer."""
        if not self._turn.acquire(blocking=False):
            return  # somebody is about to send it
        try:
            if self._line.is_open and not self._line.busy and not self._doubtful:
                self._request()
        except (*ConnectionLost, RedisError) as error:
            self._fail(error)
        finally:
            self._turn.release()

    # What the leader does

    def _next(self, hand: Hand) -> UnitOfWork | None:
        """Waits for a job: on behalf of all, but its own comes first."""
        while not self._quiet:
            unit = self._books.next(hand)
            if unit is not None:
                return unit
            self._refill()
        return self._last(hand)

    def _last(self, hand: Hand) -> UnitOfWork | None:
        """After quiet: what an earlier fetch still brings, then nothing; tells what is done."""
        while (unit := self._books.next(hand)) is None and (
            self._line.busy or self._books.done
        ):
            if not self._exchange():
                break  # Redis is away: flush and give_back come later
        return unit

    def _refill(self) -> None:
        """Waits, if the last exchange left nothing to be had; or else one exchange with Redis."""
        if self._told and not self._line.busy:
            self._told = False
            self._wait()
        elif not self._exchange():
            self._rest(self._backoff.pause())
        elif not self._books.ready and (not self._line.tracks or self._room() == 0):
            self._wait()

    def _wait(self) -> None:
        """Until the server tells of a change, a processor of news, or the time is up."""
        self._lead.idle()
        self._waiting = True
        began = time.monotonic()
        try:
            if self._books.done or self._quiet:
                return
            if self._line.tracks:
                self._woken = self._line.wait(_LONGEST_WAIT, self._waker.fd)
                if self._woken:
                    self._rest(self._herd.patience())
            else:
                self._rest(self._herd.pause())
        except ConnectionLost as error:
            if self._line.busy or time.monotonic() < began + IDLE:
                self._fail(error)
            else:
                self._hang_up()  # no outage, unless we cannot connect anew
        finally:
            self._waiting = False
            self._waker.hush()

    def _rest(self, seconds: float) -> None:
        """Waits out a pause, unless the child goes quiet or there is something to tell."""
        self._lead.idle()
        deadline = time.monotonic() + seconds
        while not self._quiet and (left := deadline - time.monotonic()) > 0:
            self._waker.sleep(left)
            if self._books.done and self._line.is_open:
                return

    # What whoever has the turn does

    def _exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the answer. False if Redis failed."""
        with self._turn:
            try:
                if self._doubtful or not self._line.is_open:
                    self._square(keep=tuple(self._books.in_flight))
                if not self._line.busy:
                    self._request()
                self._take_in()
                self._look_over()
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
            except BaseException:
                self._doubtful = True  # this thread dies of it; what it fetched must not be lost
                raise
        self._backoff.reset()
        self._reach.end()
        return True

    def _look_over(self) -> None:
        """Once in a while: a command of a connection that was given up may still have arrived, and
        have leased jobs that nobody here knows of."""
        if time.monotonic() < self._look_over_due:
            return
        self._look_over_due = time.monotonic() + _LOOK_OVER
        self._line.requeue(self._books.known())
        self._line.note_queues_again()

    def _request(self) -> None:
        self._line.look_for_queues()
        news = self._books.news()
        held = self._books.held(news) if self._line.counts else None
        self._line.send(self._room(), news, watch=self._starved and self._line.tracks, held=held)

    def _take_in(self) -> None:
        answer = self._line.receive()
        self._starved, self._told = answer.short, answer.told
        self._herd.judge(woken=self._woken, won=bool(answer.units))
        self._woken = False
        self._books.add(answer.units)
        if answer.gone:
            self._look(self._line.connection)

    def _fail(self, error: BaseException) -> None:
        """After any failure we no longer know what the server did: ask before going on."""
        self._hang_up()
        self._reach.begin(error)

    def _hang_up(self) -> None:
        self._doubtful = True
        self._books.done.extend(self._line.hang_up())

    def _square(self, keep: tuple[int, ...]) -> bool:
        """Opens the line and squares our books with Redis's. False if a queue is damaged: its
        leases stay.

        A fetch whose answer was lost may have leased jobs that nobody here knows of. They go back
        to the head of their queues; what is done is acknowledged first, so that it stays done.
        """
        if self._doubtful:
            self._books.done.extend(self._line.hang_up())
        self._line.open()
        if self._line.busy:
            self._take_in()
        self._line.send(0, self._books.news())
        self._take_in()
        complete = self._line.requeue(keep)
        self._look(self._line.connection)
        self._doubtful = False
        return complete
