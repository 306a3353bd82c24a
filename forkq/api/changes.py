"""Where a job goes when a person acts on it, and the one step in which it goes there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import ForkqError, InvalidRule, MalformedPayload, WrongType, shown
from ..features.cancel.parts import field_of_jid
from ..features.effects import NONE, Effect, packed
from ..features.expire.parts import forget
from ..features.marked import effects_in
from ..features.unique.tickets import ALL
from ..limits.patterns import is_pattern
from ..servers import Server
from ..store.damage import message
from ..store.find_job import Location
from ..store.scripts import JOBS_MOVE
from ..wire.keys import Keys
from ..wire.malformed import wrap_malformed
from ..wire.marks import KEY, is_suspect, retried_alone
from ..wire.options import QUEUE_NAME, is_queue
from ..wire.payload import DEFAULT_QUEUE, Payload, dumps, new_jid
from ..wire.validation import validate
from .door import refuse_other_shard
from .readable_job import is_active_job, queue_of, text

if TYPE_CHECKING:
    from .entry import JobEntry

UNLOCKED: Final = 2
DONE: Final = 1
GONE: Final = 0
REFUSED: Final = -1
LOST: Final = -2
# Seconds for which deleted jobs can be put back; the same in words; and so many jobs at most, where
# all of a queue or of a set are deleted.
UNDO_FOR: Final = 600
UNDO_TIME: Final = "ten minutes"
MOST_UNDONE: Final = 100_000

# Numbers of keys of jobs_move.lua; each queue has two there, the second is that of its suspects.
_NOWHERE, _BACK, _DEAD, _FIRST_QUEUE, _FIRST_SUSPECTS = 0, 1, 3, 9, 10
# What a job has because it has failed.
_FAILURE: Final = (
    *("error_message", "error_class", "error_backtrace"),
    *("failed_at", "retried_at", "retry_count"),
)


class Change(NamedTuple):
    """Where one job goes: to ``queue`` if that is given, among its suspects or not; else to the
    dead set, back to where it is, or nowhere, as ``to`` says. ``payload`` is its new payload,
    ``score`` its new score (None: it stays the same)."""

    to: int
    payload: bytes = b""
    queue: str = ""
    score: float | None = None


class Near(NamedTuple):
    """Where the jobs of a list were when they were read: so many came ``before`` them, they are
    ``among`` so many, and the ``last`` of these is that payload."""

    before: int = 0
    among: int = 0
    last: bytes = b""


UNKNOWN: Final = Near()


class Kept(NamedTuple):
    """The place for deleted jobs: the token, and the number of this batch."""

    token: str
    number: int


DELETED: Final = Change(_NOWHERE)


def enqueued(job: Payload, moment: float, *, alone: bool = False) -> Change:
    """The change that sends a job to its queue at ``moment`` (epoch seconds), as if it were due. A
    job that must run alone goes among the suspects, with ``alone`` also without the flag."""
    bare = {key: value for key, value in job.items() if key != "at"}
    queue = queue_of(job)
    to = _FIRST_SUSPECTS if alone or is_suspect(job.get(KEY)) else _FIRST_QUEUE
    return Change(to, dumps({**bare, "queue": queue, "enqueued_at": moment}), queue)


def retried(job: Payload, moment: float, *, fresh: bool) -> Change:
    """The change that sends a job to its queue, so that the run does not count, or with all its
    retries. It does not expire any more: a person wants it to run."""
    job = forget(job)
    count = job.get("retry_count")
    if fresh:
        job = {key: value for key, value in job.items() if key not in _FAILURE}
    elif type(count) is int:
        job = {**job, "retry_count": max(0, count - 1)}
    return enqueued(retried_alone(job, fresh=fresh), moment)


def killed(raw: bytes, job: Payload, queue: str, malformed: str, moment: float) -> Change:
    """The change that moves a job to the dead set."""
    if malformed:
        payload = wrap_malformed(raw, queue or DEFAULT_QUEUE, MalformedPayload(malformed))
    else:
        payload = raw if job.get("jid") else dumps(_with_jid(job))
    return Change(_DEAD, payload, score=moment)


def moved(entry: JobEntry, queue: str, moment: float) -> Change:
    """The change that sends a job to another queue: now, or when it is due. Raises ConfigError for
    one of another shard, and MalformedPayload if it is no job."""
    refuse_other_shard(entry.server, queue)
    job = {**entry.checked_job(), "queue": queue}
    if "retry_queue" in job:
        job["retry_queue"] = queue
    if entry.location in ("scheduled", "retrying"):
        return Change(_BACK, dumps(_with_jid(job)))
    return enqueued(job, moment, alone=entry.among_suspects)


def edited(server: Server, job: Payload, args: Sequence[Any]) -> Change:
    """The change that gives a job other arguments, where it is. Raises InvalidJob."""
    new = list(args)
    if is_active_job(job):
        first = job["args"][0] if type(job.get("args")) is list and job["args"] else {}
        new = [{**first, "arguments": new}]
    validate({"class": text(job.get("class")), "args": new})
    return Change(_BACK, server.bounds.dumps({**_with_jid(job), "args": new}))


def rescheduled(raw: bytes, at: float) -> Change:
    """The change that gives a job another time, where it is."""
    return Change(_BACK, raw, score=at)


def checked_queue(name: str) -> str:
    """Returns ``name``. Raises InvalidRule unless jobs may be pushed to a queue of that name."""
    if is_queue(name):
        return name
    if type(name) is str and is_pattern(name):
        raise InvalidRule(f'"{name}" is a pattern: name one queue')
    raise InvalidRule(f"{shown(name)} is not a queue: expected {QUEUE_NAME}")


def apply(
    server: Server,
    location: Location,
    queue: str,
    changes: Sequence[tuple[bytes, Change]],
    kept: Kept | None = None,
    near: Near = UNKNOWN,
    *,
    among_suspects: bool = False,
) -> list[int]:
    """Makes the changes to these members of a set, or of ``queue``, in one step: of its own list,
    or of its suspects. Returns DONE, GONE or REFUSED for each, or UNLOCKED: done, but another job
    has its lock. With ``kept``, what is deleted is
    kept there. ``near`` saves Redis from reading a long list for each member; it returns LOST for
    all if the last one that was read is no longer there."""
    names = server.keys
    queues = list(dict.fromkeys(one.queue for _, one in changes if one.to >= _FIRST_QUEUE))
    lists = [key for name in queues for key in (names.queue(name), names.suspects(name))]
    source = source_key(names, location, queue, among_suspects=among_suspects)
    all_keys = [*names.of_moves(source, kept or Kept("none", 0)), *lists]
    arguments: list[Any] = []
    for raw, change in changes:
        asked = _asked(names, location, raw, change)
        to = change.to + (2 * queues.index(change.queue) if change.to >= _FIRST_QUEUE else 0)
        where = f"{to} {packed(asked, all_keys, names.totals('ends'))}" if asked else to
        score = "" if change.score is None else change.score
        arguments += (raw, where, change.payload, score, change.queue)
    kept_for, batches = (UNDO_FOR, kept.number + 1) if kept else (0, 0)
    kind = "list" if location == "queued" else "set"
    place = f"{location} {queue}".strip()
    alone = queue if among_suspects else ""
    fixed = (kind, kept_for, place, batches, near.before, near.among, alone, near.last)
    return list(server.run(JOBS_MOVE, all_keys, (*fixed, *arguments)))


def _asked(keys: Keys, location: Location, raw: bytes, change: Change) -> Sequence[Effect]:
    """What the features of a job ask when it goes there."""
    if change.to == _NOWHERE:
        return effects_in(keys, raw, "deleted", together_with=ALL)
    if change.to == _DEAD:
        return effects_in(keys, raw, "dead")
    if change.to >= _FIRST_QUEUE and location == "dead":
        return effects_in(keys, change.payload, "retried from the dead set")
    if change.to >= _FIRST_QUEUE and location == "scheduled":
        return effects_in(keys, raw, "due")
    return NONE


def forget_cancellation(server: Server, jid: str) -> None:
    """Makes a job run although it was cancelled: a person wants it to run after all."""
    if jid:
        server.ask_leniently(("HDEL", server.keys.cancelled, field_of_jid(jid)))


def refusal(server: Server, change: Change) -> ForkqError:
    """The error for a change that Redis refused."""
    if change.to == _BACK:
        return ForkqError("the job stays as it is: the set has the very same job already")
    place = server.keys.dead if change.to == _DEAD else server.keys.queue(change.queue)
    return WrongType(f"the job stays where it is: {message([place])}")


def set_key(keys: Keys, location: Location) -> str:
    """The key of the set of that location."""
    names = {"scheduled": keys.schedule, "retrying": keys.retry, "dead": keys.dead}
    return names[location]


def source_key(keys: Keys, location: Location, queue: str, *, among_suspects: bool = False) -> str:
    """The key of a set, of the list of ``queue``, or of the list of its suspects."""
    if location != "queued":
        return set_key(keys, location)
    return keys.suspects(queue) if among_suspects else keys.queue(queue)


def _with_jid(job: Payload) -> Payload:
    """The job with an id, which some other programs leave out: else two jobs that became equal
    would be one member of a set."""
    return job if job.get("jid") else {**job, "jid": new_jid()}
