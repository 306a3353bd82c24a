"""The tasks of the heartbeat: each does one thing in Redis when it is due, on the heartbeat's
connection and in its thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ... import registry
from ...features.effects import packed
from ...features.marked import while_running
from ...runtime.log import LogOnce
from ...store.connection import ConnectionLost, RedisConnection
from ...store.scripts import EFFECTS_ALONE
from ...store.server_time import ServerTime
from ...wire.keys import Keys
from ...wire.lease import RECORD_TTL, UnitOfWork
from ...wire.parameters import JobParameters
from ..failure.elsewhere import JOBS
from .record import Record
from .round_trip import RoundTrip
from .stats import Totals
from .stats_flush import StatsFlusher

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

NEXT_BEAT: Final = 0.0
_NEVER: Final = math.inf
# The next beat after this time looks at the definitions of periodic jobs: within a minute it
# repairs what another program has changed.
_PUBLISH_EVERY: Final = 35.0
_TIME_EVERY: Final = 55.0


class Snapshot(NamedTuple):
    """The state of the child at the moment of a beat."""

    units: list[UnitOfWork]
    totals: Totals
    quiet: bool
    refused: str = ""

    @property
    def busy(self) -> int:
        """How many processors perform a job."""
        return sum(1 for unit in self.units if unit.thread)


class HeartbeatTask:
    """One piece of a heartbeat's work. A subclass overrides ``run`` and what else it needs."""

    def __init__(self) -> None:
        self._due = 0.0

    def attend(self, connection: RedisConnection, now: Snapshot) -> None:
        """Runs the task if it is due. Raises ConnectionLost or RedisError."""
        if self.is_due(now):
            self._due = time.monotonic() + self.run(connection, now)

    def is_due(self, now: Snapshot) -> bool:
        """Whether this beat runs the task."""
        return time.monotonic() >= self._due

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        """Does the work. Returns the seconds until it is due again, or NEXT_BEAT."""
        raise NotImplementedError

    def after_gap(self) -> None:
        """Makes the task due: Redis may have lost what this child wrote."""
        self._due = 0.0

    def after_lost_reply(self) -> None:
        """Notes that a command was sent and no reply came: Redis may have done it, or not."""

    def finish(self, connection: RedisConnection, now: Snapshot) -> None:
        """Does what belongs to the last beat of a child that has no lease any more."""


