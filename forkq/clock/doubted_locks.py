"""Freeing the locks of unique jobs that are gone, in the leader's clock.

Each script of forkq that ends a job frees its lock. But Ruby may run or delete the job, and a
person may remove it by hand. So a push that meets a lock which nothing has confirmed for a minute
is noted (store/scripts/doubt.lua), and this looks for the jobs that have all these locks, in one
pass. It confirms the locks of those that it finds. One that it finds in neither of two passes is
gone: its lock is freed, and the noted job is pushed. A ticket that waits in another queue than that
of the newest job lets it go to its own. docs/internals.md, "The way of a doubted lock".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ..errors import MalformedPayload
from ..features.effects import jid_of, name_of
from ..features.expire.parts import promised_at
from ..features.marked import EndOutcome, PushNeeds, effects
from ..features.unique.parts import Unique, lock_in
from ..store.connection import RedisConnection, ResponseError
from ..store.find_job import Found, JobSearch
from ..store.push_steps import push_call
from ..store.route import EncodedJob
from ..store.scripts import DOUBT_OVER, DOUBT_SURE, Call
from ..store.steps import checked
from ..wire.keys import Keys, keys_of
from ..wire.marks import KEY, needs_in
from ..wire.payload import DEFAULT_QUEUE, loads_head
from ..wire.printable import shown_name
from ..wire.times import now
from .removals import Removal, remove
from .tracking import tracked

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# How many locks are looked at together: no more are noted at a time.
_MOST: Final = 1000
# A lock whose job was found is in no doubt for so many times as long as the pass took, and for so
# many seconds at least.
_TIMES_SURE: Final = 30
_LEAST_SURE: Final = 60.0
# Seconds between the two passes; and where a process of Sidekiq is seen, which tells only so often
# what it has taken from a queue (every 10 s).
_BETWEEN: Final = 0.2
_BETWEEN_BESIDE_RUBY: Final = 12.0
# Pauses after each page, in times that it took, and after a search, in times that this took: so it
# takes a quarter of the server's time at most, and a twentieth in the long run.
_REST: Final = 3.0
_TIMES_PAUSE: Final = 4.0
_OVER: Final = object()


class _Doubt(NamedTuple):
    """One doubted lock: its key, the jid that has it, and until when that was sure (as Redis has
    it)."""

    lock: bytes
    jid: str
    sure: bytes


class DoubtedLocks:
    """Looks for the jobs that have doubted locks, and frees the locks of those that are gone."""

    def __init__(self, keys: Keys, connection: RedisConnection, log: FilteringBoundLogger) -> None:
        self._keys = keys
        self._connection = connection
        self._log = log
        self._has_notes = False
        self._watch = False
        self._steps: Iterator[None] | None = None
        self._next_step = 0.0

    def load(self, watch: bool) -> None:
        """Reads whether a push has met a doubted lock."""
        self._watch = watch
        counted = tracked(("HLEN", self._keys.doubted), watch)
        self._has_notes = bool(checked(self._connection.pipeline(counted))[-1])

    def next_due(self) -> float | None:
        """When to go on, epoch seconds."""
        return self._next_step if self._has_notes or self._steps is not None else None

    def work(self) -> None:
        """Does the next step of a search. If one fails, a new search begins."""
        began = monotonic()
        if self._steps is None:
            self._steps = self._search()
        try:
            is_over = next(self._steps, _OVER) is _OVER
        except Exception:
            self._steps = None
            raise
        self._next_step = max(self._next_step, now() + _REST * (monotonic() - began))
        if is_over:
            self._steps = None
            self.load(self._watch)  # the server does not report this clock's own change

    def _search(self) -> Iterator[None]:
        """Looks for the jobs twice, settles each lock, and pauses."""
        began = monotonic()
        left = self._doubts()
        for is_last in (False, True):
            search = JobSearch(self._connection, self._keys, [doubt.jid for doubt in left])
            pass_began = monotonic()
            yield from search.steps() if left else ()
            took = monotonic() - pass_began
            found = [doubt for doubt in left if doubt.jid in search.found]
            yield from self._let_pass([(doubt.lock, search.found[doubt.jid]) for doubt in found])
            self._confirm(found, max(_LEAST_SURE, _TIMES_SURE * took))
            left = [doubt for doubt in left if doubt.jid not in search.found]
            if left and not is_last:
                pause = _BETWEEN_BESIDE_RUBY if search.sees_ruby else _BETWEEN
                self._next_step = now() + pause
                yield
        for doubt in left:
            self._free(doubt)
            yield
        self._next_step = now() + _TIMES_PAUSE * (monotonic() - began)

    def _doubts(self) -> list[_Doubt]:
        """The locks that are still in doubt. The notes of the others are forgotten: that lock is
        free, or its job has confirmed it."""
        digests = self._connection.call("HKEYS", self._keys.doubted)[:_MOST]
        locks = keys_of(self._keys.unique, digests)
        found = self._connection.pipeline([("HMGET", lock, "jid", "sure") for lock in locks])
        doubts: list[_Doubt] = []
        settled: list[_Doubt] = []
        for lock, reply in zip(locks, found, strict=True):
            jid, sure = (None, None) if isinstance(reply, ResponseError) else reply
            doubt = _Doubt(lock, (jid or b"").decode("utf-8", "replace"), sure or b"")
            (doubts if jid and _moment(doubt.sure) < now() else settled).append(doubt)
        self._confirm([doubt._replace(jid="") for doubt in settled], 0.0)
        return doubts

    def _confirm(self, doubts: Sequence[_Doubt], seconds: float) -> None:
        """The jobs of these locks are there (an empty jid: that is not known), and nothing doubts
        them for so long."""
        if doubts:
            names: list[Any] = [self._keys.doubted, *(doubt.lock for doubt in doubts)]
            jids = (doubt.jid for doubt in doubts)
            self._connection.script(DOUBT_SURE, names, (round(1000 * seconds), *jids))

    def _let_pass(self, found: Sequence[tuple[bytes, Found]]) -> Iterator[None]:
        """Ends the entries in a queue behind which a newest job of another queue waits: no process
        may ever fetch them, and that job goes to its own queue with their end."""
        asked = [("HMGET", lock, "next_queue", "next_jid", "state") for lock, _ in found]
        replies = self._connection.pipeline(asked) if asked else ()
        for (_, place), reply in zip(found, replies, strict=True):
            queue, jid, state = reply if isinstance(reply, list) else (b"", b"", b"")
            if queue and place.location == "queued" and queue != place.queue.encode():
                outcome: EndOutcome | Literal[""] = "replaced" if state == b"running" else ""
                if self._end_ticket(place, outcome):
                    told = {"jid": shown_name(str(jid, "utf-8", "replace")), "was": place.queue}
                    self._log.info("the newest job has left a ticket in another queue", **told)
                yield

    def _end_ticket(self, place: Found, outcome: EndOutcome | Literal[""]) -> bool:
        """Ends this entry of a queue, if it is still there. It counts as ``outcome``; "" if a push
        has counted it."""
        keys, queue, job = self._keys, place.queue, loads_head(place.payload)
        key = keys.suspects(queue) if place.among_suspects else keys.queue(queue)
        where = ("list", 0, "", 0, 0, 0, queue if place.among_suspects else "", "")
        one = Removal(place.payload, job, effects(keys, job, "replaced"))
        return remove(self._connection, keys, key, where, outcome, [one]) > 0

    def _free(self, doubt: _Doubt) -> None:
        """Frees the lock, and pushes the job that has met it. If a newer push has met it meanwhile,
        the next search does so."""
        note = self._connection.call("HGET", self._keys.doubted, _digest(doubt.lock))
        if note is None:
            return
        at, _, payload = note.partition(b" ")
        job = _job_in(payload, at, doubt.lock, self._keys)
        call = push_call([job], self._keys) if job else _without_job(doubt.lock, self._keys)
        arguments = (*call.arguments, doubt.jid, doubt.sure, note)
        answer = self._connection.script(DOUBT_OVER, call.keys, arguments)
        if answer is not None:
            self._tell(doubt, job, answer)

    def _tell(self, doubt: _Doubt, job: EncodedJob | None, answer: object) -> None:
        lock = shown_name(_digest(doubt.lock).decode("utf-8", "replace"))
        lost = {"gone": shown_name(doubt.jid), "lock": lock}
        replies = answer if isinstance(answer, list) else []
        refusal = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        if job is None or job.needs is None:
            self._log.warning("a lock whose job is gone was freed", **lost)
        elif refusal is not None:
            told = {"jid": job.jid, "job": job.needs.name, "error": str(refusal)}
            self._log.error("a lock whose job is gone was freed; the next job is lost", **told)
        else:
            told = {"jid": job.jid, "job": job.needs.name}
            self._log.warning("a lock whose job is gone was freed for the next job", **told, **lost)


def _digest(lock: bytes) -> bytes:
    return lock.rpartition(b":")[2]


def _moment(sure: bytes) -> float:
    """Until when, epoch seconds, the job of a lock is surely there; 0 for what no script of forkq
    writes."""
    return int(sure) / 1000 if sure.isdigit() else 0.0


def _without_job(lock: bytes, keys: Keys) -> Call:
    """The call that pushes nothing."""
    call = push_call([], keys)
    return Call(call.script, (*call.keys, keys.tickets, lock, keys.doubted), call.arguments)


def _job_in(payload: bytes, at: bytes, lock: bytes, keys: Keys) -> EncodedJob | None:
    """The job of a note; None if it has none, or if forkq reads none with this lock there."""
    try:
        job = loads_head(payload)
        due = float(at) if at else None
    except (MalformedPayload, ValueError):
        return None
    needs = needs_in(job.get(KEY))
    queue, jid, own = job.get("queue", DEFAULT_QUEUE), jid_of(job), lock_in(needs)
    if type(queue) is not str or not jid or own is None or keys.unique(own.digest).encode() != lock:
        return None
    unique = Unique(own.seconds, "skip", own.until)
    asked = PushNeeds(0.0, promised_at(needs), unique, name=name_of(job))
    return EncodedJob(jid, queue, due, payload, 0, asked, own.digest)
