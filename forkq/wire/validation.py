"""What a job must be to be pushed: its options, the shape of its payload, values that JSON carries.

``JobOptions`` is the table of the options: a new one is one more field there, with its row. Each
definition and each push is checked against it, type checkers know the options by it, and the
documents show it.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, get_type_hints

import msgspec

from ..errors import InvalidJob, InvalidRule, a_type, callers_level, shown
from .payload import DEEPEST, DEFAULT_QUEUE, Payload, what_to_pass
from .times import LONGEST_SECONDS, Backoff, in_seconds, is_backoff, stored_backoff

StrictArgs: TypeAlias = Literal["raise", "warn", "off"]

# Values of these types stay what they are, with any content.
_SIMPLE: Final = frozenset((str, int, bool, type(None)))
# Keys of a payload that ``check_shape`` checks itself, or that are no options.
_USUAL: Final = frozenset(
    (*("class", "args", "queue", "retry", "jid"), *("at", "created_at", "enqueued_at"))
)
# How many processes a job may kill: their crash records fit into a payload.
MOST_CRASHES: Final = 100
# How many pushes Redis notes of a throttled job.
MOST_IN_WINDOW: Final = 1000
# More replicas than any server has.
MOST_REPLICAS: Final = 100

# The name of a queue that forkq pushes to: what a capsule can list. A pattern has * ? [ ] too, and
# a comma stands before a weight. Ruby's Sidekiq takes any text, so what is read may be any.
QUEUE_CHARACTERS: Final = "A-Za-z0-9_.:-"
QUEUE_NAME: Final = "a name of letters, digits and _ . : -"
_is_queue_name = re.compile(f"[{QUEUE_CHARACTERS}]+").fullmatch


class Values(msgspec.Struct, frozen=True):
    """Which values an option can have: ``fits`` says so of one, ``expected`` in words. ``stored``
    turns one into what the payload has."""

    fits: Callable[[Any], bool]
    expected: str
    stored: Callable[[Any], Any] | None = None


class Option(msgspec.Struct, frozen=True):
    """The row of an option, beside its name and type in ``JobOptions``. ``about`` is one sentence,
    ``default`` what counts without the option. ``place`` is where the payload has the value, as in
    "forkq.needs.name"; the key of the option's name if it is empty."""

    about: str
    default: str
    values: Values
    place: str = ""

    def refusal(self, job: str, name: str, value: object) -> InvalidJob:
        """The error for a value that the option cannot have; it names the job and the option."""
        return _wrong(job, name, value, self.values.expected)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= LONGEST_SECONDS


def _is_flag_or_count(value: object) -> bool:
    return type(value) is bool or (type(value) is int and value >= 0)


def is_queue(value: object) -> bool:
    """Whether ``value`` is a name that a capsule can list: forkq pushes to no other queue."""
    return type(value) is str and _is_queue_name(value) is not None


def _is_throttle(value: object) -> bool:
    from ..limits.rate_text import parse_rate  # noqa: PLC0415 - few jobs have a throttle

    try:
        return value is None or parse_rate(value).count <= MOST_IN_WINDOW  # type: ignore[arg-type]
    except InvalidRule:
        return False


def _is_tags(value: object) -> bool:
    return isinstance(value, list | tuple) and {str}.issuperset(map(type, value))


def _a_time(bounds: str) -> Values:
    """Values in seconds, or a timedelta, which is stored as seconds."""
    return Values(
        lambda value: _is_seconds(in_seconds(value)),
        f"a number of seconds {bounds}, or a timedelta",
        lambda value: float(in_seconds(value)),
    )


