"""What a push sends, what the replies mean, and what may be sent again. Any process.

It does no I/O: ``RedisChannel`` carries it out, by a thread that waits or by an event loop. forkq
sends a job twice only where Redis has refused it before it did anything, or where Redis pushes it
once (``once``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from ..units import plural
from ..wire.keys import Keys
from .cluster import ELSEWHERE, elsewhere
from .connection import ResponseError, refused, with_key
from .redis_py import Command, Packed, exceptions, pack
from .route import EncodedJob, Wait
from .scripts import PUSH, PUSH_DEBOUNCED, PUSH_NEWEST, Call, Script

if TYPE_CHECKING:
    from ..features.marked import PushNeeds

# Jobs that are sent at a time.
BATCH: Final = 1000
# What push.lua says of a job: it is pushed, or was pushed before.
_PUSHED: Final = (1, 2)
# How many batches are under way: they hide a network's round trip. After a lost reply, Redis may
# have each of them or not.
_UNDER_WAY: Final = 4
# One command, and the jids of the jobs that are in Redis once it is done.
Write: TypeAlias = "tuple[Command, Sequence[str]]"
# What to send (it may be empty), how many replies will answer it, and how many to read now.
Step: TypeAlias = "tuple[Packed, int, int]"
# A part of push.lua that a group of jobs has: its letter, its keys, and its arguments.
Part: TypeAlias = "tuple[str, Sequence[str], Sequence[Any]]"
_LOCK: Final = "l"  # the letter of the part of unique jobs


class Push(msgspec.Struct):
    """One push: what to do next, and which jobs are in Redis.

    The channel that carries it out does one step after the other, and gives the replies that a step
    awaits to ``next_step``, until there is none. Then ``go_on`` says whether it goes on over a
    fresh connection.
    """

    _jobs: Sequence[EncodedJob]
    _keys: Keys
    # What a cluster has refused may be sent again and again: its slot moves, or is being moved.
    is_patient: bool = False
    duplicates: dict[str, str] = {}  # jids that were not pushed, and who has their locks
    _sent: int = 0  # how many of the jobs
    _under_way: list[list[Write]] = []  # their replies are still to be read
    _done: list[Write] = []  # Redis has confirmed them
    _lost: list[Write] = []  # refused by a server that has lost its role (a failover)
    _again: list[Write] = []  # what is sent next, for the second time
    _resent: list[Write] | None = None
    _unsure: tuple[str, ...] = ()  # jids that were sent over a connection that was lost
    _refusals: tuple[Exception, ...] = ()  # those that stand

    def next_step(self, replies: Sequence[Any] = ()) -> Step | None:
        """Takes the replies that the last step has awaited. Returns what to send and to read now.
        After a refusal nothing more is sent, but what is on its way is read. None if there is
        nothing to do on this connection."""
        under_way, total = self._under_way, len(self._jobs)
        if replies:
            self._note(replies)
        if not self._again and (self._sent == total or self._lost or self._refusals):
            return (b"", 0, len(under_way[0])) if under_way else None
        commands, writes = self._next_batch()
        under_way.append(writes)
        is_to_be_filled = self._sent < total and len(under_way) < _UNDER_WAY
        return commands, len(writes), 0 if is_to_be_filled else len(under_way[0])

    def note_end(self, replies: Sequence[Any], *, sent: bool) -> None:
        """It ends in the middle of a step: these replies to it had come. ``sent``: whether anything
        was sent over this connection; if not, Redis has nothing of the step."""
        if not sent:
            self._under_way.clear()
        elif self._under_way and len(replies) >= len(self._under_way[0]):
            self._note(replies[: len(self._under_way[0])])

    def starts_again(self) -> bool:
        """The connection is lost: prepares to send over a fresh one what may be in Redis. Returns
        whether there is any, and none of it can be pushed twice."""
        if not self.unknown or not all(job.needs and job.needs.is_once for job in self._jobs):
            return False
        self._unsure = self.unknown
        self._again = [*chain.from_iterable(self._under_way), *self._again]
        self._under_way.clear()
        return True

    def go_on(self) -> bool:
        """Prepares to send once more, over a fresh connection, what a server has refused that has
        lost its role. Returns whether there is any. Raises the first refusal that stands."""
        if self._lost:
            self._again = self._resent = self._lost
            self._lost = []
            return True
        if self._refusals:
            error = self._refusals[0]
            raise elsewhere(error) if isinstance(error, ELSEWHERE) else error
        return False

    @property
    def pushed(self) -> tuple[str, ...]:
        """The jids of the jobs that are in Redis."""
        return _jids(self._done)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The jids of the jobs that may be in Redis: the replies about them were lost."""
        jids = _jids(chain.from_iterable(self._under_way))
        if not self._unsure:
            return jids
        known = {*jids, *self.pushed, *self.duplicates}
        return (*jids, *(jid for jid in self._unsure if jid not in known))

    def __str__(self) -> str:
        pushed, unknown, total = len(self.pushed), len(self.unknown), len(self._jobs)
        if not pushed and not unknown:
            return "nothing was pushed"
        if total == 1:
            known = "the job was pushed all the same"
            return known if pushed else "whether the job was pushed is not known"
        doubt = f"; whether {unknown:,} more were is not known" if unknown else ""
        return (
            f"{pushed:,} of {total:,} jobs were pushed{doubt} (the error's `pushed` "
            "and `unknown` have their jids)"
        )

    def _note(self, replies: Sequence[Any]) -> None:
        """Notes the replies to the oldest commands that are under way."""
        writes = self._under_way.pop(0)
        for reply in replies:
            if type(reply) is not int:  # a refusal, or what push.lua says of each job
                self._note_each(writes, replies)
                break
        else:
            self._done += writes

    def _note_each(self, writes: list[Write], replies: Sequence[Any]) -> None:
        for write, reply in zip(writes, replies, strict=True):
            if isinstance(reply, exceptions.NoScriptError) and not _has_load(writes):
                self._again += ((("SCRIPT", "LOAD", _script_of(write).text), ()), write)
            elif isinstance(reply, ResponseError):
                self._note_refusal(write, reply, again=writes is self._resent)
            elif type(reply) is list:
                self._note_marked(write, reply, again=writes is self._resent)
            else:
                self._done.append(write)

    def _note_refusal(self, write: Write, reply: ResponseError, *, again: bool) -> None:
        if refused(reply) and (not again or self._waits_for(reply)):
            self._lost.append(write)
        else:
            self._refusals += (with_key(reply, write[0]),)

    def _note_marked(self, write: Write, replies: list[Any], *, again: bool) -> None:
        """Notes what push.lua says: first of the names of the queues, then of each job."""
        command, jids = write
        pairs = list(zip(jids, replies[1:], strict=True))
        pushed = [jid for jid, reply in pairs if reply in _PUSHED]
        refusal = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        if refusal is None or pushed:  # else the next server says whose locks are taken
            self.duplicates.update((jid, by.decode()) for jid, by in pairs if type(by) is bytes)
            self._done.append((command, pushed))
        if refusal is not None:  # a server that has lost its role has refused all of it
            self._note_refusal(write, refusal, again=again or bool(pushed))

    def _waits_for(self, reply: ResponseError) -> bool:
        return self.is_patient and isinstance(reply, ELSEWHERE)

    def _next_batch(self) -> tuple[Packed, list[Write]]:
        if self._again:
            writes, self._again = self._again, []
            return pack([command for command, _ in writes]), writes
        jobs, sent = self._jobs, self._sent
        if len(jobs) > BATCH:
            jobs = jobs[sent : sent + BATCH]
        self._sent = sent + len(jobs)
        writes = _writes(jobs, self._keys)
        return pack([command for command, _ in writes]), writes


