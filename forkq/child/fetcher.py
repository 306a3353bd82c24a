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
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from ..capsule import Capsule
from ..connection import ConnectionLost, RedisError, Wire
from ..lease import Unit
from ..outage import Backoff, Outage
from .bell import Bell
from .herd import Herd
from .lead import Lead
from .line import Line

# A waiting child looks for itself now and then, in case a wake-up went astray. A server that is
# gone is noticed sooner, by keepalive.
_LONGEST_WAIT: Final = 60.0
# How often the leases in Redis are held against our own.
_LOOK_OVER: Final = 120.0
# Where the server does not tell of pushes, we ask: soon after a job, ever later when idle.
_POLL_FIRST: Final = 0.02
_POLL_LONGEST: Final = 1.0


class Fetcher:
    """Thread-safe: processors call ``take`` and ``acknowledge``, the manager the rest.

    A unit is in ``_in_flight`` from its fetch until it is settled; before a processor takes it, it
    is in ``_ready`` too; once done, it is in ``_done`` until a fetch has taken the news along.
    """

    def __init__(self, capsule: Capsule, line: Line, outage: Outage) -> None:
        self._concurrency = capsule.concurrency
        self._enough = max(1, capsule.concurrency * 3 // 4)
        self._line = line
        self._turn = threading.Lock()  # who talks to Redis just now
        self._lead = Lead()  # who waits for Redis on behalf of all
        self._bell = Bell()  # wakes the one who waits
        self._outage = outage
        self._backoff = Backoff()

        self._ready: deque[Unit] = deque()
        self._in_flight: dict[int, Unit] = {}
        self._done: deque[Unit] = deque()

        self._quiet = False
        self._waiting = False
        self._starved = False  # the last fetch brought less than it wanted
        self._told = False  # and the server will tell when there is more
        self._woken = False  # since then the server has told us something
        self._doubtful = False  # our books and Redis's may differ
        self._look_over_due = time.monotonic() + _LOOK_OVER
        self._poll = _POLL_FIRST
        self._herd = Herd()

        self._look: Callable[[Wire], None] = lambda wire: None
        self._on_lost: Callable[[Unit], None] = lambda unit: None

    # What processors call

    def take(self) -> Unit | None:
        """The next job to perform; waits for one. None once the child is quiet."""
        leading = self._lead.regain()
        unit = self._pop()
        if unit is None:
            if not leading:
                self._lead.wait()
            unit = self._next()
            leading = True
        if leading:
            self._lead.leave(keep=unit is not None)
        if unit is not None:
            unit.taken = time.monotonic()
        return unit

    def acknowledge(self, unit: Unit) -> None:
        """``unit`` is done: its lease is dropped with the next fetch."""
        self._done.append(unit)  # first: a unit must never be in neither book
        self._in_flight.pop(unit.sequence, None)  # or it was abandoned meanwhile
        self._lead.performed(time.monotonic() - unit.taken)
        if self._waiting:
            self._bell.ring()

    def forget(self, unit: Unit) -> None:
        """``unit`` was settled by another script, or belongs to somebody else by now."""
        self._in_flight.pop(unit.sequence, None)
        if unit.lost:
            self._on_lost(unit)
        # Whoever is about to wait must hear of it, too: a fetch that counted this unit as ours may
        # have found its queue full.
        self._bell.ring()

    # What losses.py needs

    def report_losses(
        self, *, look: Callable[[Wire], None], on_lost: Callable[[Unit], None]
    ) -> None:
        """Has ``look`` called whenever leases may have been taken from us, or an acknowledgement
        found none, on a wire that is free just then; and ``on_lost`` when a unit is forgotten that
        is marked lost."""
        self._look, self._on_lost = look, on_lost

    def find(self, sequence: int) -> Unit | None:
        """The unit in flight of that number, if there is one."""
        return self._in_flight.get(sequence)

    def has_heard(self, sequence: int) -> bool:
        """Whether we know all that became of the fetch that asked for that number."""
        return self._line.has_heard(sequence)

    # What the manager calls

    def abandon(self, thread: int) -> None:
        """The processor of that thread died: its job goes back to its queue."""
        for unit in self.in_flight():
            if unit.thread == thread:
                self._in_flight.pop(unit.sequence, None)
                self._doubtful = True  # the next exchange gives back what nobody here knows of
                self._bell.ring()

    def quiet(self) -> None:
        """Fetches nothing more. Processors get what is leased already, then None."""
        self._quiet = True
        self._bell.ring()

    def in_flight(self) -> list[Unit]:
        """Every unit whose lease this child holds, performed or about to be."""
        return list(self._in_flight.values())

    def flush(self) -> None:
        """Sends what is done but could not be sent when the last processor ended."""
        if self._quiet and self._done:
            self._exchange()

    def give_back(self) -> bool:
        """Acknowledges what is done and puts all else back to the head of its queue.

        Call it when no processor runs any more. False if Redis did not take it: the leases stay,
        and whoever finds their owner gone puts them back.
        """
        with self._turn:
            try:
                self._square(keep=())
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
            self._in_flight.clear()
            self._ready.clear()
            return True

    # What any processor does when it takes a job

    def _pop(self) -> Unit | None:
        unit = self._pop_ready()
        if unit is None:
            return None
        if self._done and (len(self._done) >= self._enough or self._all_busy()):
            self._send_ahead()
        return unit

    def _pop_ready(self) -> Unit | None:
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def _all_busy(self) -> bool:
        """Whether no processor is left that would lead, and so send what is done."""
        return len(self._in_flight) - len(self._ready) >= self._concurrency

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

    def _next(self) -> Unit | None:
        """Waits for a job: on behalf of all, but its own comes first."""
        try:
            while not self._quiet:
                unit = self._pop_ready()
                if unit is not None:
                    return unit
                self._refill()
            return self._last()
        except BaseException:
            self._lead.leave(keep=False)  # this thread will die of it; the others must go on
            raise

    def _last(self) -> Unit | None:
        """After quiet: what an earlier fetch still brings, then nothing; tells what is done."""
        while (unit := self._pop_ready()) is None and (self._line.busy or self._done):
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
        elif not self._ready and not self._line.tracks:
            self._wait()

    def _wait(self) -> None:
        """Until the server tells of a change, a processor of news, or the time is up."""
        self._lead.calm()
        self._waiting = True
        try:
            if self._done or self._quiet:
                return
            if self._line.tracks:
                self._woken = self._line.wait(_LONGEST_WAIT, self._bell.fd)
                if self._woken:
                    self._rest(self._herd.patience())
            else:
                self._rest(self._poll)
                self._poll = min(self._poll * 1.5, _POLL_LONGEST)
        except ConnectionLost as error:
            self._fail(error)
        finally:
            self._waiting = False
            self._bell.hush()

    def _rest(self, seconds: float) -> None:
        """Waits out a pause, unless the child goes quiet or there is something to tell."""
        self._lead.calm()
        deadline = time.monotonic() + seconds
        while not self._quiet and (left := deadline - time.monotonic()) > 0:
            self._bell.sleep(left)
            if self._done and self._line.is_open:
                return

    # What whoever has the turn does

    def _exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the answer. False if Redis failed."""
        with self._turn:
            try:
                if self._doubtful or not self._line.is_open:
                    self._square(keep=tuple(self._in_flight))
                if not self._line.busy:
                    self._request()
                self._take_in()
                self._look_over()
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
        self._backoff.reset()
        self._outage.end()
        return True

    def _look_over(self) -> None:
        """Once in a while: a command of a connection that was given up may still have arrived, and
        have leased jobs that nobody here knows of."""
        if time.monotonic() < self._look_over_due:
            return
        self._look_over_due = time.monotonic() + _LOOK_OVER
        known = tuple(self._in_flight)  # before what is done: a unit goes from there to here
        self._line.requeue((*known, *(unit.sequence for unit in list(self._done))))

    def _request(self) -> None:
        self._line.look_for_queues()
        news = self._news()
        held = self._held(news) if self._line.counts else None
        want = 0 if self._quiet else self._concurrency - len(self._in_flight)
        self._line.send(want, news, watch=self._starved and self._line.tracks, held=held)

    def _held(self, news: Iterable[Unit]) -> Counter[str]:
        """How many jobs of each queue are in flight. Those that are done may not be out of that
        book yet; any other that ends meanwhile rings the bell, or is in the news when we wait."""
        done = {unit.sequence for unit in news}
        return Counter(unit.queue_name for unit in self.in_flight() if unit.sequence not in done)

    def _take_in(self) -> None:
        answer = self._line.receive()
        self._starved, self._told = answer.short, answer.told
        self._herd.judge(woken=self._woken, won=bool(answer.units))
        self._woken = False
        for unit in answer.units:
            self._in_flight[unit.sequence] = unit
            self._ready.append(unit)
            self._poll = _POLL_FIRST
        if answer.gone:
            self._look(self._line.wire)

    def _news(self) -> list[Unit]:
        """What is done, taken one by one: others add to it meanwhile."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def _fail(self, error: BaseException) -> None:
        """After any failure we no longer know what the server did: ask before going on."""
        self._doubtful = True
        self._done.extend(self._line.hang_up())
        self._outage.begin(error)

    def _square(self, keep: tuple[int, ...]) -> None:
        """Opens the line and squares our books with Redis's.

        A fetch whose answer was lost may have leased jobs that nobody here knows of. They go back
        to the head of their queues; what is done is acknowledged first, so that it stays done.
        """
        if self._doubtful:
            self._done.extend(self._line.hang_up())
        self._line.open()
        if self._line.busy:
            self._take_in()
        self._line.send(0, self._news())
        self._take_in()
        self._line.requeue(keep)
        self._look(self._line.wire)
        self._doubtful = False