_TEXT: Final = Values(lambda value: type(value) is str and value != "", "a non-empty string")
_QUEUE: Final = Values(is_queue, QUEUE_NAME)
_FLAG: Final = Values(lambda value: type(value) is bool, "True or False")
_FLAG_OR_COUNT: Final = Values(_is_flag_or_count, "True, False or a whole number from 0 on")
_SECONDS: Final = Values(_is_seconds, "a number of seconds up to 1e9")
_LIMIT: Final = Values(
    lambda value: value is None or _is_seconds(value),
    "a number of seconds from 0 (no limit) to 1e9",
)
_EXPIRY: Final = _a_time("from 0 (no expiry) to 1e9")
_LOCKED_FOR: Final = _a_time("from 0 (not unique) to 1e9")
_QUIET: Final = _a_time("from 0 (not debounced) to 1e9")
_LONGEST_QUIET: Final = _a_time("up to 1e9")
_UNTIL: Final = Values(
    lambda value: value in ("end", "start", "expiry"), "one of end, start, expiry"
)
_UNIQUE_BY: Final = Values(
    lambda value: callable(value) or (_is_tags(value) and len(value) > 0),
    "a list of names of arguments, or a function that takes the arguments",
)
_ON_DUPLICATE: Final = Values(
    lambda value: value in ("skip", "raise", "return", "replace", "latest"),
    "one of skip, raise, return, replace, latest",
)
_THROTTLE: Final = Values(
    _is_throttle,
    f'a rate like "3/minute", "5/second" or "10/30s", of at most {MOST_IN_WINDOW:,}, or None',
)
_RESULT: Final = _a_time("from 0 (no result) to 1e9")
_CRASHES: Final = Values(
    lambda value: type(value) is int and 1 <= value <= MOST_CRASHES,
    f"a whole number from 1 to {MOST_CRASHES}",
)
_REPLICAS: Final = Values(
    lambda value: type(value) is int and 0 <= value <= MOST_REPLICAS,
    f"a whole number from 0 to {MOST_REPLICAS}",
)
_ON_CRASH: Final = Values(
    lambda value: value in ("dead", "requeue", "discard"), "one of dead, requeue, discard"
)
_TAGS: Final = Values(_is_tags, "a list of strings")
_BACKOFF: Final = Values(
    is_backoff, '"exponential", seconds, a timedelta, or a list of them', stored_backoff
)


