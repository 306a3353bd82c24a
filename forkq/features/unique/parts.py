"""What a unique job needs: values, without I/O.

The payload has ``forkq.needs.unique``: the digest in the name of the lock's key (``lock``), for how
many seconds the lock is held at most (``for``), and until when (``until``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

import msgspec

from ...errors import InvalidJob, shown
from ...wire.keys import Keys
from ...wire.marks import KEY, NEEDS, needs_in
from ...wire.payload import UNWRITABLE, Payload
from ...wire.times import LONGEST_SECONDS
from ...wire.validation import OPTIONS, check_pair
from ..effects import NONE, Effect, name_of
from . import tickets
from .tickets import Kind, Marked

UNIQUE: Final = "unique"
# Until when a job holds its lock: "end": however it ends; "start": it is run; "expiry": its time is
# over, however the job ends.
Until: TypeAlias = Literal["end", "start", "expiry"]
# What becomes of the lock: "freed", "held" for its time from now on, "taken again" if it is free.
Fate: TypeAlias = Literal["kept", "freed", "held", "taken again", "the newest job's", "by TTL"]
# What a push does that finds the lock taken.
OnDuplicate: TypeAlias = Literal["skip", "raise", "return", "replace", "latest"]
_OPTIONS: Final = ("unique_for", "unique_until", "unique_by", "on_duplicate")
_encode: Final = msgspec.json.Encoder(order="deterministic").encode

_UNTIL: Final[tuple[Until, ...]] = get_args(Until)
# A job that runs holds its lock at least for so many seconds from each beat of its child on.
_LEAST_HELD: Final = 30.0
# It takes the lock again at its start if that may lapse before the next beat.
_SOON: Final = 15.0
_LONGEST_DIGEST: Final = 64


class Lock(NamedTuple):
    """The lock of one job: the ``digest`` in its name, and for how many ``seconds`` it is held.
    ``kind`` says what a push does where at most one job waits (tickets.py)."""

    digest: str
    seconds: float
    until: Until
    kind: Kind | None = None

    @property
    def held_for(self) -> float:
        """For how many seconds it is held at least."""
        return self.seconds if self.kind is None else max(tickets.LIVES, self.seconds)

    def effect(
        self, keys: Keys, jid: str, name: str, delay: float = 0.0, least: float = 0.0
    ) -> Effect:
        """The effect that takes it for the job ``jid`` of the class ``name``, which is due after
        ``delay`` seconds; for ``least`` seconds at least."""
        milliseconds = round(1000 * max(least, max(0.0, delay) + self.seconds))
        return Effect("lock", keys.unique(self.digest), (jid, name, milliseconds))


def lock_in(needs: Mapping[str, Any]) -> Lock | None:
    """The lock in the needs of a job; None if it has none, or if what stands there is odd."""
    found = needs.get(UNIQUE)
    if type(found) is not dict:
        return None
    digest, seconds, until = found.get("lock"), found.get("for"), found.get("until")
    if type(digest) is not str or not 0 < len(digest) <= _LONGEST_DIGEST or digest == "doubt":
        return None  # the last is `Keys.doubted`
    is_number = isinstance(seconds, int | float) and type(seconds) is not bool
    if not is_number or not 0 < seconds <= LONGEST_SECONDS or until not in _UNTIL:  # type: ignore[operator]
        return None
    return Lock(digest, float(seconds), until, tickets.kind_in(found))  # type: ignore[arg-type]


def effects(
    keys: Keys, needs: Mapping[str, Any], fate: Fate, job: Marked, together_with: str = ""
) -> tuple[Effect, ...]:
    """What becomes of the lock of the ``job``. ``together_with``: see ``tickets.effects``."""
    lock, (jid, name, _, delay) = lock_in(needs), job
    if lock is None or lock.until == "expiry" or not jid:
        return NONE
    if lock.kind is not None:
        return tickets.effects(keys, lock, fate, job, together_with)
    if fate == "freed":
        return (Effect("unlock", keys.unique(lock.digest), (jid,)),)
    if fate == "taken again" or (fate == "held" and lock.until == "end"):
        return (lock.effect(keys, jid, name, delay),)
    return NONE


def at_start(
    keys: Keys, needs: Mapping[str, Any], jid: str, name: str, waited: float
) -> tuple[Effect, ...]:
    """What becomes of the lock when the job starts, ``waited`` seconds after it came to its
    queue."""
    lock = lock_in(needs)
    if lock is None or not jid or lock.until == "expiry" or lock.kind is not None:
        return NONE
    if lock.until == "start":
        return (Effect("unlock", keys.unique(lock.digest), (jid,)),)
    lapses_soon = waited + _SOON > lock.seconds
    return (lock.effect(keys, jid, name, least=_LEAST_HELD),) if lapses_soon else NONE


def while_running(keys: Keys, needs: Mapping[str, Any], job: Marked) -> tuple[Effect, ...]:
    """What holds the lock of a job that runs."""
    lock = lock_in(needs)
    if lock is None or not job.jid or lock.until != "end":
        return NONE
    if lock.kind is not None:
        return tickets.while_running(keys, lock, job)
    return (lock.effect(keys, job.jid, job.name, least=_LEAST_HELD)._replace(name="hold"),)


class Unique(NamedTuple):
    """What a push needs to know of a unique job: the ``digest`` in the name of its lock, for how
    many ``seconds`` it has that, its class, what to do if another job has it, and ``until`` when it
    has it."""

    digest: str
    seconds: float
    name: str
    on_duplicate: OnDuplicate
    until: Until

    @property
    def kind(self) -> str:
        """The letter that push.lua and cron_tick.lua have for it."""
        if self.is_ticket:
            return "n"
        if self.until == "expiry":
            return "e"
        return "f" if self.on_duplicate == "raise" else "p"

    @property
    def is_ticket(self) -> bool:
        """Whether at most one of these jobs waits (tickets.py)."""
        return self.on_duplicate in tickets.KINDS


class Definition(Protocol):
    """What the digest needs to know of a job's definition: its parameters, and their defaults."""

    @property
    def parameters(self) -> tuple[str, ...]: ...

    @property
    def defaults(self) -> Mapping[str, Any]: ...


