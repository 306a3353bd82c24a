"""Moving due jobs from the schedule and retry sets to their queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import InvalidJob, MalformedPayload
from ..store.connection import Command, RedisConnection
from ..store.scripts import DUE_JOBS
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.malformed import wrap_malformed
from ..wire.payload import DEFAULT_QUEUE, dumps, loads
from ..wire.times import now

# Small enough that no script delays the server's other clients, large enough that many due jobs are
# moved soon. The bytes bound the memory that a batch of large jobs takes: so many, and one job.
_BATCH: Final = 100
_BYTES: Final = 1 << 19
_FIXED_KEYS: Final = 3
_DEAD_KEY: Final = 3  # the number of the dead set among due_jobs.lua's keys


@dataclass(slots=True)
class DueSet:
    """One of the two sets, as it was when last read: ``batch`` is what to move next, ``later``
    when the first job after the batch is due (epoch seconds; None: there is none)."""

    name: str
    batch: Sequence[bytes] = ()
    later: float | None = None

    @property
    def next_due(self) -> float | None:
        """Epoch seconds; 0 if there is a batch to move now."""
        return 0.0 if self.batch else self.later


@dataclass(slots=True)
class DueJobMover:
    """Moves due jobs on one connection, in batches, and each set's in order of time.

    ``names`` are the sets; by default both. ``on_damaged_queues`` is called with the queues whose
    key holds another type: their jobs are tried again in a minute.
    """

    keys: Keys
    connection: RedisConnection
    names: tuple[str, ...] = ()
    on_damaged_queues: Callable[[Sequence[str]], None] = lambda queues: None
    sets: tuple[DueSet, ...] = field(init=False)
    _watch: bool = False

    def __post_init__(self) -> None:
        names = self.names or (self.keys.schedule, self.keys.retry)
        self.sets = tuple(DueSet(name) for name in names)

    def load(self, watch: bool) -> None:
        """Reads when the next jobs are due. With ``watch``, the server reports later changes of
        either set. Raises ResponseError if the key of a set holds another type."""
        self._watch = watch
        commands: list[Command] = []
        for due_set in self.sets:
            if watch:
                commands.append(("CLIENT", "CACHING", "YES"))
            commands.append(("ZRANGE", due_set.name, 0, 0, "WITHSCORES"))
        replies = checked(self.connection.pipeline(commands))
        for due_set, reply in zip(self.sets, replies[watch :: 1 + watch], strict=True):
            due_set.batch, due_set.later = (), _score(reply)

    def next_due(self) -> float | None:
        """When the next job is due, epoch seconds, as far as is known; None if there is none."""
        times = [at for due_set in self.sets if (at := due_set.next_due) is not None]
        return min(times, default=None)

    def work(self) -> None:
        """Moves a batch of each set that has due jobs; more may be due then. Reads the sets again
        when all due jobs are moved: the server does not report the mover's own changes."""
        at = now()
        for due_set in self.sets:
            if due_set.next_due is not None and due_set.next_due <= at:
                self._move(due_set, at)
        due = self.next_due()
        if due is None or due > at:
            self.load(self._watch)

    def _move(self, due_set: DueSet, at: float) -> None:
        queues, moves = _moves(due_set.batch, at)
        lists = map(self.keys.queue, queues)
        keys = (due_set.name, self.keys.queues, self.keys.dead, *lists)
        later, damaged, *due_set.batch = self.connection.script(
            DUE_JOBS, keys, (at, _BATCH, _BYTES, *moves)
        )
        if damaged:
            self.on_damaged_queues([queue.decode("utf-8", "replace") for queue in damaged])
        due_set.later = float(later) if later else None


def _moves(batch: Sequence[bytes], at: float) -> tuple[list[str], list[Any]]:
    """The queues that the jobs of a batch go to, and due_jobs.lua's arguments for the moves."""
    key_numbers: dict[str, int] = {}
    moves: list[Any] = []
    for member in batch:
        queue, payload = _stamped(member, at)
        if queue is None:
            moves += (_DEAD_KEY, "", member, payload)
        else:
            number = key_numbers.setdefault(queue, _FIXED_KEYS + 1 + len(key_numbers))
            moves += (number, queue, member, payload)
    return list(key_numbers), moves


def _stamped(member: bytes, at: float) -> tuple[str | None, bytes]:
    """The queue of a due job, and its payload with ``enqueued_at``. If the member is not a job:
    None, and the payload to bury."""
    try:
        job = loads(member)
        queue = job.get("queue") or DEFAULT_QUEUE
        if type(queue) is not str:
            return None, member
        job["enqueued_at"] = at
        return queue, dumps(job)
    except (MalformedPayload, InvalidJob) as error:
        return None, wrap_malformed(member, DEFAULT_QUEUE, error)


def _score(reply: Any) -> float | None:
    """The score in a reply to ZRANGE: RESP3 returns pairs, RESP2 a flat list."""
    if not reply:
        return None
    return float(reply[0][1] if isinstance(reply[0], list) else reply[1])
