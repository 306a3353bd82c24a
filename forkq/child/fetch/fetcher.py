"""The one fetcher of a child: leases jobs for its consumers, and tells Redis how they ended.

It has no thread. The thread that drives it calls ``step`` again and again: it plans, exchanges with
Redis, or waits: the processor whose turn it is (fetch_turn.py), while another one may send the next
fetch between two jobs, and a watch looks while all are busy; or a thread (fetch_thread.py).

A fetch tells how jobs ended. It brings those that can begin now, or within some milliseconds
(plan.py). What does not start in that time goes back. A solo child fetches one suspect at a time.

After a failure this child no longer knows which leases Redis has for it. It compares them before it
fetches on: what has ended is told, and Redis returns each lease that is unknown here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, Literal

from ...store.connection import RedisConnection, RedisError
from ...store.outage import Outage, ended_idle, reconnect_backoff
from ...store.watch.waker import Waker
from ...wire.lease import UnitOfWork
from ...wire.times import steady
from ..failure.ends import DONE, Ending
from . import plan
from .channel import Exchange, FetchChannel
from .leases import Leased, Leases
from .plan import FetchPace, FetchPlan, FetchState

# All in seconds. This host may have stood still since a lease that old was asked for, and another
# one may have it.
_OLD_LEASE: Final = 20.0
# How often leases that are unknown here are returned though nothing has failed.
_COMPARE_EVERY: Final = 120.0
# Until Redis is asked again: for leases that it may have given to another host; in an outage.
_ASK_AGAIN: Final = 1.0
# Until a processor looks again for a reply that has not come.
_LOOK_AGAIN: Final = 0.00025


class Fetcher:
    """Thread-safe: consumers call ``next`` and ``done``, drivers ``step`` and ``look``, the manager
    the rest. The thread that has the lock uses the channel, or the one that waits."""

    def __init__(
        self, channel: FetchChannel, leases: Leases, pace: FetchPace, outage: Outage
    ) -> None:
        self.look_for_lost: Callable[[RedisConnection], None] = lambda connection: None
        self._channel = channel
        self._leases = leases
        self._pace = pace
        self._outage = outage.part("redis gives no jobs", "redis gives jobs again")
        self._backoff = reconnect_backoff(channel.connection)
        self._waker = Waker()  # wakes the driver
        leases.wake = self._waker.wake
        channel.queues.portions.on_freed = self._waker.wake
        self._lock = threading.RLock()  # an RLock knows its owner: see drop_locks
        self._mode: Literal["on", "paused", "quiet"] = "on"
        self._state: FetchState = "plenty"
        self._plan = FetchPlan()
        self._look_at = inf  # for the reply under way (monotonic); infinity: none is
        self._fresh_until = 0.0  # times.steady: until then no ready unit has an old lease
        self._news: SimpleQueue[bool] = SimpleQueue()  # for the watch
        self.watch: Literal["none", "wanted", "paused", "running"] = "none"

    # What consumers ask

    def next(self, place: deque[UnitOfWork], take: Iterator[None]) -> UnitOfWork | None:
        """The next ready unit, which ``take`` moves to the consumer's ``place`` (``Leases.taker``);
        None if no unit is ready."""
        now = monotonic()
        if steady() > self._fresh_until and not self._confirm_old():
            return None
        try:
            next(take)
        except IndexError:  # there is none
            return None
        none_under_way = self._look_at == inf
        if self._leases.is_low(self._plan.low) if none_under_way else now >= self._look_at:
            self._go_on()
        unit = place[-1]
        unit.taken = now
        return unit

    def done(self, unit: UnitOfWork, ending: Ending | None = None) -> float:
        """Notes that ``unit`` has ended: the next exchange drops its lease, or does what ``ending``
        says. This never blocks. Returns the seconds since it was taken."""
        self._leases.end(unit, ending)
        elapsed = monotonic() - unit.taken
        if ending is None or ending.kind == DONE:
            self._pace.performed(elapsed)
        if self._state == "waiting":
            self._leases.wake()
        return elapsed

    # What the manager and the heartbeat ask

    def quiet(self) -> None:
        """Fetches nothing more. Consumers get what is leased already, then None."""
        self._mode = "quiet"
        self._news.put(True)  # the watch looks now
        self._waker.wake()

    def pause(self, *, on: bool) -> None:
        """Fetches nothing for now, or fetches again. What is leased goes on."""
        mode: Literal["on", "paused"] = "paused" if on else "on"
        if self._mode not in ("quiet", mode):
            self._mode = mode
            self._waker.wake()

    @property
    def owes(self) -> bool:
        """Whether Redis has yet to confirm the end of a job."""
        if not self._lock.acquire(blocking=False):
            return True  # a thread talks to Redis
        try:
            return self._leases.count().ended > 0 or self._channel.under_way is not None
        finally:
            self._lock.release()

    @property
    def is_drained(self) -> bool:
        """Whether no job is left that a death of this process would harm: what is parked waits for
        Redis alone."""
        count = self._leases.count()
        return count.ready + count.running == 0 and not self.owes

    def flush(self, ending: Ending | None = None, *, wait: bool = True) -> bool:
        """Tells Redis ``ending``, or all that has ended. A driver that waits has the channel, and
        does it. Once quiet, leases are compared, too, if they must be. Does not ``wait``: leaves
        the reply to the next driver. False if Redis failed."""
        with self._lock:
            if self._state == "waiting":
                self._waker.wake()
                return True
            if ending is not None and not wait:
                if ending.is_queued and not self._leases.must_compare:  # else it is sent, or later
                    self._attempt(self._request)
                return True
            if self._channel.under_way is not None and not self._exchange():
                return False  # that one tells what had ended before it was sent
            if ending is not None and ending.is_told:  # or with those of another thread
                return True
            must_compare = self._mode == "quiet" and self._leases.must_compare
            return not (self._has_news() or must_compare) or self._exchange()

    def give_back(self) -> bool:
        """Tells Redis what has ended, and returns all else to the head of its queue. No consumer
        may run. False: Redis refused, or a queue is damaged; a rescue or a sweep does the rest."""
        asked = monotonic()
        with self._lock:
            self._leases.endings.hurry()  # the last chance of what Redis has refused
            while self._has_news() and self._exchange():
                pass
            complete = self._attempt(lambda: self._compare(keep=tuple))
            if complete is None:
                return False
            self._leases.returned(all_of_them=True)
        self._outage.end(asked)
        return bool(complete)

    # What drivers do

    def step(self) -> bool:
        """Does one step of the table in plan.py. False once quiet, if no end is left to tell."""
        if self._mode == "quiet":
            return self._has_news() and self._exchange()
        seen = self._state
        if seen == "tracked" and self._channel.under_way is None:
            self._wait(seen)
        elif not self._exchange():
            self._wait_out(self._backoff.pause())
        else:
            count = self._leases.count()
            if not count.ready and not (self._channel.tracks and self._free(count)):
                self._wait(self._state)  # Redis will not say when there is more
        return True

    def look(self, pause: float | None) -> float | None:
        """Does what is due while all processors perform; the watch calls it. Returns the next
        pause; None: until there is news."""
        with suppress(Empty):
            self._news.get(timeout=pause)
        self.watch = "running"
        if (found := self._look()) is None:
            self.watch = "paused"
            found = self._look()  # for what came before
        return found

    def note_watch(self, *, on: bool) -> None:
        """A thread calls ``look`` from now on, or none does: then nothing is leased ahead."""
        self.watch = "running" if on else "none"
        self._news.put(True)

    def drop_locks(self) -> None:
        """After an exception in a call of this thread: drops its lock. Leases must be compared."""
        self._leases.must_compare = True
        with suppress(RuntimeError):  # another thread holds it
            self._lock.release()

    # Waiting: the driver has the channel meanwhile

    def _wait(self, seen: FetchState) -> None:
        self._pace.tiny_jobs = 0
        with self._lock:
            if self._leases.count().ready or self._state != seen:
                return
            self._state = "waiting"
        began, notified = monotonic(), False
        try:
            if not self._has_news() and self._mode != "quiet":
                notified = self._wait_for_change()
        except RedisError as error:
            if self._channel.under_way is not None or not ended_idle(error, began):
                self._failed(error)
            else:
                self._disconnect()
        finally:
            self._state = "notified" if notified else "short"
            self._waker.clear(seen=not notified)

    def _wait_for_change(self) -> bool:
        """Waits until Redis says that a key changed. False if the wait ended for another reason."""
        if not self._channel.tracks:
            self._wait_out(self._pace.next_poll_pause())
            return False
        want = min(self._free(self._leases.count()), self._pace.fitting)
        notified = self._channel.wait(self._waker.fd, want)
        if notified and (pause := self._pace.woken(monotonic())):
            self._wait_out(pause)
            self._channel.read_changes()
        return notified

    def _wait_out(self, seconds: float) -> None:
        """Waits out a pause, unless the child goes quiet or there is an end to tell."""
        self._pace.tiny_jobs = 0
        deadline = monotonic() + seconds
        while self._mode != "quiet" and (left := deadline - monotonic()) > 0:
            self._waker.sleep(left)
            count = self._leases.count()
            if count.ready or (count.ended and not self._leases.must_compare):
                return

    # The exchange: the caller has the lock

    def _attempt(self, action: Callable[[], float | None]) -> float | None:
        """What ``action`` returns; None if Redis failed."""
        try:
            return action()
        except RedisError as error:
            self._failed(error)
        except BaseException:
            self._leases.must_compare = True  # this thread dies of it; what it fetched must go back
            raise
        return None

    def _exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the reply. False if Redis failed."""
        with self._lock:
            if (asked := self._attempt(self._exchange_once)) is None:
                return False
        self._outage.end(asked)
        if self._backoff.failures:  # a driver may rest, and Redis is back
            self._backoff.reset()
            self._waker.wake()
        return True

    def _exchange_once(self) -> float:
        if self._leases.must_compare:
            self._compare(keep=self._leases.sequences)
        at_once = self._channel.under_way is None
        if at_once and not (self._state == "notified" and self._request_prepared()):
            self._request()
        began, had_none = monotonic(), not self._leases.count().ready
        exchange = self._take_in()
        if had_none:
            self._pace.waited(monotonic() - began)
        if at_once and had_none:
            self._pace.measured(exchange.seconds)
        self._compare_in_time()
        return exchange.sent_at  # another part of this process may have lost Redis since

    def _request(self) -> None:
        """Sends a fetch, after the reply to the one under way."""
        if self._channel.under_way is not None:
            self._take_in()
        count = self._make_plan()
        free = self._free(count)
        want = min(plan.wanted(free, self._ahead(count)), self._pace.fitting)
        self._channel.send(want, self._leases, free=free, register=self._state != "plenty")
        self._look_at = plan.first_look(self._pace, monotonic())

    def _request_prepared(self) -> bool:
        """Sends the fetch that was made before the wait, if it will still do."""
        count = self._leases.count()
        want = min(self._free(count), self._pace.fitting)
        if count.ended or count.due or not self._channel.send_prepared(want):
            return False
        self._make_plan()  # the idle time before must not count
        return True

    def _take_in(self) -> Exchange:
        """Reads the reply to the exchange under way."""
        exchange = self._channel.under_way
        try:
            reply = self._channel.receive()
        finally:
            if exchange is not None and (sent := exchange.sent.endings):
                self._leases.settle([one for one in sent if one.reply is not None])
        self._look_at = inf
        woken, ruled, short = self._state == "notified", reply.ruled, reply.short
        self._pace.replied(monotonic(), reply.seconds, reply.largest, ruled=ruled, woken=woken)
        self._state = plan.state_after(self._state, reply.want, short=short, tracked=reply.tracked)
        if self._leases.add(reply.units):
            self._fresh_until = reply.asked + _OLD_LEASE
        if self.watch in ("paused", "running"):
            self._watch_over(brought=bool(reply.units))
        if reply.lease_gone:
            self.look_for_lost(self._channel.connection)
        return reply

    def _go_on(self) -> None:
        """Between two jobs of any consumer: reads the reply to the exchange under way, if it has
        come, and sends the next one if it is due."""
        if not self._lock.acquire(blocking=False):
            return  # another thread talks to Redis
        try:
            if self._state != "waiting" and not self._leases.must_compare:
                self._attempt(self._go_on_once)
        finally:
            self._lock.release()

    def _go_on_once(self) -> bool:
        if self._channel.under_way is not None:
            if not self._channel.has_reply:
                self._look_at = monotonic() + _LOOK_AGAIN
                return False
            self._take_in()
            self._compare_in_time()
        if plan.is_time_to_send(self._plan.low, self._leases.count()):
            self._request()
            if self.watch == "paused":  # each processor may be busy when the reply comes
                self._news.put(True)
        return True

    def _has_news(self) -> bool:
        count, channel = self._leases.count(), self._channel
        return any((count.ended + count.due, channel.under_way, channel.queues.portions.freed))

    def _make_plan(self) -> Leased:
        units = self._leases.units().values()
        count = self._leases.count()  # second: meanwhile others take ready units, and add none
        began = (unit.taken for unit in islice(units, len(units) - count.ready))
        now = monotonic()
        self._plan = self._pace.plan(now, count.started, began)
        is_watch_needed = self._plan.depth or self._plan.expects_ends
        if self.watch == "none" and is_watch_needed and not self._pace.is_ruled(now):
            self.watch = "wanted"
        return count

    def _free(self, count: Leased) -> int:
        """How many more jobs can begin."""
        return count.free if self._mode == "on" else 0

    def _ahead(self, count: Leased) -> int:
        """How many jobs may be asked for, leased ahead included."""
        if self._mode != "on" or not self._plan.depth or self.watch in ("none", "wanted"):
            return 0
        if count.parked or self._pace.is_ruled(monotonic()):
            return 0
        return count.capacity + self._plan.depth - count.occupying

    # What the watch finds

    def _look(self) -> float | None:
        if not self._lock.acquire(blocking=False):
            return self._pace.horizon / 2  # another thread talks to Redis
        try:
            is_driven = self._state == "waiting" or not self._leases.count().all_busy
            if not is_driven and not self._attempt(self._look_once):
                return _ASK_AGAIN
            count, reply_at = self._leases.count(), self._reply_at()
            return plan.pause_of_watch(self._plan, self._pace, monotonic(), count, reply_at)
        finally:
            self._lock.release()

    def _look_once(self) -> bool:
        """Does what a driver would do, while each processor performs."""
        channel, leases, now = self._channel, self._leases, monotonic()
        if leases.must_compare:
            return self._exchange()
        before = inf if self._mode == "quiet" else now - self._pace.late_after
        is_late, reply_at = leases.count().oldest < before, self._reply_at()
        if reply_at is not None and (is_late or reply_at <= now):
            self._take_in()  # what it brings is younger: it goes back first
        if is_late:
            self._return_surplus()
        if channel.under_way is None:
            count = self._make_plan()
            quiet, now = self._mode == "quiet", monotonic()
            if plan.is_due_while_all_are_busy(self._plan, self._pace, now, count, quiet=quiet):
                self._request()
        return True

    def _reply_at(self) -> float | None:
        """When the reply to the exchange under way is due; None without one."""
        if (exchange := self._channel.under_way) is None:
            return None
        quiet = self._mode == "quiet"
        return plan.reply_due(self._plan, self._pace, exchange.sent_at, quiet=quiet)

    def _watch_over(self, *, brought: bool) -> None:
        is_surplus, under_way = self._leases.count().has_surplus, self._channel.under_way
        cannot_keep = self._mode == "quiet" or self._pace.is_ruled(monotonic())
        is_due = is_surplus or under_way is not None or (brought and self._plan.expects_ends)
        if is_surplus and under_way is None and cannot_keep:
            self._return_surplus()
        elif self.watch == "paused" and is_due:
            self._news.put(True)

    def _return_surplus(self) -> None:
        if surplus := self._leases.take_surplus():
            if not self._channel.return_leases(surplus):
                self._leases.must_compare = True  # so that the jobs of the other queues go back
            self._leases.returned()
            self._state = plan.state_after_loss(self._state)

    # Failures

    def _failed(self, error: BaseException) -> None:
        """Notes that Redis failed: this child no longer knows what Redis did."""
        self._disconnect()
        self._outage.begin(error)

    def _disconnect(self) -> None:
        """Closes the connection. The next exchange tells what the one under way was to tell."""
        self._leases.must_compare = True
        self._look_at = inf
        self._state = plan.state_after_loss(self._state)
        if self._channel.under_way is not None:
            self._pace.reply_lost()
        self._channel.disconnect(self._leases)

    def _confirm_old(self) -> bool:
        """Compares leases if ready units have old ones: none may begin until Redis has told which
        are lost (lost_leases.py). False if the child is quiet by then."""
        since, oldest = steady() - _OLD_LEASE, self._leases.count().oldest_lease
        if oldest == inf:
            return True
        self._fresh_until = oldest + _OLD_LEASE
        if oldest >= since:
            return True
        while True:
            with self._lock:  # else each processor would have them compared again
                self._leases.must_compare |= self._leases.compared_at < since
                if not self._leases.must_compare or self._exchange():
                    return True
            if self._mode == "quiet":
                return False
            time.sleep(_ASK_AGAIN)

    def _compare_in_time(self) -> None:
        """Compares leases now and then: a late command of a connection that was given up may have
        leased unknown jobs."""
        if (now := steady()) >= self._leases.compared_at + _COMPARE_EVERY:
            self._return_all_but(self._leases.sequences(), now)
            self._channel.note_queues_again()

    def _compare(self, keep: Callable[[], Iterable[int]]) -> bool:
        """Opens the connection, tells what has ended, and has Redis return each lease of this child
        but those that ``keep`` names: a fetch with a lost reply may have leased jobs that are
        unknown here. False if a queue is damaged: its leases stay."""
        began = steady()
        # First: what another thread forgets from here on, the next exchange compares.
        must, self._leases.must_compare = self._leases.must_compare, False
        if must:
            self._channel.disconnect(self._leases)
        self._channel.open()
        if self._channel.under_way is not None:
            self._take_in()
        if self._has_news():
            self._channel.send(0, self._leases)
            self._take_in()
        return self._return_all_but(keep(), began)

    def _return_all_but(self, keep: Iterable[int], now: float) -> bool:
        complete = self._channel.compare_leases(keep)
        self._leases.returned()
        self._state = plan.state_after_loss(self._state)  # what went back is not reported
        self.look_for_lost(self._channel.connection)
        self._leases.compared_at = now
        return complete
