"""The locks of unique jobs in a test without Redis, and what was pushed once."""

from __future__ import annotations

from math import inf

from ..features.once.parts import KNOWN_FOR
from ..features.throttle.parts import Throttle
from ..features.unique.parts import Lock, lock_in
from ..features.ways import BY_NAME
from ..store.route import EncodedJob
from ..wire.lease import UnitOfWork
from ..wire.marks import KEY, needs_in
from ..wire.payload import Payload
from ..wire.times import now


class Locks:
    """Who has which lock, and until when, which jobs were pushed once, and how often throttled ones
    were pushed lately: what the scripts keep in Redis."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, float]] = {}
        self._pushed: dict[str, float] = {}
        self._windows: dict[str, list[float]] = {}

    def take(self, job: EncodedJob, at: float, duplicates: dict[str, str]) -> bool:
        """Whether the job is pushed at ``at``: it was not pushed before, its throttle lets it
        through, and it has no lock, or gets it. If another job has that, ``duplicates`` has which
        one; "" if the throttle keeps it out."""
        needs = job.needs
        if needs is None:
            return True
        if needs.is_once and self._pushed.get(job.jid, -inf) > at:
            return False
        holder, until = self._held.get(job.lock, ("", 0.0))
        if holder not in ("", job.jid) and until > at:
            duplicates[job.jid] = holder
            return False
        if needs.throttle is not None and not self._lets_through(needs.throttle, job.window, at):
            duplicates[job.jid] = ""
            return False
        if needs.unique is not None and not needs.gives_way:  # for these see Recorder.add
            self._held[job.lock] = job.jid, (job.at or at) + needs.unique.seconds
        if needs.is_once:
            self._pushed[job.jid] = at + KNOWN_FOR
        return True

    def _lets_through(self, throttle: Throttle, window: str, at: float) -> bool:
        """Whether the throttle lets one more push through, which is noted then."""
        moments = [at, *self._windows.get(window, [])][: throttle.most + 1]
        if len(moments) > throttle.most and moments[-1] > at - throttle.milliseconds / 1000:
            return False
        self._windows[window] = moments[: throttle.most]
        return True

    def start(self, unit: UnitOfWork) -> None:
        """Frees the lock of a job that has it until it starts."""
        self._free(unit.marked, ("start",))

    def leave(self, marked: Payload | None, way: str) -> None:
        """Does with the lock of a job what the table says of this way."""
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
