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
from ...wire.options import OPTIONS
from ...wire.payload import UNWRITABLE, Payload
from ...wire.times import LONGEST_SECONDS
from ...wire.validation import check_pair
from ..effects import NONE, Effect, name_of
from . import debounce, tickets
from .debounce import Debounce
from .tickets import Marked

UNIQUE: Final = "unique"
# Until when a job holds its lock: "end": however it ends; "start": it is run; "expiry": its time is
# over, however the job ends.
Until: TypeAlias = Literal["end", "start", "expiry"]
# What becomes of the lock: "freed", "held" for its time from now on, "taken again" if it is free.
Fate: TypeAlias = Literal["kept", "freed", "held", "taken again", "the newest job's", "by TTL"]
# Kinds of locks whose jobs give way to newer ones; each has scripts of its own.
Kind: TypeAlias = Literal["replace", "latest", "debounce"]
# What counts of the arguments: the names of these, or what a function makes of them.
By: TypeAlias = Sequence[str] | Callable[..., Any]
# What a push does that finds the lock taken.
OnDuplicate: TypeAlias = Literal["skip", "raise", "return", "replace", "latest"]
UNIQUE_OPTIONS: Final = (
    *("unique_for", "unique_until", "unique_by", "on_duplicate"),
    *("debounce", "debounce_max"),
)
_encode: Final = msgspec.json.Encoder(order="deterministic").encode

_UNTIL: Final[tuple[Until, ...]] = get_args(Until)
# A job that runs holds its lock at least for so many seconds from each beat of its child on.
_LEAST_HELD: Final = 30.0
# It takes the lock again at its start if that may lapse before the next beat.
_SOON: Final = 15.0
_LONGEST_DIGEST: Final = 64
_DIGEST_SIZE: Final = 16  # bytes
# Stands in the needs of a job for the digest of its arguments, which is as long.
NO_DIGEST: Final = "#" * (2 * _DIGEST_SIZE)


class Lock(NamedTuple):
    """The lock of one job: the ``digest`` in its name, and for how many ``seconds`` it is held.
    ``kind`` says what a push does where at most one job waits (tickets.py, debounce.py);
    ``debounce``: when a debounced job is due."""

    digest: str
    seconds: float
    until: Until
    kind: Kind | None = None
    debounce: Debounce | None = None

    @property
    def is_ticket(self) -> bool:
        """Whether the lock holds the newest job, and its entry is a ticket."""
        return self.kind in tickets.KINDS

    @property
    def held_for(self) -> float:
        """For how many seconds it is held at least."""
        return max(tickets.LIVES, self.seconds) if self.is_ticket else self.seconds

    def effect(
        self, keys: Keys, jid: str, name: str, delay: float = 0.0, least: float = 0.0
    ) -> Effect:
        """The effect that takes it for the job ``jid`` of the class ``name``, which is due after
        ``delay`` seconds; for ``least`` seconds at least."""
        milliseconds = round(1000 * max(least, max(0.0, delay) + self.seconds))
        return Effect("lock", keys.unique(self.digest), (jid, name, milliseconds))


class Fates(Protocol):
    """What becomes of a lock on one way: of one of ``on_duplicate``, and of a debounced job's."""

    @property
    def lock(self) -> Fate: ...

    @property
    def debounce(self) -> debounce.Fate: ...


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
    if (quiet := debounce.debounce_in(found)) is not None:
        return Lock(digest, float(seconds), until, "debounce", quiet)  # type: ignore[arg-type]
    return Lock(digest, float(seconds), until, tickets.kind_in(found))  # type: ignore[arg-type]


def effects(
    keys: Keys, needs: Mapping[str, Any], fates: Fates, job: Marked, together_with: str = ""
) -> tuple[Effect, ...]:
    """What becomes of the lock of the ``job``. ``together_with``: see ``tickets.effects``."""
    lock, (jid, name, _, delay), fate = lock_in(needs), job, fates.lock
    if lock is None or lock.until == "expiry" or not jid:
        return NONE
    if lock.debounce is not None:
        return debounce.effects(keys, lock, fates.debounce, job)
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
    """What a push needs to know of unique jobs, beside the digest in the name of a lock: for how
    many ``seconds`` a job has it, what to do if another job has it, and ``until`` when it has it.
    ``debounce``: when a debounced job is due."""

    seconds: float
    on_duplicate: OnDuplicate
    until: Until
    debounce: Debounce | None = None

    @property
    def kind(self) -> str:
        """The letter that push.lua and cron_tick.lua have for it."""
        if self.debounce is not None:
            return "d"
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


class Asked(NamedTuple):
    """What the options of a unique job ask. ``digest`` makes the digest of its arguments; None if
    the payload has a lock already, which is pushed again: ``lock`` then."""

    unique: Unique
    lock: str
    digest: Digest | None