def ask(job: Payload, needs: dict[str, Any], definition: Definition | None) -> Unique | None:
    """Makes of the options of a unique job what its payload needs. None if it is not unique. Raises
    InvalidJob."""
    given = {name: needs.pop(name) for name in _OPTIONS if name in needs}
    name = name_of(job)
    how: OnDuplicate = given.get("on_duplicate", "skip")
    if not given.get("unique_for"):
        lock = lock_in(needs)  # a payload that is pushed again
        if lock is None:
            return None
        return Unique(lock.digest, lock.held_for, name, lock.kind or how, lock.until)
    _check(job["class"], given)
    kind = tickets.kind_of(how)
    made = digest(job, name, given.get("unique_by"), definition, kind)
    until = given.get("unique_until", "start" if kind == "replace" else "end")
    lock = Lock(made, float(given["unique_for"]), until, kind)
    needs[UNIQUE] = {"lock": made, "for": lock.seconds, "until": lock.until}
    if kind is not None:
        needs[UNIQUE]["on"] = kind
    return Unique(made, lock.held_for, name, how, lock.until)


def _check(job: str, given: Mapping[Any, Any]) -> None:
    """Raises InvalidJob for a value that a raw push has written in the place of an option."""
    for option, value in given.items():
        if not (row := OPTIONS[option]).values.fits(value):
            raise row.refusal(job, option, value)
    check_pair(job, given)


def with_lock(job: Payload, definition: Definition | None) -> Payload:
    """A job that is pushed many times, and later, by a process that does not know its definition:
    with its lock in the place of its options."""
    needs = dict(needs_in(job.get(KEY)))
    if ask(job, needs, definition) is None and needs == needs_in(job.get(KEY)):
        return job
    marks = {key: value for key, value in job[KEY].items() if key != NEEDS}
    return {**job, KEY: {**marks, NEEDS: needs} if needs else marks}


def digest(
    job: Payload,
    name: str,
    by: Sequence[str] | Callable[..., Any] | None,
    known: Definition | None,
    kind: Kind | None = None,
) -> str:
    """The digest over class and arguments, or over what ``by`` makes of these. The same arguments
    have the same, whether they are given by position, by name, or by a default. Locks of another
    ``kind`` have another one: no script knows two kinds."""
    return digest_of(name, _what_counts(job, by, known), kind, job["class"])


def digest_of(name: str, counts: Any, kind: Kind | None = None, job: str = "") -> str:
    """The digest over the class ``name`` and what counts of its arguments; an error names ``job``,
    if that is another one. Raises InvalidJob."""
    try:
        text = _encode([name, counts] if kind is None else [name, counts, kind])
    except UNWRITABLE as error:
        raise InvalidJob(
            f"job {shown(job or name)}: what makes it unique cannot be written as JSON ({error}); "
            "name the arguments that count in `unique_by`, or return text from it"
        ) from None
    return blake2b(text, digest_size=16).hexdigest()


def _what_counts(
    job: Payload, by: Sequence[str] | Callable[..., Any] | None, known: Definition | None
) -> Any:
    if callable(by):
        return by(*job["args"])
    return _by_position(job, by) if known is None else _by_name(job, known, by)


def bound(known: Definition, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments by the names of their parameters, with the defaults of those left out."""
    names = known.parameters
    if names and names[-1].startswith("*"):
        names = names[:-1]
        found = dict(zip(names, args, strict=False))
        found[known.parameters[-1]] = list(args[len(names) :])
    else:
        found = dict(zip(names, args, strict=False))
    return {**known.defaults, **found}


def _by_name(job: Payload, known: Definition, by: Sequence[str] | None) -> Mapping[str, Any]:
    found = bound(known, job["args"])
    if by is None:
        return found
    odd = [each for each in by if each not in found]
    if odd:
        raise InvalidJob(
            f"job {shown(job['class'])}: `unique_by` names {shown(odd[0])}, which is none of its "
            f"parameters ({', '.join(known.parameters)})"
        )
    return {each: found[each] for each in by}


def _by_position(job: Payload, by: Sequence[str] | None) -> list[Any]:
    if by is not None:
        raise InvalidJob(
            f"job {shown(job['class'])}: `unique_by` names arguments, and this process has no "
            "definition of the job; import that, or pass a function"
        )
    args: list[Any] = job["args"]
    return args
