"""The options of a job: which there are, their values, defaults and places in a payload.

``JobOptions`` is the table: a new option is one more field there, with its row. Each definition
and each push is checked against it, type checkers know the options by it, and the documents show
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, TypedDict, get_type_hints

import msgspec

from ..errors import InvalidJob, InvalidRule, shown
from .times import LONGEST_SECONDS, Backoff, in_seconds, is_backoff, stored_backoff

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
is_queue_name = re.compile(f"[{QUEUE_CHARACTERS}]+").fullmatch


def refusal(job: str, key: str, found: Any, expected: str) -> InvalidJob:
    """The error for the value ``found`` of a key that the job cannot have."""
    return InvalidJob(f"job {job!r}: `{key}` is {shown(found)}; pass {expected}")


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
        return refusal(job, name, value, self.values.expected)


def is_seconds(value: Any) -> bool:
    """Whether ``value`` is a number of seconds that an option can have."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_SECONDS


def _is_flag_or_count(value: object) -> bool:
    return type(value) is bool or (type(value) is int and value >= 0)


def is_queue(value: object) -> bool:
    """Whether ``value`` is a name that a capsule can list: forkq pushes to no other queue."""
    return type(value) is str and is_queue_name(value) is not None


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
        lambda value: is_seconds(in_seconds(value)),
        f"a number of seconds {bounds}, or a timedelta",
        lambda value: float(in_seconds(value)),
    )


_TEXT: Final = Values(lambda value: type(value) is str and value != "", "a non-empty string")
_QUEUE: Final = Values(is_queue, QUEUE_NAME)
_FLAG: Final = Values(lambda value: type(value) is bool, "True or False")
_FLAG_OR_COUNT: Final = Values(_is_flag_or_count, "True, False or a whole number from 0 on")
_SECONDS: Final = Values(is_seconds, "a number of seconds up to 1e9")
_LIMIT: Final = Values(
    lambda value: value is None or is_seconds(value),
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
