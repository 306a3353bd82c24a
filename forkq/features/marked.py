"""Marked jobs: what their features need stands in the payload, as the last key but for what others
add behind it. Values, without I/O.

A job is marked if its payload's ``forkq`` has the key ``needs``. What a child, the clock or a
person does with it goes by the parts of its features; ``forkq/features/ways.py`` has all ways in
which a job ends or goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from ..errors import InvalidJob, MalformedPayload, shown
from ..wire.keys import Keys
from ..wire.marks import KEY, NEEDS, VERSION, needs_in
from ..wire.payload import DEFAULT_QUEUE, Payload, dumps, encode, loads, loads_head
from .batch import parts as batches
from .effects import NONE, Effect, jid_of, name_of
from .expire import parts as expire
from .flow import parts as flows
from .iterable import parts as iterable
from .once import parts as once
from .results import parts as results
from .steps import parts as steps
from .throttle import parts as throttles
from .throttle.parts import Throttle
from .unique import debounce, tickets
from .unique import parts as unique
from .unique.debounce import Debounce
from .unique.parts import Definition, Digest, Lock, Unique
from .unique.tickets import Marked
from .version import parts as versions
from .ways import BY_NAME

# The end of a job that is neither done nor failed: its outcome in logs and statistics.
EndOutcome: TypeAlias = Literal["expired", "cancelled", "discarded", "snoozed", "replaced"]

# Bytes of JSON that the needs of a job may have: scripts look for them at the end of a payload.
MOST: Final = 2048
# What marks a payload, and in how many of its last bytes scripts look for that.
_MARK: Final = b'"needs":{'
_TAIL: Final = 8192
_MOVABLE: Final = frozenset((expire.EXPIRES_AT, versions.NEED))
# The lowest version of forkq's payloads that knows each need.
_VERSIONS: Final = {
    expire.EXPIRES_AT: 1,
    unique.UNIQUE: 2,
    iterable.CURSOR: iterable.VERSION,
    batches.BATCH: batches.VERSION,
    results.RESULT_TTL: results.VERSION,
    steps.STEPS: steps.VERSION,
    steps.WAITS: steps.VERSION,
    batches.FLOW: flows.VERSION,
    versions.NEED: versions.VERSION,
}
_OF_TICKETS: Final = 3  # of jobs of which at most one waits in its queue


class PushNeeds(NamedTuple):
    """What push.lua must know of jobs that it pushes; all of a bulk share it. ``expires_in``: the
    seconds that it adds to Redis's time in the place of the placeholder (0: there is none).
    ``expires_at``: when they expire, if that is known. ``unique``: what their locks need.
    ``is_once``: whether a push of them may be sent again. ``throttle``: how often they are pushed
    at most. ``is_marked``: whether their payloads say that they need anything. ``name``: that of
    their class, as people know it. ``batch``: the batch of which they become members.
    ``result_ttl``: for how many seconds their results are kept (0: they are not)."""

    expires_in: float = 0.0
    expires_at: float | None = None
    unique: Unique | None = None
    is_once: bool = False
    throttle: Throttle | None = None
    is_marked: bool = True
    name: str = ""
    batch: batches.PushedInto | None = None
    result_ttl: float = 0.0

    @property
    def is_special(self) -> bool:
        """Whether the push of a single one is put together anew each time."""
        return self.gives_way or self.has_guard or self.result_ttl > 0

    def placeholder(self, queue: str) -> tuple[str, int]:
        """What stands in the place of the result of such a job in this queue, and for how many
        milliseconds from its due time on; "" if its result is not kept."""
        if not self.result_ttl:
            return "", 0
        return results.placeholder(self.name, queue, self.result_ttl), results.waits_for()

    @property
    def debounce(self) -> Debounce | None:
        """When a debounced job is due; None if it is none."""
        return None if self.unique is None else self.unique.debounce

    @property
    def gives_way(self) -> bool:
        """Whether a newer job takes the place of one of these, by a script of its own."""
        return self.unique is not None and self.unique.kind in ("n", "d")

    @property
    def has_guard(self) -> bool:
        """Whether push.lua looks at more than their locks."""
        return self.is_once or self.throttle is not None

    @property
    def first(self) -> float | str:
        """When the first of these jobs expires, as push.lua is told."""
        if not self.is_marked:
            return ""
        return "+inf" if self.expires_at is None else self.expires_at


class Completed(NamedTuple):
    """What the push of one job must know: None if it is a plain one, and the digests in the names
    of its lock and of its throttle's window, "" if it has none."""

    needs: PushNeeds | None = None
    lock: str = ""
    window: str = ""


