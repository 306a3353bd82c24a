"""Settles a job that has not ended well: one script drops its lease and adds it to a set, or
neither. The script travels with the next exchange of the fetcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Final, Literal, TypeAlias

from ...default_client import default
from ...errors import Dead, MalformedPayload, ServerUnavailable
from ...features.batch.parts import place_in
from ...features.batch.pause import BatchPause
from ...features.flow.parts import (
    field_of_end,
    field_of_index,
    filled,
    names_taken,
    value_for,
)
from ...features.marked import EndOutcome
from ...features.unique.tickets import Start
from ...store.connection import ConnectionLost, RedisConnection, RedisError
from ...store.pool import RedisPool
from ...wire import lease
from ...wire.keys import Keys
from ...wire.lease import UnitOfWork
from ...wire.marks import KEY, needs_in
from ...wire.payload import LARGEST, Payload
from ...wire.times import now, seconds
from ..fetch_turn import FetchParts
from .elsewhere import JobsElsewhere
from .ends import Ending, Outcome
from .memory import JobMemory
from .retry import Bury, End, GoOn, Retry

# What hiredis says when a reply does not fit into the memory of this process.
_NO_MEMORY: Final = "Out of memory"
# How often a processor sees the connection lost before it leaves an ending to others.
_TRIES: Final = 2
# Seconds until it looks after the thread that is to send it.
_LOOK_AGAIN: Final = 0.1

# How far an end has come when the processor goes on.
Until: TypeAlias = Literal["queued", "sent", "told"]


class NotRun(Exception):
    """The outcome of a job that is not performed in the child that has fetched it."""


class MustRunAlone(NotRun):
    """The job may have killed a process, and this child runs other jobs, too. ``held`` is its
    class, if that has killed too many."""

    def __init__(self, held: str = "") -> None:
        super().__init__(held)
        self.held = held


class MustRunSole(NotRun):
    """The job may have killed a whole tree, and other suspects of this tree may run now."""


class NeedsNewer(NotRun):
    """Only a newer forkq can run the job."""


class IsPaused(NotRun):
    """The batch of the job is paused."""

    def __init__(self, pause: BatchPause) -> None:
        super().__init__(pause.bid)
        self.pause = pause


class EndsUnrun(NotRun):
    """The job ends without a run. ``is_counted``: the statistics have this end already."""

    def __init__(self, outcome: EndOutcome, *, is_counted: bool = False) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.is_counted = is_counted


class Unasked(NotRun):
    """Redis did not say whether this job is to be run, or another one in its place."""


class Unread(NotRun):
    """Redis did not give the job's payload."""


