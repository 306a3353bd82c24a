"""Ending the cancelled jobs where they wait, in the leader's clock.

A child ends a cancelled job that it fetches. This looks for all others: one pass over all sets and
queues, a page at a time, for all notes together. A note is open until its job has ended, or until
two passes have found the job nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import MalformedPayload
from ..features.batch.pause import field_of_pause, read_pauses
from ..features.cancel import parts as cancel
from ..features.cancel.parts import (
    REMEMBERED,
    REMEMBERED_FOR,
    Mark,
    field_in,
    is_of_many,
    read_marks,
)
from ..features.effects import Effect, packed
from ..features.marked import effects, newest_cancelled
from ..store.connection import RedisConnection
from ..store.find_job import all_queues
from ..store.scripts import CANCEL_CLOSED, CANCELLED_JOBS, EFFECTS_ALONE
from ..store.steps import checked
from ..wire.keys import Keys
from ..wire.marks import KEY, needs_newer
from ..wire.payload import Payload, loads_head
from ..wire.times import now
from .removals import Removal, remove
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# What one script looks at: so small that it delays others by some milliseconds at most. Nothing
# bounds the bytes of the second.
_PAGE: Final = 1000
_PAGE_OF_SET: Final = 100
_BYTES: Final = 1 << 20
# So many passes in a row that do not find a job prove that it is nowhere: it may move during one.
_PASSES: Final = 2
# Seconds until the next pass: after one that has not found a job; after one that has found all that
# are left running, at least, and how many times as long as the pass took.
_SOON: Final = 0.2
_WHILE_RUNNING: Final = 5.0
_TIMES_AS_LONG: Final = 20

_Hit: TypeAlias = tuple[bytes, Payload, str]  # a payload, the job in it, the field that cancels it


class CancelledJobs:
    """Ends cancelled jobs in queues and sets, and closes the notes of jobs that are nowhere."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._marks: dict[str, Mark] = {}
        self._missed: dict[str, int] = {}  # field -> passes in a row that have not found its jobs
        self._pass: _Pass | None = None
        self._next_pass = 0.0
        self._watch = False

    def load(self, watch: bool) -> None:
        """Reads what is cancelled."""
        self._watch = watch
        every = tracked(("HGETALL", self._keys.cancelled), watch)
        found = checked(self._connection.pipeline(every))[-1]
        self._forget_old_pauses(found)
        before, self._marks = self._marks, read_marks(found)
        kept = {field for field, mark in self._marks.items() if before.get(field) == mark}
        if len(kept) < len(self._marks):
            self._next_pass = 0.0
        self._missed = {field: self._missed.get(field, 0) for field in kept}

    def _forget_old_pauses(self, found: Mapping[bytes, bytes]) -> None:
        """Removes the pauses of batches that have not changed for as long as a batch is kept."""
        old = [bid for bid, pause in read_pauses(found).items() if pause.is_over(now())]
        if old:
            self._connection.call("HDEL", self._keys.cancelled, *map(field_of_pause, old))

    def next_due(self) -> float | None:
        """When to look, epoch seconds: at once, while a pass is not at its end."""
        if self._pass is not None:
            return 0.0
        return self._next_pass if self._marks else None

    def work(self) -> None:
        """Does the next step of a pass. If one fails, a new pass begins."""
        if self._pass is None:
            self._pass = _Pass(self._keys, self._connection, dict(self._marks))
        try:
            is_over = next(self._pass.steps, True)
        except Exception:
            self._pass = None
            raise
        if is_over:
            self._end(self._pass)

    def _end(self, done: _Pass) -> None:
        """Closes the notes of jobs that were found in none of the last passes."""
        self._pass = None
        if done.ended:
            self._log.info("cancelled jobs were removed", jobs=done.ended)
        for field in done.marks:
            is_missed = field not in done.seen
            self._missed[field] = self._missed.get(field, 0) + 1 if is_missed else 0
        done.close([field for field in done.marks if self._missed[field] >= _PASSES])
        self._next_pass = now() + self._pause(done)
        self.load(self._watch)  # the server does not report this clock's own change

    def _pause(self, done: _Pass) -> float:
        """Seconds until the next pass begins after this one."""
        is_doubted = any(0 < self._missed[field] < _PASSES for field in done.marks)
        if is_doubted or done.ended:
            return _SOON
        return max(_WHILE_RUNNING, (monotonic() - done.began) * _TIMES_AS_LONG)