class OptionalTask(HeartbeatTask):
    """A task whose failure costs the heartbeat nothing but a new connection. The failure is logged
    once, as ``failure``, and the next beat tries again."""

    def __init__(self, failure: str, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._failure = failure
        self._log = log
        self._log_once = LogOnce(log)

    def attend(self, connection: RedisConnection, now: Snapshot) -> None:
        """Runs the task if it is due. Raises ConnectionLost alone: any other failure is logged."""
        if not self.is_due(now):
            return
        try:
            super().attend(connection, now)
        except ConnectionLost:
            raise
        except Exception as error:  # noqa: BLE001 - the beat must go on
            self._log_once.error(str(error), self._failure, exc_info=error)
            connection.close()  # a reply may be left unread
            connection.connect()
        else:
            self._log_once = LogOnce(self._log)


class MeasureServerTime(HeartbeatTask):
    """Makes ``times.now`` of this child follow the clock of Redis."""

    def __init__(self) -> None:
        super().__init__()
        self._server_time = ServerTime()  # the clock logs a difference

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        self._server_time.measure(connection)
        return _TIME_EVERY

    def after_lost_reply(self) -> None:
        self._due = 0.0


class WriteRecord(HeartbeatTask):
    """Writes the process record with each beat. Calls the ``after_gap`` of these tasks when Redis
    had lost the record."""

    def __init__(
        self, record: Record, round_trip: RoundTrip, after_gap: Sequence[HeartbeatTask]
    ) -> None:
        super().__init__()
        self._record = record
        self._round_trip = round_trip
        self._tasks_after_gap = after_gap
        self._was_written = False
        self._may_be_lost = False

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        written = self._record.write(
            connection,
            now.units,
            self._round_trip.microseconds,
            quiet=now.quiet,
            refused=now.refused,
        )
        if written.fresh or self._may_be_lost:
            if self._was_written:
                for task in self._tasks_after_gap:
                    task.after_gap()
            self._was_written, self._may_be_lost = True, False
        if written.refused is not None:
            raise written.refused
        return NEXT_BEAT

    def after_lost_reply(self) -> None:
        """Notes that the beat may have written a record that was gone: the next beat cannot see the
        gap."""
        self._may_be_lost = True

    def finish(self, connection: RedisConnection, now: Snapshot) -> None:
        self._record.remove(connection)


class HoldLocks(OptionalTask):
    """At each beat, holds the locks of the unique jobs that run here for longer."""

    def __init__(self, keys: Keys, log: FilteringBoundLogger) -> None:
        super().__init__("locks of unique jobs not held", log)
        self._keys = keys

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        names: list[str] = []
        texts: list[str] = []
        for unit in now.units:
            if unit.thread and unit.marked is not None:
                asked = while_running(self._keys, unit.marked)
                if text := packed(asked, names, self._keys.totals("ends")):
                    texts.append(text)
        if texts:
            connection.script(EFFECTS_ALONE, names, texts)
        return NEXT_BEAT


class FindLostLeases(OptionalTask):
    """After a gap, looks for leases that another host has taken from this child."""

    def __init__(self, find: Callable[[RedisConnection], None], log: FilteringBoundLogger) -> None:
        super().__init__("leases not looked for after a gap", log)
        self._find = find
        self._due = _NEVER

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        self._find(connection)
        return _NEVER


class TellRanTwice(OptionalTask):
    """Writes which jobs ran here although another child had been given them. ``tell`` costs no
    command if there are none."""

    def __init__(self, tell: Callable[[RedisConnection], None], log: FilteringBoundLogger) -> None:
        super().__init__("jobs that ran twice are not noted", log)
        self._tell = tell

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        self._tell(connection)
        return NEXT_BEAT

    def finish(self, connection: RedisConnection, now: Snapshot) -> None:
        self.attend(connection, now)


class TakeOrder(HeartbeatTask):
    """Takes the orders of web UIs and commands with each beat, and measures the round trip by
    that."""

    def __init__(
        self, record: Record, round_trip: RoundTrip, on_order: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._record = record
        self._round_trip = round_trip
        self._on_order = on_order

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        found = self._round_trip.measure(lambda: self._record.take_orders(connection), now.busy)
        for order in found:
            self._on_order(order)
        return NEXT_BEAT


class FlushStats(HeartbeatTask):
    """Adds the counts of this child to those in Redis with each beat."""

    def __init__(self, stats_flusher: StatsFlusher) -> None:
        super().__init__()
        self._stats_flusher = stats_flusher

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        self._stats_flusher.flush(connection, now.totals)
        return NEXT_BEAT

    def after_gap(self) -> None:
        self._stats_flusher.renew()

    def finish(self, connection: RedisConnection, now: Snapshot) -> None:
        self._stats_flusher.flush(connection, now.totals)


class PublishCron(OptionalTask):
    """Publishes the app's periodic jobs. ``publish`` returns whether a name is held by another app:
    then the next beat tries again.

    A quiet child publishes nothing: an old version of the app that retires must not undo what the
    new one has changed.
    """

    def __init__(
        self, publish: Callable[[RedisConnection], bool], log: FilteringBoundLogger
    ) -> None:
        super().__init__("periodic jobs not published", log)
        self._publish = publish

    def is_due(self, now: Snapshot) -> bool:
        return not now.quiet and super().is_due(now)

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        return NEXT_BEAT if self._publish(connection) else _PUBLISH_EVERY


class PublishParameters(OptionalTask):
    """Publishes the names of the parameters of the app's jobs, once: so that a process without the
    app knows which arguments are secret. And, in the record of this child, which jobs it has: so
    that other code than this leaves its jobs to it. A quiet child does not, as with periodic jobs.
    """

    def __init__(self, keys: Keys, identity: str, log: FilteringBoundLogger) -> None:
        super().__init__("names of parameters not published, so commands may show secrets", log)
        self._key = keys.parameters
        self._record = keys.process(identity)

    def is_due(self, now: Snapshot) -> bool:
        return not now.quiet and super().is_due(now)

    def run(self, connection: RedisConnection, now: Snapshot) -> float:
        pairs: list[str | bytes] = []
        for name in registry.names():
            job = registry.lookup(name)
            pairs += name, JobParameters(job.parameters, job.is_secret).encode()
        if pairs:
            connection.call("HSET", self._key, *pairs)
            jobs = msgspec.json.encode(registry.names())
            connection.pipeline(
                [("HSET", self._record, JOBS, jobs), ("EXPIRE", self._record, RECORD_TTL)]
            )
        return _NEVER
