"""Giving the jobs of a dead owner back: by the master for its children, by the clock for processes
without a living master.

The master marks the job that it ends itself as failed in its lease first (``mark_failed``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from ..errors import MalformedPayload
from ..limits.patterns import decoded_names, is_pattern, matching
from ..units import format_duration
from ..values import replace
from ..wire.lease import is_solo, owner
from ..wire.lease import lease as lease_name
from ..wire.marks import mark_failed as add_mark
from ..wire.marks import marks_of
from ..wire.payload import dumps, loads_head
from ..wire.printable import class_and_jid, shown_name
from .connection import Call, DamagedKey, RedisConnection, RedisError, ResponseError
from .crash_record import (
    BURY,
    ISOLATE,
    REQUEUE,
    Lease,
    Move,
    ProcessDeath,
    move_of,
    spliced,
    unchanged,
)
from .damage import DAMAGED_FEATURE, about
from .dead_set import DeadSetLimits
from .held_classes import DEADLY_DEATHS, WITHIN, death
from .scripts import LEASES_OF_OWNER, MARK_FAILED
from .steps import Steps, checked, requeue_calls

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Of how many queues one script looks through the leases.
_CHUNK: Final = 500
# How many bytes of payloads one script moves. A payload of _LARGE bytes stays in Redis meanwhile.
_BYTES: Final = 4 << 20
_LARGE: Final = 64 << 10
_LAST_COUNTS: Final = 3600  # seconds
_NOTE_TTL: Final = 86_400  # seconds; a host that was cut off for longer counts nothing


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery: how many jobs it moved, which of them it buried, and which had been
    in progress. ``held``: the classes that are held because of this death; ``refusal``: why Redis
    did not count it for its class. ``damaged``: the keys of features of buried jobs that hold
    another type."""

    moved: int
    buried: list[str]
    in_progress: list[str] = field(default_factory=list, compare=False)
    held: list[str] = field(default_factory=list)
    refusal: str = ""
    damaged: list[str] = field(default_factory=list)

    def tell(self, log: FilteringBoundLogger, event: str, **details: Any) -> None:
        """Logs one line for the jobs that went back, and one for each that was buried. No death
        handler runs: neither the master nor the clock runs the app's code."""
        back = self.moved - len(self.buried)
        if back > 0:
            log.warning(event, jobs=back, **details)
        for job in self.buried:
            log.error("job buried: it killed the child that was to bury it, too", job=job)
        for name in self.held:
            times = f"{DEADLY_DEATHS} processes within {WITHIN} s"
            remedy = f"forkq classes release {shown_name(name)}"
            log.error(f"class held: its jobs killed {times}; they run alone until one ends well",
                      held=shown_name(name), remedy=remedy)  # fmt: skip
        if self.refusal:
            log.error("a death is not counted for its class", error=self.refusal)
        for key in self.damaged:
            log.error(DAMAGED_FEATURE, **about(key))


# Names of queues, and the owner's leases that count them.
_Part: TypeAlias = "tuple[list[str], list[Lease]]"
# The moves of the leases of one part.
_MovesOf: TypeAlias = "Callable[[Sequence[str], Sequence[Lease]], Steps[list[Move]]]"


class _Progress(msgspec.Struct):
    """What the tries to recover one owner have done: how many leases it had, how many jobs they
    found in progress, how many they moved, which of them they buried, and the burials that Redis
    has not confirmed. ``deadly``: the classes for which the death counts; ``damaged``: the keys of
    features that hold another type."""

    leases: int = 0
    in_progress: int = 0
    moved: int = 0
    buried: list[str] = msgspec.field(default_factory=list)
    unconfirmed: list[Move] = msgspec.field(default_factory=list)
    deadly: set[str] = msgspec.field(default_factory=set)
    damaged: set[bytes] = msgspec.field(default_factory=set)

    def add(self, burials: Sequence[Move]) -> None:
        """Counts burials that are done."""
        self.moved += len(burials)
        self.buried += [move.name for move in burials]

    def result(self, in_progress: list[str], held: list[str], refusal: str) -> Recovered:
        """What all tries together have done."""
        damaged = sorted(key.decode("utf-8", "replace") for key in self.damaged)
        return Recovered(self.moved, self.buried, in_progress, held, refusal, damaged)


