"""Rescue: the jobs of a dead child go back to their queues at once.

Only here does the master talk to Redis, apart from the embedded server that it starts. The
connection is the master's own, with short time-outs. One turn of the master's loop waits for one
slow answer at most, and all open rescues share each round trip. What Redis does not take now is
tried again later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..config.shards import DEFAULT_SHARD
from ..runtime.log import LogOnce
from ..store import counters
from ..store.connection import (
    Call,
    Command,
    RedisConnection,
    RedisError,
    ResponseError,
)
from ..store.crash_record import ProcessDeath
from ..store.recovery import Recovered, Recovery
from ..store.scripts import (
    CHILD_ENDED,
    CLASS_DEATH,
    COUNTERS_ADD_MISSING,
    LEASES_OF_OWNER,
    MARK_FAILED,
    RECOVER,
    REQUEUE,
)
from ..store.steps import Steps, resume

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Seconds that one step of a connect, or one read, may take.
TIMEOUT: Final = 1.0
# A read that is late still gets this long: the answer may have arrived.
_SHORTEST_TIMEOUT: Final = 0.02
_RETRY_PAUSE: Final = 1.0
# Seconds that a turn of the master's loop spends here while Redis answers quickly. After them the
# other shards wait for the next turn, too.
_TURN_LIMIT: Final = 0.05
# How many rescues share a round trip.
_BATCH_SIZE: Final = 32
_LOAD_SCRIPTS: Final[Sequence[Command]] = [
    ("SCRIPT", "LOAD", script.text)
    for script in (
        LEASES_OF_OWNER,
        MARK_FAILED,
        RECOVER,
        REQUEUE,
        COUNTERS_ADD_MISSING,
        CHILD_ENDED,
        CLASS_DEATH,
    )
]


class DeadChild(msgspec.Struct, frozen=True):
    """A child whose leases must go back to ``queues``. ``crash`` is None if its jobs get no crash
    record. ``processed`` and ``failed`` are the last counts that it reported to the master.
    ``errors``: why the jobs of some leases, by sequence number, have failed. ``last_begun``: the
    highest number of a lease whose job had begun; None if that is unknown. ``begun``: the numbers
    of those that may be the reason, or were in progress, if an event loop has noted them.
    ``crashed``: that of the job whose thread crashed, if that is known. ``report`` is called when
    its jobs have gone back. ``shard``: where they are, if there are shards. ``leases``: how many it
    has at least, as far as the master knows. ``counted_as``: how it has ended, for the totals; ""
    if that is counted elsewhere. ``ran``: for how many seconds the jobs of its leases had run, by
    sequence number, as far as that is known; ``steps``: the durable steps that they did."""

    identity: str
    queues: tuple[str, ...]
    crash: ProcessDeath | None
    processed: int = 0
    failed: int = 0
    errors: Mapping[int, BaseException] = msgspec.field(default_factory=dict)
    last_begun: int | None = None
    begun: frozenset[int] | None = None
    crashed: int | None = None
    report: Callable[[Recovered], None] = lambda recovered: None
    shard: str = ""
    leases: int = 0
    counted_as: str = ""
    ran: Mapping[int, float] = msgspec.field(default_factory=dict)
    steps: Mapping[int, str] = msgspec.field(default_factory=dict)


class _OpenRescue(msgspec.Struct, eq=False):
    """``steps`` (None: not begun) yields the ``commands`` of each round trip. ``began`` and ``due``
    (when to try again after a failure) are monotonic."""

    child: DeadChild
    began: float = 0.0
    due: float = 0.0
    steps: Steps[None] | None = None
    commands: Sequence[Command | Call] = ()


class Rescue:
    """The rescues that are still open, and the connection that they share."""

    def __init__(
        self, connection: RedisConnection, recovery: Recovery, log: FilteringBoundLogger
    ) -> None:
        self._connection = connection
        self._recovery = recovery
        self._log = log
        self._log_once = LogOnce(log)
        self._open: list[_OpenRescue] = []
        self._batch_size = _BATCH_SIZE
        self._wait_until = float("inf")
        self._connect_at = 0.0  # no connection before that (monotonic)
        self._scripts_to_load: Sequence[Command] = ()
        self._abandoned = False

    @property
    def due(self) -> float | None:
        """When ``advance`` has something to do (monotonic); None if no rescue is open."""
        earliest = min((each.due for each in self._open), default=None)
        return None if earliest is None else max(earliest, self._connect_at)

    @property
    def leases(self) -> int:
        """How many leases the open rescues are to return, as far as the master knows."""
        return sum(each.child.leases for each in self._open)

    def holds(self, identity: str) -> bool:
        """Whether the rescue of this child is still open."""
        return any(each.child.identity == identity for each in self._open)

    def descriptors(self) -> Sequence[int]:
        """What a forked child must close."""
        return self._connection.descriptors()

    def add(self, child: DeadChild) -> None:
        """Opens a rescue for the jobs of ``child``."""
        if child.queues and not self._abandoned:
            self._open.append(_OpenRescue(child))

    def abandon(self) -> None:
        """Closes all rescues for good. The leases stay in Redis, for the sweep of a clock."""
        self._open.clear()
        self._abandoned = True

    def limit_waits(self, until: float) -> None:
        """From now on no read waits beyond ``until`` (monotonic)."""
        self._wait_until = until

    def connect(self) -> None:
        """Connects while there is time. ``advance`` meets a failure again, and logs it."""
        with suppress(RedisError):
            self._ensure_connected()

    def advance(self) -> bool:
        """Goes on with the open rescues that are due: for a moment, or for one round trip if that
        takes longer. Returns whether all are closed."""
        end = time.monotonic() + _TURN_LIMIT
        while batch := self._next_batch():
            self._make_round_trip(batch)
            if time.monotonic() >= end:
                break
        return not self._open

    def _next_batch(self) -> Sequence[_OpenRescue]:
        now = time.monotonic()
        due = [each for each in self._open if max(each.due, self._connect_at) <= now]
        return due[: self._batch_size]

    def _make_round_trip(self, batch: Sequence[_OpenRescue]) -> None:
        try:
            if self._ensure_connected():
                return  # that was a round trip
            for each in batch:
                self._begin(each)
            commands = [part for each in batch for part in each.commands]
            replies = self._connection.exchange([*self._scripts_to_load, *commands])
        except RedisError as error:
            self._handle_lost_connection(batch, error)
            return
        del replies[: len(self._scripts_to_load)]
        self._scripts_to_load = ()
        for each in batch:
            count = len(each.commands)
            self._continue(each, replies[:count])
            del replies[:count]

    def _ensure_connected(self) -> bool:
        """Returns whether a new connection was made."""
        seconds_left = self._wait_until - time.monotonic()
        self._connection.set_timeout(min(TIMEOUT, max(_SHORTEST_TIMEOUT, seconds_left)))
        if not self._connection.stale():
            return False
        self._connection.close()
        self._connection.connect()
        self._scripts_to_load = _LOAD_SCRIPTS
        return True

    def _begin(self, each: _OpenRescue) -> None:
        if each.steps is None:
            each.began = time.monotonic()
            each.steps = self._steps(each.child, each.began)
            each.commands = next(each.steps)

    def _continue(self, each: _OpenRescue, replies: list[Any]) -> None:
        """Hands the replies of Redis to one rescue, which then has its next commands or is done."""
        assert each.steps is not None
        try:
            each.commands = each.steps.send(replies)
        except StopIteration:
            self._open.remove(each)
            self._log_once.over("redis")
            self._batch_size = _BATCH_SIZE
        except RedisError as error:
            self._postpone(each, error)

    def _steps(self, child: DeadChild, began: float) -> Steps[None]:
        """All round trips of one rescue. The counts come last: the jobs go back even if Redis
        refuses them, and what is refused then is not tried again."""
        recovered = yield from self._moving(child)
        child.report(recovered)
        counting, forgetting = list(self._counting(child)), self._recovery.forget(child.identity)
        replies = yield [*counting, *next(forgetting)]
        yield from resume(forgetting, replies[len(counting) :])
        spent = round((time.monotonic() - began) * 1000, 1)
        recovered.tell(self._log, "jobs rescued", owner=child.identity, ms=spent)
        for counted in replies[: len(counting)]:
            if isinstance(counted, ResponseError):
                self._log.error("counts of a dead child dropped", error=str(counted))

    def _counting(self, child: DeadChild) -> Iterator[Call]:
        """What adds the counts of the child, and its end, to those in Redis. May be repeated."""
        keys, moment = self._recovery.dead_set.keys, datetime.now(timezone.utc)
        yield counters.add_missing(keys, child.identity, child.processed, child.failed, moment)
        if child.counted_as:
            yield counters.child_ended(keys, child.identity, child.counted_as)

    def _moving(self, child: DeadChild) -> Steps[Recovered]:
        if child.crash is not None:
            recovering = self._recovery.recover(
                child.queues,
                child.identity,
                child.crash,
                last_begun=child.last_begun,
                begun=child.begun,
                crashed=child.crashed,
                ran=child.ran,
                steps=child.steps,
            )
            return (yield from recovering)
        if child.errors:
            mark = self._recovery.mark_failed
            for job in (yield from mark(child.queues, child.identity, child.errors, child.ran)):
                self._log.error("job stopped: its child was removed because of it", job=job)
        return (yield from self._recovery.requeue(child.queues, child.identity))

    def _handle_lost_connection(self, batch: Sequence[_OpenRescue], error: BaseException) -> None:
        """One rescue of the batch may be the reason. So they go on one by one, until one of them
        is closed."""
        self._connection.close()
        self._batch_size = 1
        self._connect_at = time.monotonic() + _RETRY_PAUSE
        for each in batch:
            self._postpone(each, error)

    def _postpone(self, each: _OpenRescue, error: BaseException) -> None:
        """Begins it again later, behind the others. Jobs that have moved already stay moved."""
        each.steps, each.due = None, time.monotonic() + _RETRY_PAUSE
        self._open.remove(each)
        self._open.append(each)
        self._log_once.error(
            "redis", "rescue waits for redis", error=str(error), cases=len(self._open)
        )


class ShardRescues(Rescue):
    """One Rescue for each shard, with a connection of its own; stands where a Rescue stands. A
    shard that is down keeps no other one from its rescues: a turn of the loop waits for one slow
    shard at most, and the next turn begins behind it."""

    def __init__(self, rescues: Mapping[str, Rescue]) -> None:
        self._of = dict(rescues)
        self._order = deque(self._of.values())

    @property
    def due(self) -> float | None:
        moments = (rescue.due for rescue in self._order)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def leases(self) -> int:
        return sum(rescue.leases for rescue in self._order)

    def holds(self, identity: str) -> bool:
        return any(rescue.holds(identity) for rescue in self._order)

    def descriptors(self) -> Sequence[int]:
        return [fd for rescue in self._order for fd in rescue.descriptors()]

    def add(self, child: DeadChild) -> None:
        # A child from before a rolling restart that has brought the shards has none.
        self._of.get(child.shard, self._of[DEFAULT_SHARD]).add(child)

    def abandon(self) -> None:
        for rescue in self._order:
            rescue.abandon()

    def limit_waits(self, until: float) -> None:
        for rescue in self._order:
            rescue.limit_waits(until)

    def connect(self) -> None:
        for rescue in self._order:
            rescue.connect()

    def advance(self) -> bool:
        end = time.monotonic() + _TURN_LIMIT
        for _ in range(len(self._order)):
            rescue = self._order[0]
            self._order.rotate(-1)
            rescue.advance()
            if time.monotonic() >= end:
                break
        return self.due is None