class JobOptions(TypedDict, total=False):
    """What a definition, and ``set`` for one push, may say."""

    # fmt: off
    queue: Annotated[str, Option("The queue that the job is pushed to.", '`"default"`', _QUEUE)]
    retry: Annotated[bool | int, Option(
        "How often it is tried again when it has failed; `True` is 25 times. After `False` it is "
        "not kept in the dead set.",
        "`True`", _FLAG_OR_COUNT,
    )]
    retry_for: Annotated[float, Option(
        "Seconds from the first failure on for which it is tried again; the count is then ignored.",
        "none", _SECONDS,
    )]
    backoff: Annotated[Backoff, Option(
        "How long it waits before each retry ([retries](jobs.md#retries)): so many seconds, the "
        "times of a list one after the other, or from 10 seconds on twice as long each time.",
        "Sidekiq's formula", _BACKOFF,
    )]
    retry_queue: Annotated[str, Option("The queue of its retries.", "its own queue", _QUEUE)]
    dead: Annotated[bool, Option(
        "Whether it is kept in the dead set when forkq gives it up.", "`True`", _FLAG
    )]
    backtrace: Annotated[bool | int, Option(
        "Whether the payload keeps the traceback of the last failure, or how many lines of it.",
        "`False`", _FLAG_OR_COUNT,
    )]
    timeout: Annotated[float | None, Option(
        "Seconds after which `forkq.TimeLimit` is raised in the job; 0 is no limit "
        "([time limits](jobs.md#time-limits)).",
        "`job_timeout` of the capsule", _LIMIT,
    )]
    hard_timeout: Annotated[float | None, Option(
        "Seconds after which it is ended by force, together with its child: at least `timeout`, or "
        "0 for no limit.",
        "`job_hard_timeout` of the capsule", _LIMIT,
    )]
    max_runtime: Annotated[float | None, Option(
        "Seconds after which an [iterable job](iterable.md) goes to the tail of its queue, between "
        "two items; 0 is no limit.",
        "none", _LIMIT,
    )]
    crashes: Annotated[int, Option(
        "How many crashes end it ([jobs that kill their process]"
        "(jobs.md#jobs-that-kill-their-process)).",
        "`3`", _CRASHES,
    )]
    on_crash: Annotated[Literal["dead", "requeue", "discard"], Option(
        "What becomes of it then: given up, run again after each crash, or dropped.",
        '`"dead"`', _ON_CRASH,
    )]
    expires_in: Annotated[float | timedelta, Option(
        "Seconds, or a timedelta, after which the job is not run any more ([expiry](expiry.md)): "
        "from the push, or from the time for which it is scheduled; 0 is no expiry.",
        "none", _EXPIRY, "forkq.needs.expires_in",
    )]
    unique_for: Annotated[float | timedelta, Option(
        "Seconds, or a timedelta, for which no second job with the same arguments is pushed while "
        "it waits or runs ([unique jobs](unique.md)); 0 is not unique.",
        "none", _LOCKED_FOR, "forkq.needs.unique_for",
    )]
    unique_until: Annotated[Literal["end", "start", "expiry"], Option(
        "Until when a unique job keeps the others out: however it ends, until it is run, or for "
        "the whole of `unique_for`.",
        '`"end"`', _UNTIL, "forkq.needs.unique_until",
    )]
    unique_by: Annotated[Sequence[str] | Callable[..., Any], Option(
        "The names of the arguments that count for a unique, debounced or throttled job, or a "
        "function of the arguments.",
        "all arguments", _UNIQUE_BY, "forkq.needs.unique_by",
    )]
    on_duplicate: Annotated[Literal["skip", "raise", "return", "replace", "latest"], Option(
        'What a push does that finds such a job: it returns `""`, raises `forkq.Duplicate`, or '
        "returns the jid of that job; or it [takes the place](unique.md#the-newest-one-counts) of "
        'the one that waits: `"replace"` beside a run, `"latest"` after it.',
        '`"skip"`', _ON_DUPLICATE, "forkq.needs.on_duplicate",
    )]
    debounce: Annotated[float | timedelta, Option(
        "Seconds, or a timedelta, after the last push with the same arguments at which it runs, "
        "once for all of them, with the arguments of the last ([debounce](unique.md#debounce)); 0 "
        "is not debounced.",
        "none", _QUIET, "forkq.needs.debounce",
    )]
    debounce_max: Annotated[float | timedelta, Option(
        "Seconds, or a timedelta, after the first of these pushes at which it runs at the latest.",
        "ten times `debounce`", _LONGEST_QUIET, "forkq.needs.debounce_max",
    )]
    throttle: Annotated[str | None, Option(
        "How many jobs with the same arguments are pushed in any such time, as `\"3/minute\"`: a "
        'push beyond that pushes nothing, and returns `""` ([throttle](unique.md#throttle)).',
        "none", _THROTTLE, "forkq.needs.throttle",
    )]
    once: Annotated[bool, Option(
        "Whether a second push of its jid within a day pushes nothing ([once](unique.md#once)).",
        "`False`", _FLAG, "forkq.needs.once",
    )]
    result_ttl: Annotated[float | timedelta, Option(
        "Seconds, or a timedelta, for which its [result](results.md) is kept; 0: it is not.",
        "none", _RESULT, "forkq.needs.result_ttl",
    )]
    secret: Annotated[bool, Option(
        "Whether `forkq.api`, and the pages and commands that use it, show `***` for each "
        "argument.",
        "`False`", _FLAG,
    )]
    tags: Annotated[Sequence[str], Option(
        "Words that travel in the payload, for UIs and other workers.", "none", _TAGS
    )]
    log_level: Annotated[str, Option(
        "A level that travels in the payload, for other workers.", "none", _TEXT
    )]
    wait: Annotated[int, Option(
        "For how many replicas of Redis a push waits "
        "([durability](redis.md#what-a-crash-may-lose)); 0 for none.",
        "`[redis] wait`", _REPLICAS,
    )]
    # fmt: on


def rows_of(options: type) -> dict[str, Option]:
    """The rows of a table of options, by the names of its fields."""
    hints = get_type_hints(options, include_extras=True)
    return {
        name: row
        for name, hint in hints.items()
        for row in hint.__metadata__
        if isinstance(row, Option)
    }


OPTIONS: Final = rows_of(JobOptions)
# Those that do not stand at the top of a payload.
_PLACED: Final = frozenset(name for name, row in OPTIONS.items() if row.place)

# Options that mean nothing without one of others.
_WITHOUT: Final[Mapping[str, Sequence[str]]] = {
    "unique_until": ("unique_for",),
    "unique_by": ("unique_for", "debounce", "throttle"),
    "on_duplicate": ("unique_for",),
    "debounce_max": ("debounce",),
}
# Those that cannot stand beside others: all that have the same lock.
_LOCKED: Final = frozenset((*_WITHOUT, "unique_for", "debounce", "throttle"))
# Until when such jobs have their locks.
_UNTIL_OF: Final = {"replace": "start", "latest": "end"}