class Recovery(msgspec.Struct, frozen=True):
    """Gives leases back on one server."""

    dead_set: DeadSetLimits
    _progress: dict[str, _Progress] = msgspec.field(default_factory=dict)

    def requeue(self, queues: Sequence[str], identity: str) -> Steps[Recovered]:
        """Puts the owner's jobs back without a crash record: a graceful end is no crash."""
        keys, moved = self.dead_set.keys, 0
        if is_solo(identity):
            keys = keys.of_suspects
        for names in (yield from self.queue_names(queues)):
            for call in requeue_calls(keys, names, owner(identity)):
                left = 1
                while left:
                    [(done, left)] = checked((yield [call]))
                    moved += done
        return Recovered(moved, [])

    def recover(
        self,
        queues: Sequence[str],
        identity: str,
        crash: ProcessDeath,
        *,
        may_return: bool = False,
        last_begun: int | None = None,
        begun: Collection[int] | None = None,
        crashed: int | None = None,
        ran: Mapping[int, float] = MappingProxyType({}),
        steps: Mapping[int, str] = MappingProxyType({}),
    ) -> Steps[Recovered]:
        """Puts the owner's jobs back, those that had begun with a crash record. What it had leased
        ahead goes back unchanged: it has a higher sequence number than ``last_begun`` (None: it is
        unknown), or is not among ``begun``, if these are known. A solo child leases nothing ahead;
        a group of suspects that it ran counts against none of them.
        If known, ``crashed`` is that of the job whose thread crashed; ``ran``, ``steps``: for how
        many seconds jobs had run, and their durable steps. One that ``may_return`` finds a note of
        its lost leases. After a failure the caller begins anew; the result has all tries."""
        progress = self._progress.setdefault(identity, _Progress())
        yield from self._look_for_burials(progress)
        listed = yield from self.list_all(queues, identity)
        solo, leases = is_solo(identity), [lease for _, part in listed for lease in part]
        progress.leases = max(progress.leases, len(leases))
        alone = solo and not crash.beside and progress.leases <= 1
        found = _begun(leases, None if solo else last_begun, begun)
        progress.in_progress = max(progress.in_progress, len(found))
        jobs = progress.in_progress
        group = jobs if (crash.group or solo) and jobs > 1 and not alone else 0
        crash = replace(crash, jobs=jobs, alone=alone, group=group)
        progress.deadly |= _deadly_classes(found.values(), crash, crashed)
        others = ISOLATE if solo else REQUEUE
        seen = partial(_crash_of, crash, ran, steps)
        moves_of = partial(self._moves, begun=found, crash_of=seen, others=others)
        yield from self._move_each(listed, identity, moves_of, _NOTE_TTL if may_return else 0)
        held, refusal = yield from self._count_deaths(sorted(progress.deadly), identity)
        del self._progress[identity]
        names = [_with_run_time(lease, ran) for lease in found.values()]
        return progress.result(names, held, refusal)

    def _count_deaths(self, names: Sequence[str], identity: str) -> Steps[tuple[list[str], str]]:
        """Counts the death for each of the classes. Returns those that are held from now on, and
        why Redis has refused it: the jobs have moved all the same."""
        if not names:
            return [], ""
        replies = yield [death(self.dead_set.keys, name, identity) for name in names]
        refusal = next((str(reply) for reply in replies if isinstance(reply, RedisError)), "")
        return [name for name, reply in zip(names, replies, strict=True) if reply == 1], refusal

    def _look_for_burials(self, progress: _Progress) -> Steps[None]:
        """Finds the jobs that an earlier try buried, if the reply to it was lost or an error."""
        if not progress.unconfirmed:
            return
        members = [move.text for move in progress.unconfirmed]
        [scores] = yield [("ZMSCORE", self.dead_set.keys.dead, *members)]
        if not isinstance(scores, RedisError):
            pairs = zip(progress.unconfirmed, scores, strict=True)
            progress.add([move for move, score in pairs if score is not None])
        progress.unconfirmed.clear()

    def queue_names(self, queues: Sequence[str]) -> Steps[list[list[str]]]:
        """The names of the queues, patterns resolved, in lists of bounded length."""
        names = {name: None for name in queues if not is_pattern(name)}
        patterns = [name for name in queues if is_pattern(name)]
        if patterns:
            keys = self.dead_set.keys
            replies = yield [("SMEMBERS", keys.queues), ("ZRANGE", keys.fetched, 0, -1)]
            # If one of the two keys is damaged, the other one has nearly all names.
            known = [r for r in replies if not isinstance(r, DamagedKey)] or replies
            every = decoded_names(name for reply in checked(known) for name in reply)
            names |= {name: None for pattern in patterns for name in matching(pattern, every)}
        found = list(names)
        return [found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK)]

    def list_all(self, queues: Sequence[str], identity: str) -> Steps[list[_Part]]:
        """The owner's leases, in parts, each with the queues that its leases count. How many there
        are must be known before the first one moves."""
        found = []
        for names in (yield from self.queue_names(queues)):
            at: Sequence[object] = (1, "")
            while at[0]:
                at, leases = yield from self._list_leases(names, identity, at)
                found.append((names, leases))
        return found

    def _list_leases(
        self, queues: Sequence[str], identity: str, at: Sequence[object]
    ) -> Steps[tuple[Sequence[object], list[Lease]]]:
        """The next leases of the owner, and the place where to go on."""
        hashes = [self.dead_set.keys.inflight(queue) for queue in queues]
        call = Call(LEASES_OF_OWNER, hashes, (owner(identity), *at, _BYTES, _LARGE))
        [found] = checked((yield [call]))
        leases = [Lease(*found[start : start + 5]) for start in range(2, len(found), 5)]
        return found[:2], leases

    def _moves(
        self,
        queues: Sequence[str],
        leases: Sequence[Lease],
        begun: Container[bytes],
        crash_of: Callable[[int], ProcessDeath],
        others: str,
    ) -> Steps[list[Move]]:
        """The move of each lease. ``begun``: the names of the leases whose jobs had begun;
        ``others`` says where the others go."""
        moves = []
        for lease in leases:
            queue = queues[lease.queue - 1]
            crash = crash_of(lease.sequence)
            move = spliced(lease, queue, crash) if lease.name in begun else unchanged(lease, others)
            if move is None:
                payload = yield from self.payload(queues, lease)
                if payload is None:
                    continue  # moved by another process meanwhile
                move = move_of(lease, payload, queue, crash)
            moves.append(move)
        return moves

    def payload(self, queues: Sequence[str], lease: Lease) -> Steps[bytes | None]:
        if lease.how == b"whole":
            return lease.payload
        inflight = self.dead_set.keys.inflight(queues[lease.queue - 1])
        [payload] = checked((yield [("HGET", inflight, lease.name)]))
        return None if payload is None else bytes(payload)

    def _move_each(
        self, listed: Sequence[_Part], identity: str, moves_of: _MovesOf, note_for: int
    ) -> Steps[None]:
        """Moves the jobs of all parts. A key of another type in a queue's place keeps no other
        queue's jobs; its error is raised at the end."""
        problem: ResponseError | None = None
        for names, leases in listed:
            moves = yield from moves_of(names, leases)
            try:
                yield from self._move(names, identity, moves, note_for)
            except ResponseError as error:
                problem = error
        if problem is not None:
            raise problem

    def _move(
        self, queues: Sequence[str], identity: str, moves: Sequence[Move], note_for: int
    ) -> Steps[None]:
        if not moves:
            return
        progress = self._progress[identity]
        burials = [move for move in moves if move.verdict == BURY]
        progress.unconfirmed += burials
        [reply] = checked((yield [self.dead_set.recover(queues, identity, moves, note_for)]))
        count, *damaged = reply if isinstance(reply, list) else [reply]
        progress.damaged |= set(damaged)
        progress.moved += int(count) - len(burials)
        progress.add(burials)
        del progress.unconfirmed[len(progress.unconfirmed) - len(burials) :]

    def mark_failed(
        self,
        queues: Sequence[str],
        identity: str,
        errors: Mapping[int, BaseException],
        ran: Mapping[int, float],
    ) -> Steps[list[str]]:
        """Marks the leases of ``identity`` with these sequence numbers: their jobs have failed in a
        process that cannot settle them, and the next child that fetches one settles it by its own
        rules (wire/marks.py). ``ran`` says for how many seconds they had run. Returns which jobs
        they are. May be done again."""
        names = {
            lease_name(identity, number).encode(): (error, ran.get(number))
            for number, error in errors.items()
        }
        marked = []
        for part, leases in (yield from self.list_all(queues, identity)):
            for lease in leases:
                if lease.name in names:
                    marked += yield from self._mark(part, lease, *names[lease.name])
        return marked

    def _mark(
        self, queues: Sequence[str], lease: Lease, error: BaseException, ran: float | None
    ) -> Steps[list[str]]:
        payload = yield from self.payload(queues, lease)
        if payload is None:
            return []  # acknowledged just before
        try:
            job = loads_head(payload)
        except MalformedPayload:
            return []
        add_mark(marks_of(job), error, ran)
        inflight = self.dead_set.keys.inflight(queues[lease.queue - 1])
        [moved] = checked((yield [Call(MARK_FAILED, (inflight,), (lease.name, dumps(job)))]))
        return [class_and_jid(payload)] if moved else []

    def forget(self, identity: str) -> Steps[None]:
        """Deletes what a dead process wrote about itself."""
        keys = self.dead_set.keys
        yield [
            ("SREM", keys.processes, identity),
            ("DEL", keys.process(identity), *keys.works(identity), keys.signals(identity)),
            ("DEL", keys.process_ref(identity)),
            # Later: the rescue may still add the counts that the process did not flush.
            ("EXPIRE", keys.flushed(identity), _LAST_COUNTS),
        ]

    def remove_from_processes(self, connection: RedisConnection, identity: str) -> None:
        """Removes a process that seems lost from the list of processes. Its other keys expire; it
        needs them if it returns."""
        keys = self.dead_set.keys
        replies = connection.pipeline(
            [("SREM", keys.processes, identity), ("EXISTS", keys.process(identity))]
        )
        if replies[1] == 1:  # it returned between the two
            connection.call("SADD", keys.processes, identity)


