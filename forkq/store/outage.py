"""Outages of Redis: a process logs one line when Redis goes, and one when it is back."""

from __future__ import annotations

import random
import threading
import time
from math import inf
from typing import TYPE_CHECKING

from .connection import ConnectionLost, RedisConnection
from .redis_py import Unanswered, exceptions
from .refusals import in_words, refuses, stops_jobs
from .sentinel import LOOK_EVERY, MasterLost

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0
# The longest pause between two tries of what forks a process each time.
LONGEST_BETWEEN_FORKS = 300.0
_LOGIN_REFUSED = "redis refuses; trying again"
_LONGEST = 300  # characters of ``why``: it is sent through a pipe
_MOST_DOUBLINGS = 16  # 2.0 ** 1024 is an error
# Seconds. If a connection ends after it was idle for so long, that is no outage: redis.conf has a
# `timeout` for idle clients.
_IDLE = 1.0


class Outage:
    """Shared by all parts of a process that talk to Redis. ``lost`` and ``back`` are its two log
    events. A third one tells that the server is there, but refuses the login or TLS: that ends when
    a person changes a password or a certificate, here or there. ``since`` it is on (monotonic;
    None: it is not): when Redis was asked what it has not answered; ``why``, in words: what Redis
    said, and the remedy."""

    def __init__(
        self, log: FilteringBoundLogger, lost: str = "redis lost", back: str = "redis is back"
    ) -> None:
        self._log = log
        self._lost = lost
        self._back = back
        self._lock = threading.Lock()
        self.since: float | None = None
        self._failed_at = 0.0
        self._refusals: list[Outage] = []
        self._is_login_refused = self._stops_jobs = False
        self.why = ""

    @property
    def refused(self) -> str:
        """What Redis refuses to this process, or to a part of it, and the remedy; "" if nothing."""
        found = [self] if self._is_login_refused else self._refusals
        return next((f"{one._lost}: {one.why}" for one in found if one.is_on), "")

    @property
    def gets_jobs(self) -> bool:
        """False if what Redis refuses keeps this process from its jobs, until a person acts."""
        return not any(one._stops_jobs for one in (self, *self._refusals))

    @property
    def reason(self) -> str:
        """What the last failure was; "" if Redis is not lost."""
        return self.why if self.is_on else ""

    @property
    def is_on(self) -> bool:
        """Whether Redis is lost now."""
        return self.since is not None

    def begin(self, error: BaseException) -> None:
        """A part of the process has lost Redis. Only the first call of an outage logs it, and the
        first one that found the server there, which refuses the login."""
        with self._lock:
            self._failed_at = time.monotonic()
            is_login_refused = refuses(error)
            self.why = " ".join(in_words(error).split())[:_LONGEST]
            if self.since is not None and self._is_login_refused >= is_login_refused:
                return
            self._is_login_refused, self._stops_jobs = is_login_refused, stops_jobs(error)
            self.since = self.since or self._failed_at - _unanswered(error)
        event = _LOGIN_REFUSED if is_login_refused else self._lost
        self._log.error(event, error=str(error) or type(error).__name__)

    def end(self, asked: float = inf) -> None:
        """A part of the process has had a reply to what it ``asked`` then (monotonic), or just now.
        Ends the outage, if there is one, unless another part has failed since: the reply may be
        older than that failure."""
        if self.since is None:
            return
        with self._lock:
            if asked <= self._failed_at:
                return
            since, self.since = self.since, None
            self._is_login_refused = self._stops_jobs = False
        if since is not None:
            self._log.info(self._back, downtime=round(time.monotonic() - since, 1))

    def add_refusal(self, refused: str, accepted: str) -> Outage:
        """Adds a refusal that concerns one part of this process, with two log events for it, and
        returns it."""
        self._refusals.append(Outage(self._log, refused, accepted))
        return self._refusals[-1]

    def part(self, refused: str, accepted: str) -> Reach:
        """The access of one part of this process, with two log events of its own for refusals."""
        return Reach(self, self.add_refusal(refused, accepted))


class Reach:
    """The access of one part of a process to Redis. The outage that all parts share logs a lost
    connection. A refusal is logged for this part alone: the server is there, and the other parts
    may go on."""

    def __init__(self, outage: Outage, refusal: Outage) -> None:
        self._outage = outage
        self._refusal = refusal

    def begin(self, error: BaseException) -> None:
        """This part has lost Redis, or Redis has refused what it asked for."""
        (self._outage if isinstance(error, ConnectionLost) else self._refusal).begin(error)

    def end(self, asked: float = inf) -> None:
        """Redis has done all that this part ``asked`` for then (monotonic), or just now. Each fetch
        ends so, most often for nothing: hence no call where nothing is on."""
        if self._outage.since is not None:
            self._outage.end(asked)
        if self._refusal.since is not None:
            self._refusal.end()


def _unanswered(error: BaseException) -> float:
    """For how many seconds Redis had said nothing when this was noticed."""
    return error.seconds if isinstance(error, Unanswered) else 0.0


def growing_pause(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after one more failure, with ``failures`` in a row before it: each time twice
    as long, with jitter."""
    ceiling = min(longest, first * 2.0 ** min(failures, _MOST_DOUBLINGS))
    return ceiling * random.uniform(0.5, 1.0)


class Backoff:
    """Growing pauses with jitter, so that a thousand children do not reconnect at once.
    ``failures``: how many came in a row; ``due`` (monotonic): when the pause after the last one
    ends."""

    def __init__(self, first: float = _FIRST_PAUSE, longest: float = _LONGEST_PAUSE) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0
        self.due = 0.0

    @property
    def over(self) -> bool:
        """Whether the next try may begin."""
        return time.monotonic() >= self.due

    def pause(self) -> float:
        """Starts the pause after one more failure. Returns its length in seconds."""
        seconds = growing_pause(self.failures, self._first, self._longest)
        self.failures += 1
        self.due = time.monotonic() + seconds
        return seconds

    def reset(self) -> None:
        """Forgets the failures: the last try has succeeded."""
        self.failures = 0
        self.due = 0.0


def reconnect_backoff(connection: RedisConnection) -> Backoff:
    """The pauses between two tries to connect. The first ones are short: a failover is followed
    quickly."""
    return Backoff(LOOK_EVERY / 4, LOOK_EVERY) if connection.follows else Backoff()


def ended_idle(error: BaseException, began: float) -> bool:
    """Whether a wait since ``began`` (monotonic) ended because the server closes idle connections:
    no outage, unless the next connect fails."""
    is_end = isinstance(error, exceptions.ConnectionError) and not isinstance(error, MasterLost)
    return is_end and time.monotonic() >= began + _IDLE
