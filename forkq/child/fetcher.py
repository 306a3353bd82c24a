"""The one fetcher of a child: leases jobs for its processors and acknowledges what they finish.

There is no fetcher thread. Processors take from a shared deque, and whichever finds it empty
leads: it talks to Redis, and fills the deque for the others (lead.py). Whenever a processor is
free, somebody is listening to Redis. Acknowledgements travel in the next fetch; while the last
batch still runs, the next fetch is already under way.

Never are more jobs leased than there are processors, so a job that is fetched starts at once.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError

from ..capsule import Capsule
from ..connection import ConnectionLost, RedisError, ResponseError, Wire
from ..keys import Keys
from ..lease import Unit, owner
from ..outage import Backoff, Outage
from ..scripts import FETCH, REQUEUE
from .lead import Lead

# A waiting child looks for itself now and then, in case a wake-up went astray. A server that is
# gone is noticed sooner, by keepalive.
_LONGEST_WAIT = 60.0
# Where the server does not tell us of pushes, we ask: soon after a job, ever later when idle.
_POLL_FIRST = 0.02
_POLL_LONGEST = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """A fetch that was sent and not yet answered."""

    first: int
    want: int
    done: list[Unit]
    watched: bool


class Fetcher:
    """Thread-safe: processors call ``take`` and ``acknowledge``, the manager the rest."""

    def __init__(
        self, capsule: Capsule, identity: str, keys: Keys, wire: Wire, outage: Outage, log: Any
    ) -> None:
        self._capsule = capsule
        self._owner = owner(identity)
        self._lists = [
            key for name in capsule.queue_names for key in (keys.queue(name), keys.inflight(name))
        ]
        self._names = capsule.queue_names
        self._in_order = capsule.mode == "strict"
        self._weights = [weight for _, weight in capsule.queues]
        self._wire = wire
        self._outage = outage
        self._backoff = Backoff()
        self._log = log

        self._ready: deque[Unit] = deque()
        self._in_flight: dict[int, Unit] = {}
        self._done: deque[Unit] = deque()
        self._enough = max(1, capsule.concurrency * 3 // 4)

        self._lead = Lead()  # who waits for Redis on behalf of all
        self._line = threading.Lock()  # who talks to Redis just now
        self._outstanding: Request | None = None
        self._sequence = 1
        self._tracking = True
        self._starved = False
        self._may_wait = False
        self._doubtful = False
        self._poll = _POLL_FIRST
        self._quiet = False
        self._waiting = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

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
        del self._in_flight[unit.sequence]
        self._lead.performed(time.monotonic() - unit.taken)
        if self._waiting:
            self.wake()

    def forget(self, unit: Unit) -> None:
        """``unit`` was settled by another script, or belongs to somebody else by now."""
        del self._in_flight[unit.sequence]
        if self._waiting:
            self.wake()

    # What the manager calls

    def abandon(self, thread: int) -> None:
        """The processor of that thread died: its job goes back to its queue."""
        for unit in self.in_flight():
            if unit.thread == thread:
                del self._in_flight[unit.sequence]
                self._doubtful = True  # the next exchange gives back what nobody here knows of
                self.wake()

    def quiet(self) -> None:
        """Fetches nothing more. Processors get what is leased already, then None."""
        self._quiet = True
        self.wake()

    def in_flight(self) -> list[Unit]:
        """Every unit whose lease this child holds, performed or about to be."""
        return list(self._in_flight.values())

    def flush(self) -> None:
        """Sends what is done but could not be sent when the last processor ended."""
        if self._quiet and self._done:
            self._exchange()

    def wake(self) -> None:
        """Ends the leader's wait."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake, b"!")

    def give_back(self) -> bool:
        """Acknowledges what is done and puts all else back to the head of its queue.

        Call it when no processor runs any more. False if Redis did not take it: the leases stay,
        and whoever finds their owner gone puts them back.
        """
        with self._line:
            try:
                self._reconnect(keep=())
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
            self._in_flight.clear()
            self._ready.clear()
            return True

    # What only the leader does

    def _pop(self) -> Unit | None:
        unit = self._pop_ready()
        if unit is None:
            return None
        if self._done and (len(self._done) >= self._enough or self._all_busy()):
            self._send_ahead()
        return unit

    def _all_busy(self) -> bool:
        """Whether no processor is left that would lead, and so send what is done."""
        return len(self._in_flight) - len(self._ready) >= self._capsule.concurrency

    def _send_ahead(self) -> None:
        """Sends the next fetch now; whoever leads next reads the answer."""
        if not self._line.acquire(blocking=False):
            return  # somebody is about to send it
        try:
            if self._outstanding is None and self._wire.connected and not self._doubtful:
                self._request()
        except (*ConnectionLost, RedisError) as error:
            self._fail(error)
        finally:
            self._line.release()

    def _next(self) -> Unit | None:
        """The leader's wait for a job: on behalf of all, but its own comes first."""
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
        while (unit := self._pop_ready()) is None and (self._outstanding or self._done):
            if not self._exchange():
                break  # Redis is away: flush and give_back come later
        return unit

    def _pop_ready(self) -> Unit | None:
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def _refill(self) -> None:
        """One exchange with Redis; when it brought nothing, waits until there may be something."""
        if not self._exchange():
            self._rest(self._backoff.pause())
        elif self._may_wait:
            self._wait()

    def _exchange(self) -> bool:
        """Sends a fetch unless one is under way, and takes in the answer. False if Redis failed."""
        with self._line:
            try:
                if not self._wire.connected or self._doubtful:
                    self._reconnect(keep=tuple(self._in_flight))
                if self._outstanding is None:
                    self._request()
                self._collect()
            except (*ConnectionLost, RedisError) as error:
                self._fail(error)
                return False
        self._backoff.reset()
        self._outage.end()
        return True

    def _request(self) -> None:
        want = 0 if self._quiet else self._capsule.concurrency - len(self._in_flight)
        watch = self._starved and self._tracking
        self._outstanding = Request(self._sequence, want, self._take_done(), watch)
        self._sequence += want
        self._send()

    def _take_done(self) -> list[Unit]:
        """What is done, one by one: others add to it meanwhile."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def _send(self) -> None:
        request = self._outstanding
        assert request is not None
        command = (
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
            self._wire.send(("CLIENT", "CACHING", "YES"), command)
        else:
            self._wire.send(command)

    def _collect(self) -> None:
        request = self._outstanding
        assert request is not None
        if request.watched:
            self._wire.read()
        try:
            taken = self._wire.read()
        except NoScriptError:
            self._wire.call("SCRIPT", "LOAD", FETCH.text)
            self._send()
            self._collect()
            return
        self._outstanding = None
        self._starved = len(taken) < 2 * max(1, request.want)
        if taken:
            self._poll = _POLL_FIRST
        self._may_wait = not taken and (request.watched or not self._tracking)
        names = self._names
        sequence = request.first
        for queue, payload in zip(taken[::2], taken[1::2], strict=True):
            unit = Unit(queue, names[queue - 1], sequence, payload)
            self._in_flight[sequence] = unit
            self._ready.append(unit)
            sequence += 1

    def _wait(self) -> None:
        """Until the server tells of a change, a processor of news, or the time is up."""
        self._lead.calm()
        self._waiting = True
        try:
            if self._done or self._quiet:
                return
            if not self._tracking:
                self._rest(self._poll)
                self._poll = min(self._poll * 1.5, _POLL_LONGEST)
            else:
                self._wire.wait(_LONGEST_WAIT, self._woken)
        except ConnectionLost as error:
            self._fail(error)
        finally:
            self._waiting = False
            self._drain_wakes()

    def _rest(self, seconds: float) -> None:
        """Waits out a pause, unless the child goes quiet."""
        self._lead.calm()
        deadline = time.monotonic() + seconds
        while not self._quiet and (left := deadline - time.monotonic()) > 0:
            select.select([self._woken], [], [], left)
            self._drain_wakes()
            if self._done and self._wire.connected:
                return

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._woken, 4096):
                pass
        except BlockingIOError:
            pass  # that was all of them

    def _fail(self, error: BaseException) -> None:
        """After any failure we no longer know what the server did: ask before going on."""
        self._doubtful = True
        self._hang_up()
        self._outage.begin(error)

    def _hang_up(self) -> None:
        """Closes the line. What was under way is acknowledged again: twice does no harm."""
        if self._outstanding is not None:
            self._done.extend(self._outstanding.done)
            self._outstanding = None
        self._wire.close()

    def _reconnect(self, keep: tuple[int, ...]) -> None:
        """Opens the connection and squares our books with Redis's.

        A fetch whose answer was lost may have leased jobs that nobody here knows of. They go back
        to the head of their queues; what is done is acknowledged first, so that it stays done.
        """
        if self._doubtful:
            self._hang_up()
        if not self._wire.connected:
            self._wire.connect()
            self._track()
        if self._outstanding is not None:
            self._collect()
        self._outstanding = Request(self._sequence, 0, self._take_done(), watched=False)
        self._send()
        self._collect()
        self._wire.script(REQUEUE, self._lists, (self._owner, *keep))
        self._doubtful = False

    def _track(self) -> None:
        if not self._tracking:
            return
        try:
            self._wire.call("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        except ResponseError as error:
            self._tracking = False
            self._log.warning(
                "redis does not tell of new jobs; polling for them instead", error=str(error)
            )


def _by_queue(done: list[Unit]) -> list[int]:
    """What fetch.lua wants of the jobs to acknowledge: queue, how many, their sequence numbers."""
    groups: dict[int, list[int]] = {}
    for unit in done:
        groups.setdefault(unit.queue, []).append(unit.sequence)
    flat: list[int] = []
    for queue, sequences in groups.items():
        flat += (queue, len(sequences), *sequences)
    return flat