class WaitingPush(Push, kw_only=True):
    """A push that waits for replicas. WAIT travels with the last batch: it is about all that its
    connection has sent. ``replicated``: whether so many replicas have the jobs; if not,
    ``unconfirmed`` says why."""

    wait: Wait
    replicated: bool = False
    unconfirmed: str = ""
    _is_split: bool = False  # a failover has come between two of its batches

    def _note(self, replies: Sequence[Any]) -> None:
        """Takes the reply to WAIT, which stands behind the last batch, beside the others."""
        if self._under_way[0][-1][0] == self._command:
            self._under_way[0].pop()
            *replies, reached = replies
            self._note_replicas(reached)
        super()._note(replies)

    def starts_again(self) -> bool:
        """The connection is lost: prepares to send over a fresh one what may be in Redis. WAIT is
        sent anew. It is about the second sending, too: Redis counts what it has pushed before, and
        that is a write behind the first one."""
        starts = super().starts_again()
        self._again = [write for write in self._again if write[0] != self._command]
        self._is_split = self._is_split or (starts and bool(self.pushed))
        return starts

    def go_on(self) -> bool:
        """Prepares to send once more, over a fresh connection, what a server has refused."""
        goes_on = super().go_on()
        self._is_split = self._is_split or (goes_on and bool(self.pushed))
        return goes_on

    def _next_batch(self) -> tuple[Packed, list[Write]]:
        commands, writes = super()._next_batch()
        if self._sent == len(self._jobs):
            writes.append((self._command, ()))
            commands += pack([self._command])
        return commands, writes

    @property
    def _command(self) -> Command:
        return ("WAIT", *self.wait)

    def _note_replicas(self, reached: Any) -> None:
        self.replicated = False
        if isinstance(reached, Exception):
            self.unconfirmed = f"WAIT is refused ({reached})"
        elif self._is_split:  # this connection knows nothing of what an earlier one has sent
            self.unconfirmed = "there was a failover meanwhile"
        else:
            wanted = self.wait.replicas
            verb = "has" if reached == 1 else "have"
            self.unconfirmed = f"{reached} of {plural(wanted, 'replica')} {verb} it"
            self.replicated = reached >= wanted


