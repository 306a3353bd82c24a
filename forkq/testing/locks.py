"""The locks of unique jobs in a test without Redis, and what was pushed once."""

from __future__ import annotations

from math import inf

from ..features.once.parts import KNOWN_FOR
from ..features.unique.parts import Lock, Unique, lock_in
from ..features.ways import BY_NAME
from ..store.route import EncodedJob
from ..wire.lease import UnitOfWork
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload
from ..wire.times import now


class Locks:
    """Who has which lock, and until when, and which jobs were pushed once: what the scripts keep in
    Redis."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, float]] = {}
        self._pushed: dict[str, float] = {}

    def take(self, job: EncodedJob, at: float, duplicates: dict[str, str]) -> bool:
        """Whether the job is pushed at ``at``: it was not pushed before, and has no lock, or gets
        it. If another job has that, ``duplicates`` has which one."""
        needs = job.needs
        if needs is None:
            return True
        if needs.is_once and self._pushed.get(job.jid, -inf) > at:
            return False
        if not needs.gives_way and not self._take_lock(job, needs.unique, at, duplicates):
            return False  # for what gives way see Recorder.add
        if needs.is_once:
            self._pushed[job.jid] = at + KNOWN_FOR
        return True

    def _take_lock(
        self, job: EncodedJob, unique: Unique | None, at: float, duplicates: dict[str, str]
    ) -> bool:
        if unique is None:
            return True
        holder, until = self._held.get(job.lock, ("", 0.0))
        if holder not in ("", job.jid) and until > at:
            duplicates[job.jid] = holder
            return False
        due = at if job.at is None else job.at
        self._held[job.lock] = job.jid, due + unique.seconds
        return True

    def start(self, unit: UnitOfWork) -> None:
        """Frees the lock of a job that has it until it starts."""
        self._free(unit.marked, ("start",))

    def leave(self, unit: UnitOfWork, way: str) -> None:
        """Does with the lock of a job what the table says of this way."""
        self.end(unit.marked, way)

    def end(self, marked: Payload | None, way: str) -> None:
        """``leave`` for a job that has no unit of work: it waits."""
        if BY_NAME[way].lock == "freed":
            self._free(marked, ("start", "end"))
        elif BY_NAME[way].lock == "held" and marked is not None:
            lock = _lock_of(marked)
            if lock is not None and lock.until == "end" and lock.kind is None:
                self._held[lock.digest] = marked["jid"], now() + lock.seconds

    def holder(self, digest: str) -> str:
        """The jid of the job that has that lock; "" if it is free."""
        jid, until = self._held.get(digest, ("", 0.0))
        return jid if until > now() else ""

    def _free(self, marked: Payload | None, until: tuple[str, ...]) -> None:
        lock = None if marked is None else _lock_of(marked)
        if lock is None or marked is None or lock.until not in until:
            return
        if self._held.get(lock.digest, ("", 0.0))[0] == marked["jid"]:
            del self._held[lock.digest]


def _lock_of(job: Payload) -> Lock | None:
    return lock_in(needs_in(job.get(KEY)))