class MarksPlan(NamedTuple):
    """What the payloads of jobs with the same options have as their last key, ``marks`` among these
    options. ``head`` and ``tail`` are the JSON of that key, around the digest of the arguments;
    empty if they have no such key. ``digest`` and ``throttled`` make the digests for ``Completed``,
    which are known otherwise. ``top`` is what they have at their top, if they expire."""

    marks: Any
    needs: PushNeeds | None = None
    head: bytes = b""
    tail: bytes = b""
    lock: str = ""
    digest: Digest | None = None
    window: str = ""
    throttled: Digest | None = None
    top: Mapping[str, Any] = {}

    @property
    def around(self) -> tuple[bytes, bytes] | None:
        """The JSON of the marks before and behind the digest; None if there are none."""
        return (self.head, self.tail) if self.head else None

    @property
    def is_debounced(self) -> bool:
        """Whether the jobs wait in the schedule, and Redis says until when."""
        return self.needs is not None and self.needs.debounce is not None

    def fits(self, marks: Any, at: float | None) -> bool:
        """Whether a job with these ``marks``, due at ``at``, is one of them."""
        return self.marks is marks and (at is None or not (self.top or self.is_debounced))

    def prepare(self, job: Payload) -> None:
        """Changes at the top of ``job``, which is to be pushed now, what its marks ask."""
        job.update(self.top)
        if self.is_debounced:
            job.pop("enqueued_at", None)  # the clock writes it

    def complete(self, job: Payload) -> Completed:
        """Makes of the options of one job what its payload has, as its last key. Raises
        InvalidJob."""
        lock = self.lock if self.digest is None else self.digest.of(job["args"])
        window = self.window if self.throttled is None else self.throttled.of(job["args"])
        job.pop(KEY, None)
        self.prepare(job)
        if self.head:
            job[KEY] = msgspec.Raw(self.head + lock.encode() + self.tail)
        return Completed(self.needs, lock, window)


def plan(job: Payload, at: float | None, definition: Definition | None = None) -> MarksPlan:
    """What ``job`` shares with others that have its options. ``at``: when it is due (epoch seconds;
    None: now). ``definition``: that of its class, if it is known. Raises InvalidJob."""
    options = job[KEY]
    needs = options.get(NEEDS) if type(options) is dict else None
    if type(needs) is not dict:
        return MarksPlan(options, head=encode(options))
    needs, top = dict(needs), dict[str, Any]()
    after = expire.promise(job["class"], top, needs, at)
    is_once, joins = once.ask(job["class"], needs), batches.ask(job, needs)
    flows.ask(needs)
    throttled = throttles.ask(job, needs, definition)
    asked, kept_for = unique.ask(job, needs, definition), results.ask(job["class"], needs)
    if at is not None and asked is not None and asked.unique.debounce is not None:
        raise InvalidJob(
            f"job {shown(job['class'])} is debounced, so a push of it has no time of its own "
            "(`at`, `perform_in`): push it now, or leave that out with .set(debounce=0)"
        )
    made, text = MarksPlan(options, top=top), _text(job, options, needs)
    if needs or is_once or throttled:
        moment = None if after else expire.promised_at(needs)
        lock, throttle = asked and asked.unique, throttled and throttled.throttle
        found = PushNeeds(
            *(after, moment, lock, is_once, throttle),
            is_marked=bool(needs), name=name_of(job), batch=joins, result_ttl=kept_for,
        )  # fmt: skip
        if joins is not None:
            batches.check(job, joins, gives_way=found.gives_way, is_once=is_once)
        made = made._replace(needs=found)
    if throttled is not None:
        made = made._replace(window=throttled.window, throttled=throttled.digest)
    if asked is None:
        return made._replace(head=text)
    head, _, tail = text.rpartition(asked.lock.encode())
    return made._replace(head=head, tail=tail, lock=asked.lock, digest=asked.digest)