_TOO_DEEP = (
    f"args are nested too deeply (more than {DEEPEST} levels), or contain themselves; pass a "
    "flatter structure"
)


def validate(job: Payload, strict: StrictArgs = "raise") -> None:
    """Raises InvalidJob, naming the job and the value, for a job that should not be pushed.

    ``strict`` applies only to the types inside ``args``; the shape of the job is always checked.
    """
    check_shape(job)
    check_args(job, strict)


def check_args(job: Payload, strict: StrictArgs) -> None:
    """Raises InvalidJob for the first value in ``args`` that the job would not get as it was
    pushed; warns of it, or does nothing, by ``strict``."""
    if strict == "off" or _SIMPLE.issuperset(map(type, job["args"])):
        return
    try:
        problem = first_foreign_value(job["args"])
    except RecursionError:
        problem = _TOO_DEEP
    if problem is None:
        return
    message = f"job {job['class']!r}: {problem}"
    if strict == "raise":
        raise InvalidJob(message)
    warnings.warn(message, stacklevel=callers_level())


def with_options(job: Mapping[str, Any], options: Mapping[str, Any], name: str) -> Payload:
    """``job`` with each option at its place, as ``placed`` makes it, and with all keys checked.
    Raises InvalidJob for a value that an option cannot have."""
    changed = placed(job, options, name)
    check_shape({**changed, "class": name, "args": []})
    return changed


def placed(job: Mapping[str, Any], options: Mapping[str, Any], name: str) -> Payload:
    """A new dict: ``job``, the keys of a payload called ``name``, and each option at its place.
    Raises InvalidJob for a value that such an option, or one that is stored in another form, cannot
    have."""
    changed = {**job, **options}
    for key in options:
        row = OPTIONS.get(key)
        if row is None or not (row.place or row.values.stored):
            continue
        if not row.values.fits(options[key]):
            raise row.refusal(name, key, options[key])
        if row.values.stored is not None:
            changed[key] = row.values.stored(options[key])
        if row.place:
            _put(changed, row.place.split("."), changed.pop(key))
    if not _LOCKED.isdisjoint(options):
        _check_alone(name, options, changed["forkq"]["needs"])
        check_pair(name, changed["forkq"]["needs"])
    return changed


def _check_alone(name: str, options: Mapping[str, Any], needs: Mapping[str, Any]) -> None:
    """Raises InvalidJob for one of the ``options`` that means nothing without another one, which
    is not among the ``needs`` of the job."""
    for option in sorted(_WITHOUT.keys() & options.keys()):
        wanted = _WITHOUT[option]
        if needs.keys().isdisjoint(wanted):
            also, remedy = " or ".join(f"`{one}`" for one in wanted), "pass both, or neither"
            if option == "on_duplicate" and needs.get("debounce"):
                remedy = "leave it out: the last push of a debounced job always runs"
            raise InvalidJob(f"job {name!r}: `{option}` means nothing without {also}; {remedy}")