def packed_single(keys: Keys, job: EncodedJob) -> Packed:
    """What a ``Push`` of one job that is marked, or goes to its queue now, sends in its first
    step."""
    payload = job.payload
    if job.needs is None:
        return b"%b$%d\r\n%b\r\n" % (_beginning(keys.prefix, job.queue), len(payload), payload)
    needs = job.needs
    if job.at is not None or needs.unique is None or needs.is_special:
        [(command, _)] = _writes([job], keys)
        return pack([command])
    head, middle, tail = _around(keys.prefix, PUSH.sha, job.queue, needs)
    lock, jid = keys.unique(job.lock).encode(), job.jid.encode()
    return b"%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
        *(head, len(lock), lock, middle, len(payload), payload),
        *(tail, len(jid), jid),
    )


@lru_cache(maxsize=1000)
def _beginning(prefix: str, queue: str) -> Packed:
    """What all pushes of a single job to this queue begin with, up to the payload."""
    keys = Keys(prefix)
    commands = [("SADD", keys.queues, queue), ("LPUSH", keys.queue(queue), b"")]
    return pack(commands).removesuffix(b"$0\r\n\r\n")


@lru_cache(maxsize=1000)
def _around(prefix: str, sha: bytes, queue: str, needs: PushNeeds) -> list[Packed]:
    """What all calls of push.lua, known by ``sha``, for a single unique job of this queue have
    before the lock's key, behind that, and behind the payload; the jid comes last."""
    keys, texts = Keys(prefix), ("\1lock", "\1payload", "\1jid")
    sample = EncodedJob(texts[2], queue, None, texts[1].encode(), 0, needs, texts[0])
    packed, parts = pack([push_call([sample], keys).command]), []
    for text in (keys.unique(texts[0]), *texts[1:]):
        part, _, packed = packed.partition(b"$%d\r\n%b\r\n" % (len(text), text.encode()))
        parts.append(part)
    return parts


