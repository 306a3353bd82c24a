"""Giving the jobs of a dead owner back. Used by the master for its children, by the clock for
processes that nobody else looks after.

A job whose owner crashed carries a crash record from then on, and is buried when it has seen too
many: a job that takes its child down must not take down one child after the other for ever.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .connection import Wire
from .dead import Cemetery
from .errors import Crashed, InvalidJob, MalformedPayload
from .lease import owner
from .patterns import is_pattern, matching, readable
from .payload import Job, dumps, loads
from .scripts import LEASES, REQUEUE
from .text import shown_name
from .times import now, seconds

DEADLY_CRASHES: Final = 3
_WINDOW: Final = 72 * 3600.0
# Of how many queues one script looks through the leases.
_CHUNK: Final = 500
_LAST_COUNTS: Final = 3600  # seconds
_NOTE_TTL: Final = 86_400  # seconds; a host that was cut off for longer counts nothing
# What recover.lua understands.
_REQUEUE: Final = "requeue"
_BURY: Final = "bury"


@dataclass(frozen=True, slots=True)
class Crash:
    """How an owner died. ``rss`` is its peak memory in KiB."""

    signal: int | None = None
    exit: int | None = None
    rss: int | None = None
    reason: str | None = None

    def record(self) -> Job:
        """As it stands in a payload: docs/wire.md, ``forkq``."""
        fields = {"signal": self.signal, "exit": self.exit, "rss": self.rss}
        reason = {"reason": self.reason} if self.reason else {}
        return {"at": now(), **fields, "host": socket.gethostname(), **reason}


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did: how many jobs it moved, and which of them it buried."""

    moved: int
    buried: list[str]

    def tell(self, log: Any, event: str, **details: Any) -> None:
        """One line for the jobs that go back, one for each that was buried. No death handler runs:
        they are the app's, and neither master nor clock runs the app's code."""
        back = self.moved - len(self.buried)
        if back > 0:
            log.warning(event, jobs=back, **details)
        for job in self.buried:
            log.error("job buried: its process died too often under it", job=job)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Gives leases back on one server."""

    cemetery: Cemetery

    def requeue(self, wire: Wire, queues: Sequence[str], identity: str) -> Recovered:
        """Puts the owner's jobs back as they are: a graceful end is no crash."""
        keys, moved = self.cemetery.keys, 0
        for names in self._known(wire, queues):
            moved += int(wire.script(REQUEUE, keys.lists_and_leases(names), (owner(identity), 0)))
        return Recovered(moved, [])

    def recover(
        self,
        wire: Wire,
        queues: Sequence[str],
        identity: str,
        crash: Crash,
        *,
        may_return: bool = False,
    ) -> Recovered:
        """Puts the owner's jobs back with a crash record, or buries them. An owner that
        ``may_return``, being perhaps only cut off, finds a note of it (child/losses.py)."""
        moved = 0
        buried: list[str] = []
        for names in self._known(wire, queues):
            done = self._recover(wire, names, identity, crash, may_return)
            moved, buried = moved + done.moved, buried + done.buried
        return Recovered(moved, buried)

    def _known(self, wire: Wire, queues: Sequence[str]) -> Iterator[Sequence[str]]:
        """The queues by their names, a bounded number at a time: patterns stand for many."""
        names = {name: None for name in queues if not is_pattern(name)}
        patterns = [name for name in queues if is_pattern(name)]
        if patterns:
            known = readable(wire.call("SMEMBERS", self.cemetery.keys.queues))
            names |= {name: None for pattern in patterns for name in matching(pattern, known)}
        found = list(names)
        for start in range(0, len(found), _CHUNK):
            yield found[start : start + _CHUNK]

    def _recover(
        self, wire: Wire, queues: Sequence[str], identity: str, crash: Crash, may_return: bool
    ) -> Recovered:
        keys = self.cemetery.keys
        hashes = [keys.inflight(queue) for queue in queues]
        found: list[Any] = wire.script(LEASES, hashes, (owner(identity),))
        moves: list[object] = []
        buried: list[str] = []
        for at in range(len(found) - 3, -1, -3):
            queue, lease, payload = found[at : at + 3]
            verdict, stamped = _stamped(payload, queues[queue - 1], crash)
            moves += (queue, lease, verdict, stamped, named(payload) if may_return else "")
            if verdict == _BURY:
                buried.append(named(stamped))
        if not moves:
            return Recovered(0, [])
        note_for = _NOTE_TTL if may_return else 0
        moved = self.cemetery.recover(wire, queues, identity, moves, note_for=note_for)
        return Recovered(moved, buried)

    def forget(self, wire: Wire, identity: str) -> None:
        """Takes all that a dead process said of itself away."""
        keys = self.cemetery.keys
        wire.pipeline(
            [
                ("SREM", keys.processes, identity),
                ("DEL", keys.process(identity), keys.work(identity), keys.signals(identity)),
                ("DEL", keys.place(identity)),
                # Not at once: the rescue may come later to count what was not flushed.
                ("EXPIRE", keys.flushed(identity), _LAST_COUNTS),
            ]
        )

    def strike(self, wire: Wire, identity: str) -> None:
        """Takes a process that seems lost off the list of processes. The rest of what it said of
        itself expires, and is needed if it returns."""
        keys = self.cemetery.keys
        replies = wire.pipeline(
            [("SREM", keys.processes, identity), ("EXISTS", keys.process(identity))]
        )
        if replies[1] == 1:  # it returned this very moment
            wire.call("SADD", keys.processes, identity)


def named(payload: bytes) -> str:
    """Class and jid of a job, for people."""
    try:
        job = loads(payload)
    except MalformedPayload:
        return "malformed payload"
    return f"{shown_name(job['class'])} {shown_name(job.get('jid'))}"


def _stamped(payload: bytes, queue: str, crash: Crash) -> tuple[str, bytes]:
    """What to do with a job that was in flight when its owner crashed, and its new payload."""
    try:
        job = loads(payload)
        crashes = _crashes(job)
        crashes.append(crash.record())
        if _recent(crashes) < DEADLY_CRASHES:
            return _REQUEUE, dumps(job)
        _condemn(job, queue, crash)
        return _BURY, dumps(job)
    except (MalformedPayload, InvalidJob):
        return _REQUEUE, payload  # a processor will find out, and bury it as it is


def _crashes(job: Job) -> list[Any]:
    """The crash records in ``job``; whatever a stranger wrote in their place is replaced."""
    if type(job.get("forkq")) is not dict:
        job["forkq"] = {}
    if type(job["forkq"].get("crashes")) is not list:
        job["forkq"]["crashes"] = []
    crashes: list[Any] = job["forkq"]["crashes"]
    return crashes


def _recent(crashes: list[Any]) -> int:
    stamps = [crash.get("at") for crash in crashes if type(crash) is dict]
    since = now() - _WINDOW
    return len([at for at in stamps if isinstance(at, int | float) and seconds(at) > since])


def _condemn(job: Job, queue: str, crash: Crash) -> None:
    code = f"signal {crash.signal}" if crash.signal else f"exit code {crash.exit}"
    end = crash.reason or code
    job["queue"] = queue
    job["error_class"] = f"{Crashed.__module__}.{Crashed.__qualname__}"
    job["error_message"] = (
        f"its process died {DEADLY_CRASHES} times within {_WINDOW / 3600:.0f} hours while this "
        f"job ran, last by {end}"
    )
    job.setdefault("failed_at", now())
