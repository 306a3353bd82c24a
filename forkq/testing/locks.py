"""The locks of unique jobs in a test without Redis."""

from __future__ import annotations

from ..features.unique.parts import Lock, lock_in
from ..features.ways import BY_NAME
from ..store.route import EncodedJob
from ..wire.lease import UnitOfWork
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload
from ..wire.times import now


class Locks:
    """Who has which lock, and until when: what the scripts keep in Redis."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, float]] = {}

    def take(self, job: EncodedJob, at: float, duplicates: dict[str, str]) -> bool:
        """Whether the job may be pushed at ``at``: it has no lock, or gets it. If not,
        ``duplicates`` has who has it."""
        unique = job.needs and job.needs.unique
        if unique is None or unique.kind in ("n", "d"):  # for the latter see Recorder.add
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