def check_pair(name: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidJob for options of unique and of debounced jobs of which one cannot have its
    value beside that of the other."""
    after, most = options.get("debounce"), options.get("debounce_max")
    if after and options.get("unique_for"):
        raise InvalidJob(
            f"job {name!r} has `debounce` and `unique_for`: the one runs the last push, the other "
            "the first; leave one of them out, or set it to 0"
        )
    if after and most is not None and most < after:
        raise InvalidJob(
            f"job {name!r}: `debounce_max` is {most:g} s, and `debounce` is {after:g} s: pass at "
            "least as much"
        )
    how, until = options.get("on_duplicate"), options.get("unique_until")
    if options.get("throttle") and (after or how in ("replace", "latest")):
        other = "`debounce`" if after else f"`on_duplicate` {how!r}"
        raise InvalidJob(
            f"job {name!r} has `throttle` and {other}: the one drops the last push, the other runs "
            "it; leave one of them out"
        )
    wanted = _UNTIL_OF.get(how) if type(how) is str else None
    if wanted is None or until in (None, wanted):
        return
    other = "latest" if wanted == "start" else "replace"
    also = f', or on_duplicate="{other}"' if until == _UNTIL_OF[other] else ""
    raise InvalidJob(
        f"job {name!r}: `on_duplicate` is {how!r}, and `unique_until` is {until!r}: leave "
        f"`unique_until` out{also}"
    )


def in_places(job: Payload) -> Payload:
    """``job``, a raw push, with the options at their places in a payload that it has at its top.
    Raises InvalidJob for a value that such an option cannot have."""
    given = {key: job[key] for key in _PLACED.intersection(job)}
    if not given:
        return job
    return placed(
        {key: value for key, value in job.items() if key not in given}, given, job["class"]
    )


def _put(job: Payload, path: Sequence[str], value: object) -> None:
    """Sets a value below ``job``; the objects on the way are new."""
    *above, last = path
    for key in above:
        below = job.get(key)
        job[key] = dict(below) if type(below) is dict else {}
        job = job[key]
    job[last] = value


def check_shape(job: Payload) -> None:
    """Raises InvalidJob for a key of the job with a value that it cannot have. The values inside
    ``args`` may be any."""
    name = job.get("class")
    if type(name) is not str or not name:
        raise InvalidJob(f"a job needs a name: `class` is {shown(name)}; pass a non-empty string")
    if type(job.get("args")) is not list:  # its value may be a secret, and is not shown
        kind = a_type(type(job.get("args")))
        raise InvalidJob(f"job {name!r}: `args` is {kind}; pass a list")
    queue = job.get("queue", DEFAULT_QUEUE)
    # Each push comes here: no call of a function in Python where all is well.
    if type(queue) is not str or _is_queue_name(queue) is None:
        raise OPTIONS["queue"].refusal(name, "queue", queue)
    if "jid" in job:
        check_jid(name, job["jid"])
    retry = job.get("retry", True)
    if type(retry) is not bool and (type(retry) is not int or retry < 0):
        raise OPTIONS["retry"].refusal(name, "retry", retry)
    if not _USUAL.issuperset(job):
        _check_options(job, name)


def check_jid(name: str, jid: object) -> None:
    """Raises InvalidJob, about the job ``name``, for what is no jid."""
    if type(jid) is not str or not jid:
        raise _wrong(name, "jid", jid, "a string")


def _check_options(job: Payload, name: str) -> None:
    for key in job:
        row = None if key in _USUAL else OPTIONS.get(key)
        if row is not None and not row.place and not row.values.fits(job[key]):
            raise row.refusal(name, key, job[key])
    if "hard_timeout" not in job:
        return
    soft, hard = time_limit(job, "timeout"), time_limit(job, "hard_timeout")
    if soft and hard and hard < soft:
        expected = f"0 (no limit), or at least the {soft:g} s of its `timeout`"
        raise _wrong(name, "hard_timeout", hard, expected)


def time_limit(job: Payload, key: str) -> float | None:
    """The limit under ``key`` (``timeout`` or ``hard_timeout``) in seconds, 0 for none. None if the
    job has none there, or another value than a number from 0 on."""
    value = job.get(key)
    return float(value) if value is not None and _is_seconds(value) else None


def _wrong(job: str, key: str, found: Any, expected: str) -> InvalidJob:
    return InvalidJob(f"job {job!r}: `{key}` is {shown(found)}; pass {expected}")


def first_foreign_value(
    value: Any, path: str = "args", left: int = DEEPEST, lists: tuple[type, ...] = (list,)
) -> str | None:
    """Why ``value`` would not be the same after JSON, or None if it would. It may have ``left``
    more levels. ``lists``: what becomes a list."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return None
    if kind is float:
        return None if math.isfinite(value) else f"{path} is {value}; JSON has no such number"
    if kind is dict:
        odd = next((key for key in value if type(key) is not str), None)
        if odd is not None:
            return f"{path} has the key {shown(odd)} ({type(odd).__name__}); pass a string as key"
    if kind is dict or kind in lists:
        pairs = value.items() if kind is dict else enumerate(value)
        return _first_foreign(((f"{path}[{at!r}]", item) for at, item in pairs), left, lists)
    return f"{path} is {a_type(kind)}, which JSON does not know; {what_to_pass(value)}"


def _first_foreign(items: Any, left: int, lists: tuple[type, ...]) -> str | None:
    if left == 0:
        return _TOO_DEEP
    for path, item in items:  # no generator around the call: it would double the depth of the stack
        if problem := first_foreign_value(item, path, left - 1, lists):
            return problem
    return None
