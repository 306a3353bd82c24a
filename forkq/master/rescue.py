"""Rescue: a dead child's jobs go back to their queues at once.

The one place where the master talks to Redis: on a connection of its own with short time-outs, and
never in the way of its other work. A turn of the master's loop waits for one slow answer at most,
with which all open cases go on. What Redis does not take now is tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from ..store import counters
from ..store.connection import (
    Call,
    Command,
    ConnectionLost,
    RedisConnection,
    RedisError,
    ResponseError,
)
from ..store.crash_record import Crash
from ..store.recovery import Recovery
from ..store.scripts import COUNTERS_ADD_MISSING, LEASES_OF_OWNER, RECOVER, REQUEUE
from ..store.steps import Steps, resume

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

TIMEOUT: Final = 1.0
_PAUSE: Final = 1.0
# How long the master's other work may wait for a rescue that goes well.
_TURN: Final = 0.05
# How many cases share a round trip.
_TOGETHER: Final = 32
_SCRIPTS: Final[Sequence[Command]] = [
    ("SCRIPT", "LOAD", script.text)
    for script in (LEASES_OF_OWNER, RECOVER, REQUEUE, COUNTERS_ADD_MISSING)
]
# No wait is shorter, however late it is: an answer that has come already is still read.
_SHORTEST: Final = 0.02


@dataclass(frozen=True, slots=True)
class DeadChild:
    """One dead child: whose leases, in which queues, how it died (None: by our own hand), and how
    many jobs it had told us of."""

    identity: str
    queues: tuple[str, ...]
    crash: Crash | None
    processed: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Open:
    """A case, how far it is (``steps``, and the commands that come next; None: not begun), when it
    began, and when to try again after a failure (both monotonic)."""

    case: DeadChild
    began: float = 0.0
    due: float = 0.0
    steps: Steps[None] | None = None
    commands: Sequence[Command | Call] = ()


class Rescue:
    """Holds the cases that are still open."""

    def __init__(
        self, connection: RedisConnection, recovery: Recovery, log: FilteringBoundLogger
    ) -> None:
        self._connection = connection
        self._recovery = recovery
        self._log = log
        self._open: list[_Open] = []
        self._together = _TOGETHER
        self._until = float("inf")
        self._away_until = 0.0  # no connection before that
        self._unknown: Sequence[Command] = ()  # what the server must be told first
        self._complained = False
        self._resigned = False

    @property
    def due(self) -> float | None:
        """When an open case is to be gone on with (monotonic); None if there is none."""
        earliest = min((each.due for each in self._open), default=None)
        return None if earliest is None else max(earliest, self._away_until)

    @property
    def under_way(self) -> bool:
        """Whether an open case could be gone on with now."""
        return self.due is not None and self.due <= time.monotonic()

    def descriptors(self) -> Sequence[int]:
        """What a forked child must close."""
        return self._connection.descriptors()

    def take(self, case: DeadChild) -> None:
        """Rescues the jobs of ``case`` now, or as soon as Redis lets us."""
        if case.queues and not self._resigned:
            self._open.append(_Open(case))

    def resign(self) -> None:
        """Takes no more cases: what is leased stays leased, for another host's sweep."""
        self._open.clear()
        self._resigned = True

    def hurry(self, until: float) -> None:
        """From now on waits for no answer beyond ``until`` (monotonic)."""
        self._until = until

    def prepare(self) -> None:
        """Connects, while there is time."""
        with suppress(*ConnectionLost, RedisError):  # work() meets it again, and tells of it
            self._connect()

    def work(self) -> bool:
        """Goes on with the open cases that are due: for a moment, or one round trip if that takes
        longer. Returns whether all are closed."""
        end = time.monotonic() + _TURN
        while ready := self._ready():
            self._go_on(ready)
            if time.monotonic() >= end:
                break
        return not self._open

    def _ready(self) -> Sequence[_Open]:
        now = time.monotonic()
        ready = [each for each in self._open if max(each.due, self._away_until) <= now]
        return ready[: self._together]

    def _go_on(self, ready: Sequence[_Open]) -> None:
        try:
            if self._connect():
                return  # that was a round trip
            for each in ready:
                self._begin(each)
            replies = self._connection.exchange(
                [*self._unknown, *(part for each in ready for part in each.commands)]
            )
        except (*ConnectionLost, RedisError) as error:
            self._lose(ready, error)
            return
        del replies[: len(self._unknown)]
        self._unknown = ()
        for each in ready:
            count = len(each.commands)
            self._hear(each, replies[:count])
            del replies[:count]

    def _connect(self) -> bool:
        """Returns whether there was no connection."""
        self._connection.limit(min(TIMEOUT, max(_SHORTEST, self._until - time.monotonic())))
        if not self._connection.stale():
            return False
        self._connection.close()
        self._connection.connect()
        self._unknown = _SCRIPTS
        return True

    def _begin(self, each: _Open) -> None:
        if each.steps is None:
            each.began = time.monotonic()
            each.steps = self._steps(each.case, each.began)
            each.commands = next(each.steps)

    def _hear(self, each: _Open, replies: list[Any]) -> None:
        """Takes in what Redis says to one case."""
        assert each.steps is not None
        try:
            each.commands = each.steps.send(replies)
        except StopIteration:
            self._open.remove(each)
            self._complained, self._together = False, _TOGETHER
        except RedisError as error:
            self._postpone(each, error)

    def _steps(self, case: DeadChild, began: float) -> Steps[None]:
        """The way of one case. What Redis refuses of the counts must not keep jobs from going
        back."""
        moment = datetime.now(timezone.utc)
        keys = self._recovery.dead_set.keys
        counting = counters.add_missing(keys, case.identity, case.processed, case.failed, moment)
        if case.crash is None:
            work = self._recovery.requeue(case.queues, case.identity)
        else:
            work = self._recovery.recover(case.queues, case.identity, case.crash)
        first = next(work)
        *replies, counted = yield [*first, counting]
        if isinstance(counted, ResponseError):
            self._log.error("counts of a dead child dropped", error=str(counted))
        done = yield from resume(work, replies)
        yield from self._recovery.forget(case.identity)
        spent = round((time.monotonic() - began) * 1000, 1)
        done.tell(self._log, "jobs rescued", owner=case.identity, ms=spent)

    def _lose(self, ready: Sequence[_Open], error: BaseException) -> None:
        """The connection failed. Perhaps because of one of these cases: they go on one by one,
        until one is closed."""
        self._connection.close()
        self._together = 1
        self._away_until = time.monotonic() + _PAUSE
        for each in ready:
            self._postpone(each, error)

    def _postpone(self, each: _Open, error: BaseException) -> None:
        """Tries it again from the beginning: what was moved is moved."""
        each.steps, each.due = None, time.monotonic() + _PAUSE
        self._open.remove(each)
        self._open.append(each)
        if not self._complained:
            self._complained = True
            self._log.error("rescue waits for redis", error=str(error), cases=len(self._open))