def _text(job: Payload, options: Mapping[str, Any], needs: dict[str, Any]) -> bytes:
    """The JSON of the marks of a job with these ``options`` and ``needs``; empty if it has none."""
    marks = {name: value for name, value in options.items() if name not in ("v", NEEDS)}
    if needs:
        known = options.get("v")
        lowest = max(_version(needs), known if type(known) is int else 0)
        marks |= {"v": lowest, NEEDS: needs}
        _check_size(job, needs)
    return encode(marks) if marks else b""


def complete(job: Payload, at: float | None, definition: Definition | None = None) -> Completed:
    """Makes of the options of a job's features what its payload has, as its last key. The
    parameters are those of ``plan``. Raises InvalidJob."""
    return plan(job, at, definition).complete(job)


def with_digests(job: Payload, definition: Definition | None) -> Payload:
    """A job that is pushed many times, and later, by a process that does not know its definition:
    with the digests of its arguments in the place of the options that need them."""
    before = needs_in(job.get(KEY))
    needs = dict(before)
    throttled = throttles.ask(job, needs, definition)
    asked = unique.ask(job, needs, definition)
    if throttled is not None:
        given = before[throttles.THROTTLE]
        needs[throttles.THROTTLE] = throttles.known(given, throttled, job["args"])
    if asked is not None and asked.digest is not None:
        needs[unique.UNIQUE]["lock"] = asked.digest.of(job["args"])
    if needs == before:
        return job
    marks = {key: value for key, value in job[KEY].items() if key != NEEDS}
    return {**job, KEY: {**marks, NEEDS: needs} if needs else marks}


def at_start(keys: Keys, marked: Payload, waited: float) -> tuple[Effect, ...]:
    """What the features of a job ask when it starts, ``waited`` seconds after it came to its
    queue."""
    needs = needs_in(marked.get(KEY))
    return unique.at_start(keys, needs, jid_of(marked), name_of(marked), waited)


def while_running(keys: Keys, marked: Payload) -> tuple[Effect, ...]:
    """What the features of a job ask at each beat of the child that runs it."""
    return unique.while_running(keys, needs_in(marked.get(KEY)), _marked(marked))


def has_lock(marked: Payload) -> bool:
    """Whether Redis may have to be asked about the lock of the job before it runs."""
    return unique.UNIQUE in needs_in(marked.get(KEY))


def ticket_in(marked: Payload) -> Lock | None:
    """The lock of a job of which at most one waits; None if the job is no such job."""
    lock = unique.lock_in(needs_in(marked.get(KEY)))
    return lock if lock is not None and lock.is_ticket and jid_of(marked) else None


def newest_cancelled(keys: Keys, job: Payload) -> tuple[Effect, ...]:
    """What ends a job as cancelled that waits in its lock, without an entry (tickets.py)."""
    lock = ticket_in(job)
    if lock is None:
        return NONE
    answered = results.effects(keys, needs_in(job.get(KEY)), "error", job, "cancelled", 0.0)
    return (tickets.cancelled(keys, lock, _marked(job)), *answered)


def start_call(
    keys: Keys, marked: Payload, lock: Lock, lease: str
) -> tuple[Sequence[str], Sequence[Any]]:
    """The keys and the arguments of ticket_start.lua for the job that has this ``lock``."""
    return tickets.start_call(keys, lock, _marked(marked), lease)


def stamped(payload: bytes, needs: PushNeeds | None, at: float, index: int = 0) -> bytes:
    """The payload of a job that is pushed at ``at`` with the moment in the place of the
    placeholder: what push.lua makes of it in Redis's time. ``at``: when it is due; ``index``: that
    in its batch."""
    if needs is not None and needs.batch is not None:
        payload = payload.replace(batches.INDEX, encode(index))
    if needs is None or not needs.expires_in:
        return payload
    return payload.replace(expire.MOMENT, encode(at + needs.expires_in))


def enqueued(payload: bytes, at: float, needs: PushNeeds | None) -> bytes:
    """The payload of a push that has waited until ``at``: that was no time in its queue."""
    if needs is not None and needs.debounce is not None:
        return payload
    job = loads(payload) if needs is None else readable(payload)
    job["enqueued_at"] = at
    if needs is not None and needs.expires_in:
        job[expire.EXPIRY] = job[KEY][NEEDS][expire.EXPIRES_AT] = msgspec.Raw(expire.MOMENT)
    if needs is not None and needs.batch is not None:
        batches.reserve(job[KEY][NEEDS])
    return dumps(job)


