"""Giving the jobs of a dead owner back. Used by the master for its children, by the clock for
processes that nobody else looks after.

A job whose owner crashed carries a crash record from then on, and is buried when it has seen too
many: a job that takes its child down must not take down one child after the other for ever.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import Crashed, InvalidJob, MalformedPayload
from ..limits.patterns import is_pattern, matching, readable
from ..wire.lease import owner
from ..wire.payload import Payload, dumps, loads
from ..wire.printable import shown_name
from ..wire.times import now, seconds
from .connection import Call, DamagedKey, RedisConnection, RedisError, ResponseError
from .dead_set import DeadSet
from .scripts import LEASES_OF_OWNER, REQUEUE
from .steps import Steps, checked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

DEADLY_CRASHES: Final = 3
_WINDOW: Final = 72 * 3600.0
# Of how many queues one script looks through the leases.
_CHUNK: Final = 500
# How much of their payloads one script moves; and from which size on one stays in Redis meanwhile.
_BYTES: Final = 4 << 20
_LARGE: Final = 64 << 10
_LAST_COUNTS: Final = 3600  # seconds
_NOTE_TTL: Final = 86_400  # seconds; a host that was cut off for longer counts nothing
# What recover.lua understands.
_REQUEUE: Final = "requeue"
_BURY: Final = "bury"
# How our own key begins where we have written it: at the end of a large payload.
_KEY: Final = b',"forkq":{'
_CLASS: Final = rb'"class"\s*:\s*"([^"\\]{1,100})"'
_JID: Final = rb'"jid"\s*:\s*"([^"\\]{1,100})"'


@dataclass(frozen=True, slots=True)
class Crash:
    """How an owner died. ``rss`` is its peak memory in KiB."""

    signal: int | None = None
    exit: int | None = None
    rss: int | None = None
    reason: str | None = None

    def record(self) -> Payload:
        """As it stands in a payload: docs/wire.md, ``forkq``."""
        fields = {"signal": self.signal, "exit": self.exit, "rss": self.rss}
        reason = {"reason": self.reason} if self.reason else {}
        return {"at": now(), **fields, "host": socket.gethostname(), **reason}


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did: how many jobs it moved, and which of them it buried."""

    moved: int
    buried: list[str]

    def tell(self, log: FilteringBoundLogger, event: str, **details: Any) -> None:
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

    dead_set: DeadSet

    def requeue(self, queues: Sequence[str], identity: str) -> Steps[Recovered]:
        """Puts the owner's jobs back as they are: a graceful end is no crash."""
        keys, moved = self.dead_set.keys, 0
        arguments = (owner(identity), 0, _BYTES)
        for names in (yield from self._known(queues)):
            call = Call(REQUEUE, (keys.queues, *keys.lists_and_leases(names)), arguments)
            left = 1
            while left:
                [(done, left)] = checked((yield [call]))
                moved += done
        return Recovered(moved, [])

    def recover(
        self, queues: Sequence[str], identity: str, crash: Crash, *, may_return: bool = False
    ) -> Steps[Recovered]:
        """Puts the owner's jobs back with a crash record, or buries them.

        An owner that ``may_return`` may only be cut off from Redis. It finds a note of what it
        lost (child/fetch/lost_leases.py).
        """
        moved = 0
        buried: list[str] = []
        problem: RedisError | None = None
        for names in (yield from self._known(queues)):
            at: Sequence[object] = (1, "")
            while at[0]:
                at, found = yield from self._list(names, identity, at)
                moves = yield from self._moves(names, found, crash)
                note_for = _NOTE_TTL if may_return else 0
                try:
                    moved += yield from self._move(names, identity, moves, note_for)
                except ResponseError as error:  # something else in a queue's place
                    problem = error
                else:
                    buried += [move.name for move in moves if move.verdict == _BURY]
        if problem is not None:
            raise problem
        return Recovered(moved, buried)

    def _known(self, queues: Sequence[str]) -> Steps[list[list[str]]]:
        """The queues by their names, a bounded number at a time: patterns stand for many."""
        names = {name: None for name in queues if not is_pattern(name)}
        patterns = [name for name in queues if is_pattern(name)]
        if patterns:
            keys = self.dead_set.keys
            replies = yield [("SMEMBERS", keys.queues), ("ZRANGE", keys.fetched, 0, -1)]
            # Where one of the two keys is damaged, the other one names nearly all queues.
            known = [r for r in replies if not isinstance(r, DamagedKey)] or replies
            every = readable(name for reply in checked(known) for name in reply)
            names |= {name: None for pattern in patterns for name in matching(pattern, every)}
        found = list(names)
        return [found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK)]

    def _list(
        self, queues: Sequence[str], identity: str, at: Sequence[object]
    ) -> Steps[tuple[Sequence[object], list[_Lease]]]:
        """The next leases, and where to go on after them."""
        hashes = [self.dead_set.keys.inflight(queue) for queue in queues]
        call = Call(LEASES_OF_OWNER, hashes, (owner(identity), *at, _BYTES, _LARGE))
        [found] = checked((yield [call]))
        rows = [found[start : start + 5] for start in range(2, len(found), 5)]
        return found[:2], [_Lease(*row) for row in rows]

    def _moves(
        self, queues: Sequence[str], leases: Sequence[_Lease], crash: Crash
    ) -> Steps[list[_Move]]:
        """What to do with each of them. What cannot be judged by its ends is read."""
        moves = []
        for lease in leases:
            move = _spliced(lease, crash)
            if move is None:
                payload = yield from self._payload(queues, lease)
                if payload is None:
                    continue  # moved by another process meanwhile
                verdict, stamped = _stamped(payload, queues[lease.queue - 1], crash)
                move = _Move(lease, verdict, 0, stamped)
            moves.append(move)
        return moves

    def _payload(self, queues: Sequence[str], lease: _Lease) -> Steps[bytes | None]:
        if lease.how == b"whole":
            return lease.payload
        inflight = self.dead_set.keys.inflight(queues[lease.queue - 1])
        [payload] = checked((yield [("HGET", inflight, lease.name)]))
        return None if payload is None else bytes(payload)

    def _move(
        self, queues: Sequence[str], identity: str, moves: Sequence[_Move], note_for: int
    ) -> Steps[int]:
        if not moves:
            return 0
        flat = [part for move in moves for part in (*move.arguments, move.name if note_for else "")]
        [moved] = checked((yield [self.dead_set.recover(queues, identity, flat, note_for)]))
        return int(moved)

    def forget(self, identity: str) -> Steps[None]:
        """Takes all that a dead process said of itself away."""
        keys = self.dead_set.keys
        yield [
            ("SREM", keys.processes, identity),
            ("DEL", keys.process(identity), keys.work(identity), keys.signals(identity)),
            ("DEL", keys.place(identity)),
            # Not at once: the rescue may come later to count what was not flushed.
            ("EXPIRE", keys.flushed(identity), _LAST_COUNTS),
        ]

    def strike(self, connection: RedisConnection, identity: str) -> None:
        """Takes a process that seems lost off the list of processes. The rest of what it said of
        itself expires, and is needed if it returns."""
        keys = self.dead_set.keys
        replies = connection.pipeline(
            [("SREM", keys.processes, identity), ("EXISTS", keys.process(identity))]
        )
        if replies[1] == 1:  # it returned this very moment
            connection.call("SADD", keys.processes, identity)


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease as leases_of_owner.lua tells of it: ``how`` says what ``payload`` and ``end`` are."""

    queue: int
    name: bytes
    how: bytes
    payload: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class _Move:
    """What recover.lua does with one lease: keep so much of the payload (as in that script), and
    put ``text`` after it."""

    lease: _Lease
    verdict: str
    keep: int
    text: bytes

    @property
    def arguments(self) -> tuple[object, ...]:
        """As the script wants them, but for the name."""
        return (self.lease.queue, self.lease.name, self.verdict, self.keep, self.text)

    @property
    def name(self) -> str:
        """Class and jid, for people."""
        return named(self.text) if self.keep == 0 else _glimpse(self.lease)


def _spliced(lease: _Lease, crash: Crash) -> _Move | None:
    """The move of a large job that stays in Redis: only its end is written anew, with the crash
    record. None if that cannot be done, or it is to be buried, which writes more of it."""
    keep, job = _cut(lease)
    if job is None:
        return None
    crashes = _crashes(job)
    crashes.append(crash.record())
    if _recent(crashes) >= DEADLY_CRASHES:
        return None
    return _Move(lease, _REQUEUE, keep, b"," + dumps(job)[1:])


def _cut(lease: _Lease) -> tuple[int, Payload | None]:
    """How much of a large payload stands (as in recover.lua), and its ``forkq`` key, which comes
    after that; no job: it cannot be told from the end of the payload."""
    if lease.how == b"bare":
        return -1, {}
    at = lease.end.rfind(_KEY) if lease.how == b"once" else -1
    if at < 0:
        return 0, None
    try:
        found = msgspec.json.decode(b"{" + lease.end[at + 1 :], type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0, None
    return at - len(lease.end), found


def _glimpse(lease: _Lease) -> str:
    """Class and jid of a large job, as far as its two ends tell."""
    found = [re.search(pattern, lease.payload + lease.end) for pattern in (_CLASS, _JID)]
    return " ".join(match[1].decode("utf-8", "replace") if match else "?" for match in found)


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


def _crashes(job: Payload) -> list[Any]:
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


def _condemn(job: Payload, queue: str, crash: Crash) -> None:
    code = f"signal {crash.signal}" if crash.signal else f"exit code {crash.exit}"
    end = crash.reason or code
    job["queue"] = queue
    job["error_class"] = f"{Crashed.__module__}.{Crashed.__qualname__}"
    job["error_message"] = (
        f"its process died {DEADLY_CRASHES} times within {_WINDOW / 3600:.0f} hours while this "
        f"job ran, last by {end}"
    )
    job.setdefault("failed_at", now())