def _writes(jobs: Sequence[EncodedJob], keys: Keys) -> list[Write]:
    """The commands that push these jobs."""
    pairs: list[float | bytes] = []
    scheduled: list[str] = []
    queues: dict[str, tuple[list[bytes], list[str]]] = {}
    marked: list[EncodedJob] = []
    giving_way: list[EncodedJob] = []
    for job in jobs:
        if job.needs is not None:
            (giving_way if job.needs.gives_way else marked).append(job)
        elif job.at is not None:
            pairs += (job.at, job.payload)
            scheduled.append(job.jid)
        else:
            payloads, jids = queues.setdefault(job.queue, ([], []))
            payloads.append(job.payload)
            jids.append(job.jid)
    writes: list[Write] = []
    if scheduled:
        writes.append((("ZADD", keys.schedule, *pairs), scheduled))
    for queue, (payloads, jids) in queues.items():
        writes.append((("SADD", keys.queues, queue), ()))
        writes.append((("LPUSH", keys.queue(queue), *payloads), jids))
    if marked:
        writes.append((push_call(marked, keys).command, [job.jid for job in marked]))
    return writes + _writes_of_those_that_give_way(giving_way, keys) if giving_way else writes


def _writes_of_those_that_give_way(jobs: Sequence[EncodedJob], keys: Keys) -> list[Write]:
    newest = [job for job in jobs if job.needs and job.needs.debounce is None]
    debounced = [job for job in jobs if job.needs and job.needs.debounce is not None]
    writes = [_write_of_newest(newest, keys)] if newest else []
    return [*writes, _write_of_debounced(debounced, keys)] if debounced else writes


def push_call(jobs: Sequence[EncodedJob], keys: Keys) -> Call:
    """The call of push.lua that pushes these marked jobs, in groups that share all that they
    can."""
    names = [keys.queues, keys.schedule, keys.marked, keys.totals("ends")]
    arguments: list[Any] = [""]
    for _, found in groupby(jobs, _shared):
        arguments[0] += _add_group(list(found), keys, names, arguments)
    if _LOCK in arguments[0]:
        names.append(keys.doubted)
    return Call(PUSH, names, arguments)


def _shared(job: EncodedJob) -> tuple[str, bool, Any]:
    """What the jobs of one group of push.lua have in common."""
    return job.queue, job.at is None, job.needs


def _add_group(
    jobs: Sequence[EncodedJob], keys: Keys, names: list[str], arguments: list[Any]
) -> str:
    """Adds one group of jobs to the arguments of a call of push.lua, and their keys to its keys.
    Returns the letters of its parts."""
    parts = _parts_of(jobs, keys)
    letters = "".join(letter for letter, _, _ in parts)
    names += [keys.queue(jobs[0].queue)] if jobs[0].at is None else []
    names += chain.from_iterable(more for _, more, _ in parts)
    arguments += (*_head(len(jobs), jobs[0]), letters)
    arguments += chain.from_iterable(values for _, _, values in parts)
    arguments += _rows(jobs)
    return letters


def _head(count: int, first: EncodedJob) -> tuple[Any, ...]:
    """What the arguments of a group begin with."""
    needs = first.needs
    assert needs is not None
    queue = first.queue if first.at is None else ""
    return (count, queue, needs.expires_in or "", needs.first, needs.name)


def _rows(jobs: Sequence[EncodedJob]) -> Iterable[Any]:
    """What the arguments of a group end with: of each job what it alone has."""
    each: list[Sequence[Any]] = [[job.payload for job in jobs]]
    if jobs[0].at is not None:
        each.append([job.at for job in jobs])
    if jobs[0].lock or (jobs[0].needs and jobs[0].needs.is_once):
        each.append([job.jid for job in jobs])
    return chain.from_iterable(zip(*each, strict=True))


def _parts_of(jobs: Sequence[EncodedJob], keys: Keys) -> list[Part]:
    """The parts of push.lua that these jobs need, in its order."""
    needs, parts = jobs[0].needs, list[Part]()
    assert needs is not None
    if needs.batch is not None and not needs.batch.at:
        parts.append(("b", keys.of_members(needs.batch.bid), (needs.batch.argument,)))
    parts += _guards_of(jobs, needs, keys)
    if needs.result_ttl:
        placeholder = needs.placeholder(jobs[0].queue)
        parts.append(("r", [keys.result(job.jid) for job in jobs], placeholder))
    return parts


