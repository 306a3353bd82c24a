"""The rules of queues in forkq.toml: the keys of ``[limits]``, ``[process_limits]``, ``[rates]``,
``[blocking]`` and ``[fair]``, and the Rulebook that ``load`` makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from ..errors import ConfigError, nearest
from ..limits.patterns import is_pattern
from ..limits.rate_text import EXPECTED, parse_rate
from ..limits.rules import HIGHEST_LIMIT, Rate, Rulebook, Rules
from ..values import replace
from .capsule import BRACKETS, Capsule, check_queue
from .schema import Each, Either, Key, shown_path
from .settings import Origin

_WILDCARDS: Final = re.compile(r"[*?]")


def check_pattern(name: str) -> None:
    """Raises ConfigError unless ``name`` is a pattern."""
    check_queue(name)
    if not is_pattern(name):
        raise ConfigError(
            f'"{name}" is one queue, and only queues of a pattern take turns: write a pattern that '
            'a capsule has in queues, such as "tenant-*"'
        )


def _names(blocking: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
    """Returns ``blocking`` as it is. Raises ConfigError if it has names that no queue can have."""
    if blocking == ():
        raise ConfigError("names no queue that waits: write false, or leave it out")
    for name in blocking if isinstance(blocking, tuple) else ():
        check_queue(name)
    return blocking


_Limit = Annotated[int, Meta(ge=0, le=HIGHEST_LIMIT)]
_RateText = Annotated[
    str, Meta(description=f'{EXPECTED}, or a table {{ rate = "...", burst = ... }}'), parse_rate
]
_Blocking = Annotated[
    bool | tuple[str, ...],
    Meta(description="true, false or a list of the names of later queues"),
    _names,
]

# The tables of the file, and the field of Rules that each one sets.
TABLES: Final[dict[str, object]] = {
    "limits": Each(Annotated[_Limit, Key(
        "The most jobs of the queue that are in progress on all hosts.", default="none"
    )], check_queue),
    "process_limits": Each(Annotated[_Limit, Key(
        "The most jobs of the queue that are in progress in one child.", default="none"
    )], check_queue),
    "rates": Each(
        Either(
            Annotated[_RateText, Key(
                "How many jobs of the queue may start in a time.", default="none"
            )],
            {
                "rate": Annotated[_RateText, Key(
                    "The same, where the rate is a table.", default="required"
                )],
                "burst": Annotated[int, Meta(ge=1, le=HIGHEST_LIMIT), Key(
                    "How many jobs may start at once when none has started for a while.",
                    default="one job, and what the rate gives in a tenth of a second",
                )],
            },
        ),
        check_queue,
    ),
    "blocking": Each(Annotated[_Blocking, Key(
        "Which later queues of the capsule wait while this queue has jobs in progress: `true` for "
        "all of them.",
        default="`false`",
    )], check_queue),
    "fair": Each(Annotated[bool, Key(
        "Whether the queues of a pattern take turns, job by job, instead of coming in alphabetical "
        "order.",
        default="`false`",
    )], check_pattern),
}  # fmt: skip
FIELDS: Final = {
    "limits": "limit",
    "process_limits": "process_limit",
    "rates": "rate",
    "blocking": "blocking",
    "fair": "fair",
}


def rulebook(values: Mapping[str, Any], source: Path | None) -> Rulebook:
    """The rules of all checked tables, as one Rulebook. Raises ConfigError.

    A pattern with more letters of its own comes before one with fewer. Their order in the file does
    not count: tables have no order, and those of an environment would always come last.
    """
    rules: dict[str, dict[str, Any]] = {}
    for table, field in FIELDS.items():
        for name, value in values.get(table, {}).items():
            rule = _rate(name, value, source) if table == "rates" else value
            rules.setdefault(name, {})[field] = rule
    ordered = sorted(rules, key=lambda name: (-_letters(name), name))
    return Rulebook({name: Rules(**rules[name]) for name in ordered})


def _rate(name: str, value: Rate | dict[str, Any], source: Path | None) -> Rate:
    if isinstance(value, Rate):
        return value
    if "rate" not in value:
        where = shown_path(("rates", name, "rate"))
        raise ConfigError(f"{source}: {where}: missing, expected {EXPECTED}")
    rate: Rate = value["rate"]
    return replace(rate, burst=value.get("burst"))


def _letters(name: str) -> int:
    return len(_WILDCARDS.sub("", BRACKETS.sub("", name)))


def check_blocking(
    book: Rulebook, capsules: Sequence[Capsule], given: Mapping[str, Origin]
) -> None:
    """Raises ConfigError if a blocking queue names one that does not come after it."""
    for name, rules in book.entries.items():
        for later in _named(rules):
            capsule = next((one for one in capsules if not _in_order(one, name, later)), None)
            if capsule is not None:
                raise ConfigError(
                    f'{given[shown_path(("blocking", name))]}: "{later}" does not stand after '
                    f'"{name}" in the capsule {capsule.name}, and only later queues can be made '
                    "to wait: change the order of its queues, or leave it out here"
                )


def _in_order(capsule: Capsule, name: str, later: str) -> bool:
    """Whether the capsule has ``later`` after ``name``, or does not have both."""
    first, second = _position(capsule, name), _position(capsule, later)
    return first is None or second is None or first < second


def _named(rules: Rules) -> list[str]:
    """The queues that a blocking queue names. A pattern is left out: of its queues only later ones
    wait."""
    blocking = rules.blocking if isinstance(rules.blocking, tuple) else ()
    return [name for name in blocking if not is_pattern(name)]


def _position(capsule: Capsule, name: str) -> int | None:
    """The position of a queue or pattern in a capsule: of its own name, or of a pattern for it."""
    names = capsule.queue_names
    if name in names:
        return names.index(name)
    return next((at for at, listed in enumerate(names) if _match(listed, name)), None)


def _match(listed: str, name: str) -> bool:
    """Whether a queue can match both what a capsule lists and the name of a rule."""
    return (
        listed == name
        or (is_pattern(listed) and fnmatchcase(name, listed))
        or (is_pattern(name) and fnmatchcase(listed, name))
    )


def warnings(book: Rulebook, capsules: Sequence[Capsule]) -> list[str]:
    """A warning for each rule that changes nothing in these capsules: most likely its name is
    misspelt."""
    return [
        f"{shown_path((table, name))}: {problem}"
        for table, rule in FIELDS.items()
        for name, rules in book.entries.items()
        if getattr(rules, rule) is not None
        for problem in _problems(table, name, rules, capsules)
    ]


def _problems(table: str, name: str, rules: Rules, capsules: Sequence[Capsule]) -> Iterator[str]:
    listed = [queue for capsule in capsules for queue in capsule.queue_names]
    if not any(_match(queue, name) for queue in listed):
        yield f'no capsule works on "{name}"{_hint(name, listed)}'
    elif table == "fair" and not any(_takes_turns(queue, name) for queue in listed):
        yield f'"{name}" is not how any capsule writes its pattern{_hint(name, listed)}'
    elif table == "blocking" and isinstance(rules.blocking, tuple):
        for later in rules.blocking:
            if not any(_serves_both(capsule, name, later) for capsule in capsules):
                yield f'no capsule works on both "{name}" and "{later}"{_hint(later, listed)}'


def _takes_turns(listed: str, name: str) -> bool:
    return is_pattern(listed) and (listed == name or fnmatchcase(listed, name))


def _serves_both(capsule: Capsule, name: str, later: str) -> bool:
    return _position(capsule, name) is not None and _position(capsule, later) is not None


def _hint(name: str, listed: list[str]) -> str:
    others = [queue for queue in listed if queue != name]
    near = nearest(name, others)
    return f'; the nearest queue is "{near}"' if near else f"; there are: {', '.join(others)}"
