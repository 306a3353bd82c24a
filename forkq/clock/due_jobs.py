"""Moving what is due from the schedule and retry sets to the queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import InvalidJob, MalformedPayload
from ..store.connection import Command, RedisConnection
from ..store.scripts import DUE_JOBS
from ..wire.keys import Keys
from ..wire.payload import DEFAULT_QUEUE, dumps, legible, loads
from ..wire.times import now

# Small enough that no script holds the server up, large enough that a flood is soon over. The bytes
# bound what a batch of huge jobs takes of everybody's memory: that many, and one job.
_BATCH: Final = 100
_BYTES: Final = 1 << 19
_FIXED_KEYS: Final = 3
_TO_THE_DEAD: Final = 3


@dataclass(slots=True)
class Source:
    """One of the two sets, as it was when last looked at: ``ripe`` is the batch to move next,
    ``due`` when the first job after it is (epoch seconds)."""

    name: str
    ripe: Sequence[bytes] = ()
    due: float | None = None

    @property
    def next_due(self) -> float | None:
        """Epoch seconds; 0 if there is something to move at once."""
        return 0.0 if self.ripe else self.due


@dataclass(slots=True)
class DueJobMover:
    """Moves due jobs on one wire, in batches, each set's in order of time. ``names`` are the sets:
    both, unless told otherwise. ``on_put_off`` gets the queues that take nothing: their jobs are
    tried again in a minute."""

    keys: Keys
    connection: RedisConnection
    names: tuple[str, ...] = ()
    on_put_off: Callable[[Sequence[str]], None] = lambda queues: None
    sources: tuple[Source, ...] = field(init=False)
    _watch: bool = False

    def __post_init__(self) -> None:
        names = self.names or (self.keys.schedule, self.keys.retry)
        self.sources = tuple(Source(name) for name in names)

    def load(self, watch: bool) -> None:
        """Looks when the next jobs are due. With ``watch``, the server tells the wire when either
        set has changed since. Raises ResponseError if something else is in a set's place."""
        self._watch = watch
        commands: list[Command] = []
        for source in self.sources:
            if watch:
                commands.append(("CLIENT", "CACHING", "YES"))
            commands.append(("ZRANGE", source.name, 0, 0, "WITHSCORES"))
        replies = self.connection.pipeline(commands)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        for source, reply in zip(self.sources, replies[watch :: 1 + watch], strict=True):
            source.ripe, source.due = (), _score(reply)

    def next_due(self) -> float | None:
        """When the next job is due, epoch seconds, as far as is known; None if there is none."""
        dues = [due for source in self.sources if (due := source.next_due) is not None]
        return min(dues, default=None)

    def work(self) -> None:
        """Moves a batch of each set that has something due; more may be. Looks at the sets again
        when all is moved: the server does not tell of what we change ourselves."""
        at = now()
        for source in self.sources:
            if source.next_due is not None and source.next_due <= at:
                self._move(source, at)
        due = self.next_due()
        if due is None or due > at:
            self.load(self._watch)

    def _move(self, source: Source, at: float) -> None:
        lists: dict[str, int] = {}
        moves: list[Any] = []
        for member in source.ripe:
            queue, payload = _woken(member, at)
            if queue is None:
                moves += (_TO_THE_DEAD, "", member, payload)
            else:
                number = lists.setdefault(queue, _FIXED_KEYS + 1 + len(lists))
                moves += (number, queue, member, payload)
        keys = (source.name, self.keys.queues, self.keys.dead, *map(self.keys.queue, lists))
        due, put_off, *source.ripe = self.connection.script(
            DUE_JOBS, keys, (at, _BATCH, _BYTES, *moves)
        )
        if put_off:
            self.on_put_off([queue.decode("utf-8", "replace") for queue in put_off])
        source.due = float(due) if due else None


def _woken(member: bytes, at: float) -> tuple[str | None, bytes]:
    """The queue of a due job and its payload with ``enqueued_at``; no queue: it is no job, and the
    payload is what to bury."""
    try:
        job = loads(member)
        queue = job.get("queue") or DEFAULT_QUEUE
        if type(queue) is not str:
            return None, member
        job["enqueued_at"] = at
        return queue, dumps(job)
    except (MalformedPayload, InvalidJob) as error:
        return None, legible(member, DEFAULT_QUEUE, error)


def _score(reply: Any) -> float | None:
    """The score in a ZRANGE reply: RESP3 answers pairs, RESP2 a flat list."""
    if not reply:
        return None
    return float(reply[0][1] if isinstance(reply[0], list) else reply[1])
