"""Moving due jobs from the schedule and retry sets to their queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

import msgspec

from ..errors import InvalidJob, MalformedPayload
from ..features.effects import name_of, packed
from ..features.expire.parts import is_over
from ..features.marked import effects
from ..store.connection import Command, RedisConnection
from ..store.scripts import DUE_JOBS, FIRST_DUE, Call
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.malformed import wrap_malformed
from ..wire.marks import KEY, is_suspect, needs_in
from ..wire.payload import DEFAULT_QUEUE, Payload, dumps, keys_at_ends, loads_head
from ..wire.times import now
from .tracking import tracked

# Small enough that no script delays the server's other clients, large enough that many due jobs are
# moved soon. The bytes bound the memory that a batch of large jobs takes: so many, and one job.
_BATCH: Final = 100
_BYTES: Final = 1 << 19
# Seconds for which a batch is what is due. A person may give a job in it another time: the script
# does not look at that.
_KEPT_FOR: Final = 10.0
# What due_jobs.lua takes in the place of the number of a queue.
_BURIED: Final = 0
_EXPIRED: Final = -1


class DueSet(msgspec.Struct):
    """One of the two sets, as it was when last read: ``batch`` is what to move next (a member, or
    rank, length and beginning of a large one), ``later`` when the first job after the batch is due
    (epoch seconds; None: there is none). ``found_at``: when it was read (monotonic)."""

    name: str
    batch: Sequence[Any] = ()
    later: float | None = None
    found_at: float = 0.0

    @property
    def next_due(self) -> float | None:
        """When the next job of the set is due, epoch seconds; 0 if there is a batch to move now."""
        return 0.0 if self.batch else self.later


class DueJobMover(msgspec.Struct):
    """Moves due jobs on one connection, in batches, and each set's in order of time.

    ``names`` are the sets; by default both. ``on_damaged_queues`` is called with the queues whose
    key holds another type: their jobs are tried again in a minute.
    """

    keys: Keys
    connection: RedisConnection
    names: tuple[str, ...] = ()
    on_damaged_queues: Callable[[Sequence[str]], None] = lambda queues: None
    sets: tuple[DueSet, ...] = ()
    _watch: bool = False

    def __post_init__(self) -> None:
        names = self.names or (self.keys.schedule, self.keys.retry)
        self.sets = tuple(DueSet(name) for name in names)

    def load(self, watch: bool) -> None:
        """Reads when the next jobs are due. With ``watch``, the server reports later changes of
        either set. Raises ResponseError if the key of a set holds another type.

        A batch that was just found due stays: were it read anew, a set that changes all the time
        would put off what is due for ever."""
        self._watch = watch
        commands: list[Command | Call] = []
        for due_set in self.sets:
            if watch:
                commands += tracked(("EXISTS", due_set.name), watch)
            commands.append(Call(FIRST_DUE, (due_set.name,), ()))
        replies = checked(self.connection.exchange(commands))
        every = len(commands) // len(self.sets)
        for due_set, first in zip(self.sets, replies[every - 1 :: every], strict=True):
            due_set.later = float(first) if first else None
            if monotonic() - due_set.found_at > _KEPT_FOR:  # another clock may have led meanwhile
                due_set.batch = ()

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
        names, moves = self._calls_moves(due_set, at)
        later, damaged, *due_set.batch = self.connection.script(
            DUE_JOBS, names, (at, _BATCH, _BYTES, *moves)
        )
        if damaged:
            self.on_damaged_queues([queue.decode("utf-8", "replace") for queue in damaged])
        due_set.found_at = monotonic()
        due_set.later = float(later) if later else None

    def _calls_moves(self, due_set: DueSet, at: float) -> tuple[list[str], list[Any]]:
        """The keys of due_jobs.lua, and its arguments for the moves of a batch."""
        keys, ends = self.keys, self.keys.totals("ends")
        moves = [
            _stamped(member, at) if type(member) is bytes else _unread(*member)
            for member in due_set.batch
        ]
        queues = list(dict.fromkeys(move.queue for move in moves if move.queue is not None))
        numbers = {queue: number for number, queue in enumerate(queues, start=1)}
        names = [due_set.name, keys.queues, keys.dead, keys.suspected, keys.marked, ends]
        names += (key for name in queues for key in (keys.queue(name), keys.suspects(name)))
        arguments: list[Any] = []
        for move in moves:
            to: int | str = _BURIED if move.queue is None else numbers[move.queue]
            if move.marked is not None:
                to = _EXPIRED if move.has_expired else to
                way = "expired" if move.has_expired else "due"
                to = f"{to} {packed(effects(keys, move.marked, way), names, ends)}".rstrip()
            arguments += (to, int(move.alone), move.rank, move.member, move.payload)
        return names, arguments


class _Move(msgspec.Struct, frozen=True):
    """Where a due job goes: to a ``queue``, or to its suspects (``alone``); without one it is
    buried, unless it ``has_expired``. ``marked`` is the job, if its features may ask something.
    ``rank``, ``member`` and ``payload`` are arguments of due_jobs.lua."""

    queue: str | None
    member: bytes
    payload: bytes | str | int
    alone: bool = False
    rank: int | str = ""
    marked: Payload | None = None
    has_expired: bool = False


def _stamped(member: bytes, at: float) -> _Move:
    """The move of a due job, whose payload gets ``enqueued_at``. What is not a job is buried."""
    try:
        job = loads_head(member)
        queue = job.get("queue") or DEFAULT_QUEUE
        if type(queue) is not str:
            return _Move(None, member, member)
        marked = job if needs_in(job.get(KEY)) else None
        if marked is not None and is_over(needs_in(job.get(KEY)), at):
            return _Move(None, member, name_of(job), marked=marked, has_expired=True)
        job["enqueued_at"] = at
        return _Move(queue, member, dumps(job), is_suspect(job.get(KEY)), marked=marked)
    except (MalformedPayload, InvalidJob) as error:
        return _Move(None, member, wrap_malformed(member, DEFAULT_QUEUE, error))


def _unread(rank: int, length: int, head: bytes, end: bytes) -> _Move:
    """The move of a large job, of which the clock knows the two ends. It stays as it is. forkq and
    Ruby write the queue before the arguments, others perhaps after them; without one it is
    buried."""
    queue = keys_at_ends(head, end, "queue").get("queue")
    return _Move(queue if type(queue) is str and queue else None, head, length, rank=rank)