def _begun(
    leases: Iterable[Lease], last: int | None, known: Collection[int] | None
) -> dict[bytes, Lease]:
    """The leases whose jobs had begun, by name: those that are ``known``, or all up to the sequence
    number ``last``."""
    if known is not None:
        return {lease.name: lease for lease in leases if lease.sequence in known}
    return {lease.name: lease for lease in leases if last is None or lease.sequence <= last}


def _crash_of(
    crash: ProcessDeath, ran: Mapping[int, float], steps: Mapping[int, str], sequence: int
) -> ProcessDeath:
    """The death of an owner as the job of that lease has seen it."""
    return replace(crash, ran=ran.get(sequence), step=steps.get(sequence))


def _with_run_time(lease: Lease, ran: Mapping[int, float]) -> str:
    """Class and jid, and how long the job had run, for people."""
    seconds = ran.get(lease.sequence)
    return lease.job if seconds is None else f"{lease.job} ({format_duration(seconds)})"


def _deadly_classes(begun: Iterable[Lease], crash: ProcessDeath, crashed: int | None) -> set[str]:
    """The classes for which a death counts: that of a job that ran alone, or whose thread crashed.
    The death of a whole tree says too little of any job."""
    if crash.of_tree:
        return set()
    deadly = (lease for lease in begun if crash.alone or lease.sequence == crashed)
    return {lease.counted_as for lease in deadly} - {""}