class Settler:
    """Shared by all processors: ends a job elsewhere. What Redis refuses is parked: its lease
    stays, and it is told again later. ``on_parked`` is called then: the heartbeat calls
    ``again_in_time`` from then on. ``memory``: what these jobs remember.
    ``elsewhere``: which jobs other processes have.

    A call returns once Redis has the end: what the processor does next must come after. Before that
    if ``until`` says so: once the end is sent, or waits for the next exchange."""

    def __init__(self, fetch: FetchParts, pool: RedisPool, on_parked: Callable[[], None]) -> None:
        self.memory = JobMemory(fetch.ends, pool)
        self.elsewhere = JobsElsewhere(fetch.ends.keys, pool)
        self._ends = fetch.ends
        self._fetcher = fetch.fetcher
        self._leases = fetch.leases
        self._pool = pool
        self._on_parked = on_parked

    def retry(self, unit: UnitOfWork, decision: Retry, *, until: Until = "told") -> None:
        """Drops the lease and schedules the retry. If Redis refuses, the lease stays, and both are
        done later."""
        self._settle(self._ends.retry(unit, decision), until=until)

    def bury(self, unit: UnitOfWork, decision: Bury, *, until: Until = "told") -> None:
        """Drops the lease and adds the job to the dead set. If Redis refuses, the lease stays, and
        both are done later."""
        self._settle(self._ends.bury(unit, decision), until=until)

    def start(self, unit: UnitOfWork, job: Payload) -> None:
        """Does what the features of a job ask when it starts. Where Redis is away the job runs all
        the same: its end, or the next beat, does it. A step of a flow gets the results of others in
        its arguments. Raises Unasked if Redis does not say them, and Dead if they are nowhere."""
        self._take_results(job)
        enqueued_at = job.get("enqueued_at")
        waited = now() - seconds(enqueued_at) if isinstance(enqueued_at, int | float) else inf
        call = self._ends.start(unit, waited)
        if call is not None:
            with suppress(RedisError), self._pool.connection() as connection:
                connection.script(call.script, call.keys, call.arguments)

    def which(self, unit: UnitOfWork) -> Start:
        """Which job is to be run by this unit, which has the job that was fetched (tickets.py).
        Raises Unasked if Redis does not say."""
        call = self._ends.ticket_start(unit)
        if call is None:
            return "run"
        try:
            with self._pool.connection() as connection:
                said: Start = connection.script(call.script, call.keys, call.arguments).decode()
        except RedisError as error:
            raise Unasked(str(error)) from error
        if said == "gone":  # another process has the job
            unit.lost = True
            raise Unasked("its lease is gone")
        if said == "newer":
            unit.payload = b""
            unit.left_bytes = 0
        return said

    def _take_results(self, job: Payload) -> None:
        needs = needs_in(job.get(KEY))
        names = names_taken(needs, job.get("args"))
        if names is not None:
            found = self._results(needs, names) if names else {}
            job["args"] = filled(job["args"], needs, found)

    def _results(self, needs: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        place = place_in(needs)
        assert place is not None
        try:
            with self._flow_at(place.at) as (connection, keys):
                steps = keys.flow_steps(place.bid)
                indices = connection.call("HMGET", steps, *map(field_of_index, names))
                fields = [field_of_end(int(index or -1)) for index in indices]
                ends = connection.call("HMGET", steps, *fields)
        except (RedisError, ServerUnavailable) as error:
            raise Unasked(str(error)) from error
        if None in indices:
            raise Dead(f"the steps of the flow {place.bid} are not in Redis any more")
        return {name: value_for(name, end) for name, end in zip(names, ends, strict=True)}

    @contextmanager
    def _flow_at(self, shard: str) -> Iterator[tuple[RedisConnection, Keys]]:
        """A connection to the shard of a flow, "": this one; and the names of its keys. Raises
        ConfigError if there is no such shard, and ServerUnavailable."""
        if not shard:
            with self._pool.connection() as connection:
                yield connection, self._ends.keys
            return
        server = default().servers[shard]
        with server.connection() as connection:
            yield connection, server.keys

    def done(self, unit: UnitOfWork) -> float:
        """Acknowledges a marked job with the next exchange. Returns the seconds since it was
        taken."""
        ending = self._ends.done(unit, "done")
        if ending is not None:
            ending.told = self._retry_if_refused
        return self._fetcher.done(unit, ending)

    def drop(self, unit: UnitOfWork, *, until: Until = "told") -> None:
        """Drops the lease, and the job with it. If a processor waits for Redis, that one tells it,
        at once."""
        if (ending := self._ends.done(unit, "dropped")) is not None:
            self._settle(ending, until=until)
            return
        try:
            self._fetcher.done(unit)
            if until != "queued":
                self._fetcher.flush()
        except BaseException:
            self._fetcher.drop_locks()
            raise

    def end(self, unit: UnitOfWork, decision: End, *, until: Until = "told") -> None:
        """Drops the lease, and counts how the job ends. If Redis refuses: as ``retry``."""
        self._settle(self._ends.end(unit, decision), until=until)

    def isolate(
        self, unit: UnitOfWork, held: str = "", *, last: bool = False, until: Until = "told"
    ) -> None:
        """Moves the job to its queue's list of suspects: it is one, or its class is ``held``. If
        Redis refuses, the lease stays, and the job is moved later. ``last``: a suspect goes to the
        tail."""
        self._settle(self._ends.isolate(unit, held, last=last), until=until)

    def return_to_queue(self, unit: UnitOfWork, decision: GoOn | None = None) -> None:
        """Returns the job to the head of its queue, or with its cursor, as the ``decision`` says.
        If Redis refuses: as ``retry``."""
        if decision is None:
            self._settle(self._ends.return_to_queue(unit))
        else:
            self._settle(self._ends.go_on(unit, decision), until="queued")

    def again_in_time(self) -> bool:
        """Tells again what Redis has not taken, with growing pauses as long as it goes on refusing.
        Returns whether anything is left."""
        count = self._leases.count()
        if count.ended or count.due:
            self._fetcher.flush()
            count = self._leases.count()
        return count.ended + count.parked > 0

    def _settle(self, ending: Ending, *, until: Until = "told") -> None:
        try:
            if until == "told":
                self._wait_for(ending)
                return
            ending.told = self._retry_if_refused
            self._fetcher.done(ending.unit, ending)
            if until == "sent":
                self._fetcher.flush(ending, wait=False)
        except BaseException:
            self._fetcher.drop_locks()
            raise

    def _wait_for(self, ending: Ending) -> None:
        """Waits until Redis has the end. If the connection is lost twice, the next connection
        carries the end: a cut connection costs a second try, which moves the job, or finds it
        moved."""
        told: SimpleQueue[Outcome] = SimpleQueue()
        ending.told = told.put
        self._fetcher.done(ending.unit, ending)
        for _ in range(_TRIES):
            while self._fetcher.flush(ending):
                with suppress(Empty):
                    if told.get(timeout=_LOOK_AGAIN) == "refused":
                        self._on_parked()
                    return
        self._on_parked()

    def _retry_if_refused(self, outcome: Outcome) -> None:
        """Has the heartbeat retry an end that Redis refused, for which the processor no longer
        waits."""
        if outcome == "refused":
            self._on_parked()

    def read(self, unit: UnitOfWork) -> bytes:
        """The payload of ``unit``, which the fetch has left in Redis because of its size. Raises
        Unread if Redis does not give it, MalformedPayload if no process would decode it, and
        MemoryError."""
        if unit.left_bytes > LARGEST:
            raise MalformedPayload(f"it has {unit.left_bytes:,} bytes, and the most is {LARGEST:,}")
        try:
            found = self._payload_of(unit)
        except RedisError as error:
            if _NO_MEMORY in str(error):
                raise MemoryError(str(error)) from error
            raise Unread(str(error)) from error
        if found is None:  # another process has the job
            unit.lost = True
            raise Unread("its lease is gone")
        unit.payload = found
        return unit.payload

    def _payload_of(self, unit: UnitOfWork) -> bytes | None:
        """The payload that a lease has in Redis; None if the lease is gone. A cut connection costs
        a second try."""
        name = lease.lease(self._ends.identity, unit.sequence)
        command = ("HGET", self._ends.keys.inflight(unit.queue_name), name)
        with suppress(*ConnectionLost), self._pool.connection() as connection:
            first: bytes | None = connection.call(*command)
            return first
        with self._pool.connection() as connection:
            second: bytes | None = connection.call(*command)
            return second