def ask(job: Payload, needs: dict[str, Any], definition: Definition | None) -> Asked | None:
    """Makes of the options of a unique or debounced job what its payload needs, with NO_DIGEST in
    the place of the digest. None if it is neither. Raises InvalidJob."""
    given = {name: needs.pop(name) for name in UNIQUE_OPTIONS if name in needs}
    name, digest = name_of(job), None
    how: OnDuplicate = given.get("on_duplicate", "skip")
    if given.get("unique_for") or given.get("debounce"):
        check(job["class"], given)
        kind = kind_of(given)
        digest = Digest((job["class"], name), given.get("unique_by"), definition, kind)
        needs[UNIQUE] = _need(given, kind)
    if (lock := lock_in(needs)) is None:
        return None
    how = tickets.kind_of(lock.kind) or how
    unique = Unique(lock.held_for, how, lock.until, lock.debounce)
    return Asked(unique, lock.digest, digest)


def kind_of(options: Mapping[Any, Any]) -> Kind | None:
    """The kind of the lock of jobs with these options; None for an ordinary lock."""
    if options.get("debounce"):
        return "debounce"
    return tickets.kind_of(options.get("on_duplicate", "skip"))


def _need(given: Mapping[Any, Any], kind: Kind | None) -> dict[str, Any]:
    """What a payload has of a job with these options, but for the digest."""
    if kind == "debounce":
        return {"lock": NO_DIGEST, **debounce.need(given)}
    until = given.get("unique_until", "start" if kind == "replace" else "end")
    need = {"lock": NO_DIGEST, "for": float(given["unique_for"]), "until": until}
    return need if kind is None else {**need, "on": kind}


def check(job: str, given: Mapping[Any, Any]) -> None:
    """Raises InvalidJob for a value that a raw push of this ``job`` has written in the place of an
    option, and for two that cannot stand side by side."""
    for option, value in given.items():
        if not (row := OPTIONS[option]).values.fits(value):
            raise row.refusal(job, option, value)
    check_pair(job, given)


class Digest:
    """Makes the digests of the jobs of one class: over the class and its arguments with the
    defaults filled in, or over what ``by`` makes of these. The same arguments have the same digest,
    whether they are given by position, by name, or by a default.

    ``names`` are that of the job for errors, and that of its class as people know it. Locks of
    another ``kind`` have other digests: no script knows two kinds. Raises InvalidJob if ``by``
    names no parameter.
    """

    __slots__ = ("_begun", "_defaults", "_job", "_pick")

    def __init__(
        self, names: tuple[str, str], by: By | None, known: Definition | None, kind: str | None
    ) -> None:
        self._job, name = names
        fixed = () if known is None or callable(by) else known.parameters
        fills = known.defaults if known is not None else {}
        self._defaults = [fills.get(each) for each in fixed if not each.startswith("*")]
        self._pick = None if by is None else _picker(self._job, by, known)
        words = None if callable(by) or by is None else [*by]
        self._begun = blake2b(_encode([name, words, kind]), digest_size=_DIGEST_SIZE)

    def of(self, args: list[Any]) -> str:
        """The digest of a job with these arguments. Raises InvalidJob."""
        if len(args) < len(self._defaults):
            args = [*args, *self._defaults[len(args) :]]
        return self.over(args if self._pick is None else self._pick(args))

    def over(self, counts: Any) -> str:
        """The digest of jobs of whose arguments this ``counts``. Raises InvalidJob."""
        try:
            text = _encode(counts)
        except UNWRITABLE as error:
            raise InvalidJob(
                f"job {shown(self._job)}: what makes it unique cannot be written as JSON "
                f"({error}); name the arguments that count in `unique_by`, or return text from it"
            ) from None
        made = self._begun.copy()
        made.update(text)
        return made.hexdigest()


def _picker(job: str, by: By, known: Definition | None) -> Callable[[list[Any]], Any]:
    """What makes of the arguments what counts. The name of the last parameter may begin with a
    star: it takes all further arguments. Raises InvalidJob."""
    if callable(by):
        return lambda args: _result(job, by, args)
    names = _names(job, by, known)
    places, last = [names.index(each) for each in by], len(names) - names[-1].startswith("*")
    return lambda args: [args[at:] if at == last else args[at] for at in places]


def _result(job: str, by: Callable[..., Any], args: list[Any]) -> Any:
    """What the function makes of the arguments. Raises InvalidJob if it does not take them: only a
    definition is checked before its first push; and from the error that its own lines raise."""
    try:
        return by(*args)
    except Exception as error:
        if _is_of_call(error):
            raise InvalidJob(
                f"job {shown(job)}: `unique_by` gets the arguments of the job, and its function "
                f"does not take those of this push ({error}); give it the parameters of the job"
            ) from None
        raise InvalidJob(
            f"job {shown(job)}: the function in its `unique_by` has failed for the arguments of "
            f"this push ({type(error).__name__}: {error}); mend it, or name the arguments that "
            "count"
        ) from error


def _is_of_call(error: Exception) -> bool:
    """Whether the call itself has failed, and no line of the function."""
    is_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
    return type(error) is TypeError and not is_inside


def _names(job: str, by: Sequence[str], known: Definition | None) -> tuple[str, ...]:
    """The names of the parameters. Raises InvalidJob if ``by`` names another one."""
    if known is None:
        raise InvalidJob(
            f"job {shown(job)}: `unique_by` names arguments, and this process has no "
            "definition of the job; import that, or pass a function"
        )
    for each in by:
        if each not in known.parameters:
            raise InvalidJob(
                f"job {shown(job)}: `unique_by` names {shown(each)}, which is none of its "
                f"parameters ({', '.join(known.parameters)})"
            )
    return known.parameters