class _Pass:
    """One look at all sets, lists and leases, in the order in which a job moves. ``marks``: what is
    cancelled; ``seen``: the fields of which jobs were found, waiting or running."""

    def __init__(self, keys: Keys, connection: RedisConnection, marks: dict[str, Mark]) -> None:
        self._keys = keys
        self._connection = connection
        self._with_groups = int(any(map(is_of_many, marks)))
        self.marks = marks
        self.seen: set[str] = set()
        self.ended = 0
        self.began = monotonic()
        self.steps = self._steps()

    def close(self, fields: Sequence[str]) -> None:
        """Removes these notes, unless they are newer than this pass."""
        arguments: list[Any] = [REMEMBERED, REMEMBERED_FOR]
        for field in fields:
            arguments += (field, self.marks[field].value)
        names = (self._keys.cancelled, self._keys.cancelled_lately)
        self._connection.script(CANCEL_CLOSED, names, arguments)

    def _steps(self) -> Iterator[bool]:
        """Yields False after each step."""
        for key in (self._keys.schedule, self._keys.retry):
            yield from self._in_set(key)
        queues = all_queues(self._connection, self._keys)
        for queue in queues:
            yield from self._in_list(self._keys.queue(queue), "")
            yield from self._in_list(self._keys.suspects(queue), queue)
            yield from self._on_the_move(self._keys.moving(queue))
        yield from self._in_locks()
        for queue in queues:
            hits = self._look("hash", self._keys.inflight(queue), "0", 1)[1]
            self.seen.update(field for _, _, field in hits)
            yield False

    def _in_set(self, key: str) -> Iterator[bool]:
        at = "0"
        while at:
            [at], hits = self._look("set", key, at, _PAGE_OF_SET)
            self._remove(key, hits, ("set", 0, "", 0, 0, 0, "", ""))
            yield False

    def _in_list(self, key: str, suspects_of: str) -> Iterator[bool]:
        at = "0"
        while at:
            (at, behind, count, first), hits = self._look("list", key, at, _PAGE)
            place = ("list", 0, "", 0, behind, count, suspects_of, first)
            removed = self._remove(key, hits, place)
            at = str(int(at) - removed) if at else ""
            yield False

    def _on_the_move(self, key: str) -> Iterator[bool]:
        """Notes the cancelled jobs of a page that is under way to another shard, which no script
        may change: the process that moves it tells that shard what is cancelled."""
        at = "0"
        while at:
            (at, *_), hits = self._look("list", key, at, _PAGE)
            self.seen.update(field for _, _, field in hits)
            yield False

    def _in_locks(self) -> Iterator[bool]:
        """Ends the cancelled jobs that wait without an entry: each lock of the index has one."""
        locks = self._connection.call("ZRANGE", self._keys.tickets, 0, -1)
        for first in range(0, len(locks), _PAGE_OF_SET):
            page = locks[first : first + _PAGE_OF_SET]
            found = self._connection.pipeline([("HGET", lock, "next") for lock in page])
            hits = [self._hit(payload) for payload in found if type(payload) is bytes and payload]
            for _, job, field in (hit for hit in hits if hit is not None):
                self._end_newest(job, field)
            yield False

    def _end_newest(self, job: Payload, field: str) -> None:
        self.seen.add(field)
        asked = newest_cancelled(self._keys, job)
        if not asked or needs_newer(job.get(KEY)):
            return
        if not is_of_many(field):
            asked += tuple(cancel.effects(self._keys, str(job.get("jid") or "")))
        names: list[Any] = []
        text = packed(asked, names, self._keys.totals("ends"))
        self._connection.script(EFFECTS_ALONE, names, (text,))
        self.ended += 1

    def _look(self, kind: str, key: str, at: str, most: int) -> tuple[list[Any], list[_Hit]]:
        """Where to go on, with the place of the page, and the cancelled jobs of a page."""
        arguments = (kind, at, most, _BYTES, self._with_groups)
        answer = self._connection.script(CANCELLED_JOBS, (self._keys.cancelled, key), arguments)
        length = 4 if kind == "list" else 1
        place = [str(answer[0], "ascii"), *answer[1:length]]
        hits = (self._hit(payload) for payload in answer[length:])
        return place, [hit for hit in hits if hit is not None]

    def _hit(self, payload: bytes) -> _Hit | None:
        """The job, if it is cancelled: the script has only found a name in its text."""
        try:
            job = loads_head(payload)
        except MalformedPayload:
            return None
        field = field_in(self.marks, job)
        return (payload, job, field) if field else None

    def _remove(self, key: str, hits: Sequence[_Hit], place: Sequence[Any]) -> int:
        """Ends these jobs, which stand at ``place``. Returns how many were still there. One that
        needs a newer forkq is left to that: its features are not known here."""
        self.seen.update(field for _, _, field in hits)
        known = [hit for hit in hits if not needs_newer(hit[1].get(KEY))]
        if not known:
            return 0
        found = [Removal(raw, job, self._effects(job, field)) for raw, job, field in known]
        ended = remove(self._connection, self._keys, key, place, "cancelled", found)
        self.ended += ended
        return ended

    def _effects(self, job: Payload, field: str) -> Sequence[Effect]:
        """What happens together with the end of a job. One of a cancelled class or batch has no
        note, and is not remembered: there may be a million."""
        asked = effects(self._keys, job, "cancelled")
        if is_of_many(field):
            return asked
        return (*asked, *cancel.effects(self._keys, str(job.get("jid") or "")))