def _guards_of(jobs: Sequence[EncodedJob], needs: PushNeeds, keys: Keys) -> Iterator[Part]:
    """The parts that may keep jobs out, each by a key of its own."""
    if needs.is_once:
        yield "k", [keys.pushed(job.jid) for job in jobs], ()
    if jobs[0].lock:
        yield _LOCK, [keys.unique(job.lock) for job in jobs], _lock_of(needs)
    if needs.throttle is not None:
        yield "w", [keys.window(job.window) for job in jobs], needs.throttle


def _lock_of(needs: PushNeeds) -> tuple[int, str]:
    """For how many milliseconds these jobs have their locks, and the letter of that for
    push.lua."""
    unique = needs.unique
    assert unique is not None
    milliseconds = math.ceil(1000 * unique.seconds)
    if needs.batch is not None and unique.kind == "p":
        return milliseconds, "f"  # what is pushed later is no member
    return milliseconds, unique.kind


def _write_of_newest(jobs: Sequence[EncodedJob], keys: Keys) -> Write:
    """The call of push_newest.lua that pushes these jobs."""
    names = [keys.queues, keys.schedule, keys.retry, keys.marked, keys.totals("ends")]
    names += [keys.tickets, keys.doubted, keys.results_ended]
    arguments: list[Any] = []
    for job in jobs:
        needs, at = job.needs, "" if job.at is None else job.at
        assert needs is not None and needs.unique is not None  # noqa: PT018 - one fact
        names += (keys.queue(job.queue), keys.unique(job.lock))
        arguments += (len(names), job.queue, at, needs.expires_in or 0, job.payload, job.jid)
        arguments += (needs.name, needs.unique.seconds, int(needs.is_once))
        arguments += needs.placeholder(job.queue)
        names += _more_keys(job, keys)
    return Call(PUSH_NEWEST, names, arguments).command, [job.jid for job in jobs]


def _more_keys(job: EncodedJob, keys: Keys) -> list[str]:
    """The keys of a job's result, and of what is known of its jid, as far as it has them."""
    assert job.needs is not None
    result = [keys.result(job.jid)] if job.needs.result_ttl else []
    return [*result, keys.pushed(job.jid)] if job.needs.is_once else result


def _write_of_debounced(jobs: Sequence[EncodedJob], keys: Keys) -> Write:
    """The call of push_debounced.lua that pushes these jobs."""
    names = [keys.schedule, keys.totals("ends"), keys.results_ended]
    names += [keys.unique(job.lock) for job in jobs]
    arguments: list[Any] = []
    for job in jobs:
        needs = job.needs
        assert needs is not None and needs.debounce is not None  # noqa: PT018 - one fact
        arguments += (job.payload, job.jid, needs.name, *needs.debounce, needs.expires_in or 0)
        result, place = bool(needs.result_ttl), len(names)
        placeholder, waits = needs.placeholder(job.queue)
        arguments += (place + result if needs.is_once else "", place if result else "")
        arguments += (placeholder, waits + 1000 * needs.debounce.most)
        names += _more_keys(job, keys)
    return Call(PUSH_DEBOUNCED, names, arguments).command, [job.jid for job in jobs]


def _script_of(write: Write) -> Script:
    """The script that a command calls."""
    found = (script for script in (PUSH_NEWEST, PUSH_DEBOUNCED) if script.sha == write[0][1])
    return next(found, PUSH)


def _has_load(writes: Sequence[Write]) -> bool:
    """Whether these commands give the server the text of the script. If it does not know the script
    even then, it has refused the text, and would refuse it each time."""
    return any(command[:2] == ("SCRIPT", "LOAD") for command, _ in writes)


def _jids(writes: Iterable[Write]) -> tuple[str, ...]:
    return tuple(jid for _, jids in writes for jid in jids)