def readable(payload: bytes) -> Payload:
    """The job of a push that Redis has not stamped: its expiry is 0, if it has one, and so is its
    index in its batch."""
    return loads(payload.replace(expire.MOMENT, b"0").replace(batches.INDEX, b"0"))


def outcome_at_start(needs: dict[str, Any], at: float) -> EndOutcome | None:
    """How the job ends instead of being run at ``at``, epoch seconds; None if it is run."""
    return "expired" if expire.is_over(needs, at) else None


def effects(
    keys: Keys, job: Payload, way: str, delay: float = 0.0, together_with: str = ""
) -> tuple[Effect, ...]:
    """What must happen in Redis in the very script in which ``job`` takes this ``way``: the name of
    one in ways.py. ``delay``: in how many seconds the job is due. ``together_with``: the jid of the
    job that waits in its place (tickets.py), if that ends, too."""
    needs = needs_in(job.get(KEY))
    if not needs:
        return NONE
    fates, asked = BY_NAME[way], NONE
    if unique.UNIQUE in needs:
        asked = unique.effects(keys, needs, fates, _marked(job, delay), together_with)
    if iterable.CURSOR in needs:
        asked += iterable.effects(keys, needs, fates.cursor, jid_of(job), delay)
    if steps.STEPS in needs:
        asked += steps.effects(keys, needs, fates.cursor, jid_of(job), delay)
    if batches.BATCH in needs:
        asked += batches.effects(keys, needs, fates.batch, way, jid_of(job))
    if batches.FLOW in needs:
        asked += flows.effects(keys, needs, fates.batch, job, way)
    if results.RESULT_TTL in needs:
        asked += results.effects(keys, needs, fates.result, job, way, delay)
    return asked


def effects_in(keys: Keys, payload: bytes, way: str, together_with: str = "") -> tuple[Effect, ...]:
    """``effects`` of the job in ``payload``. What is no job, or not marked, costs next to
    nothing."""
    job = _head_in(payload)
    return NONE if job is None else effects(keys, job, way, together_with=together_with)


def effects_of_undo(keys: Keys, payload: bytes, *, is_dead: bool) -> tuple[Effect, ...]:
    """What must happen when a job that a person has deleted is put back. A dead one is dead as
    before: it has no lock, its batch has heard of it, and its result is its last error again."""
    if not is_dead:
        return effects_in(keys, payload, "restored by undo")
    job = _head_in(payload)
    if job is None:
        return NONE
    return results.effects(keys, needs_in(job.get(KEY)), BY_NAME["dead"].result, job, "dead", 0.0)


def _head_in(payload: bytes) -> Payload | None:
    """The job in ``payload``, its arguments left raw; None if that is no job, or not marked."""
    if _MARK not in payload[-_TAIL:]:
        return None
    try:
        return loads_head(payload)
    except MalformedPayload:
        return None


def keeps_end(needs: Mapping[str, Any]) -> bool:
    """Whether something keeps what the job has returned, or how it has failed."""
    return results.RESULT_TTL in needs or batches.FLOW in needs


def can_move(needs: dict[str, Any]) -> bool:
    """Whether the job may move to another shard: nothing that its features have in Redis would stay
    behind."""
    return _MOVABLE.issuperset(needs)


def _marked(job: Payload, due_in: float = 0.0) -> Marked:
    queue = job.get("queue")
    named = queue if type(queue) is str else DEFAULT_QUEUE
    return Marked(jid_of(job), name_of(job), named, due_in)


def _version(needs: dict[str, Any]) -> int:
    """What a child must know to run a job with these needs. One that another program wrote, and
    that this forkq does not know, is for a newer one."""
    lock = unique.lock_in(needs)
    lowest = 1
    if lock is not None and lock.kind is not None:
        lowest = _OF_TICKETS if lock.is_ticket else debounce.VERSION
    return max(lowest, *(_VERSIONS.get(name, VERSION + 1) for name in needs))


def _check_size(job: Payload, needs: dict[str, Any]) -> None:
    size = len(encode(needs))
    if size > MOST:
        raise InvalidJob(
            f"job {shown(job.get('class'))}: what its features need has {size:,} bytes, and the "
            f"most is {MOST:,}"
        )
