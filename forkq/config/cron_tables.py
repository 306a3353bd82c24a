"""``[[cron]]``: the keys of a row of forkq.toml, and the periodic job that it declares.

Used by ``load`` only. A row names its job, which is not imported yet: the options of the job itself
are added when it is (every.entries_by_origin).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from ..cron.entry import LONGEST_JITTER, MOST_MISSED, Entry, Overlap, Schedule, check_name
from ..cron.zones import zone_of
from ..errors import ConfigError, InvalidSchedule, shown
from ..wire.options import QUEUE_NAME, is_queue
from .expand import leaves
from .schema import Key, Rows, described


def _valid(check: Callable[[str], object]) -> Callable[[str], str]:
    """``check`` as a function that returns the value that it checked, or raises ConfigError."""

    def checked(value: str) -> str:
        try:
            check(value)
        except InvalidSchedule as error:
            raise ConfigError(str(error)) from None
        return value

    return checked


def _queue(name: str) -> str:
    """``name`` itself. Raises ConfigError if forkq pushes to no queue of that name."""
    if not is_queue(name):
        raise ConfigError(f"{shown(name)} is not a queue: expected {QUEUE_NAME}")
    return name


def _json_values(args: list[Any]) -> list[Any]:
    """``args`` itself. Raises ConfigError: TOML has dates and infinite numbers, JSON does not."""
    for value in leaves(args):
        infinite = isinstance(value, float) and not math.isfinite(value)
        if infinite or isinstance(value, datetime.date | datetime.time):
            raise ConfigError(
                f"expected values that JSON has, found {described(value)}; write it in quotes, and "
                "let the job read the text"
            )
    return args


_Missed = Annotated[
    Literal["skip", "once"] | Annotated[int, Meta(ge=0, le=MOST_MISSED)],
    Meta(description=f'"skip", "once" or a whole number from 0 to {MOST_MISSED}'),
]

_ROW: Final[dict[str, object]] = {
    "name": Annotated[str, _valid(check_name), Key(
        "What `forkq cron` and the log call the periodic job.", default="the name of the job"
    )],
    "cron": Annotated[str, Meta(description="a cron expression"), _valid(Schedule.parse), Key(
        "When its ticks come: a cron expression of five or six fields, or a word such as `@daily`."
    )],
    "tz": Annotated[str, _valid(zone_of), Key(
        "The IANA time zone of the expression.", default="`cron_tz`"
    )],
    "job": Annotated[str, Meta(min_length=1, description="the name of a job"), Key(
        "The registered name of the job to push at each tick."
    )],
    "args": Annotated[list[Any], Meta(description="a list of arguments"), _json_values, Key(
        "The arguments of every run.", default="none"
    )],
    "queue": Annotated[str, Meta(description=QUEUE_NAME), _queue, Key(
        "The queue to push to.", default="the job's own queue"
    )],
    "overlap": Annotated[Overlap, Key(
        "Whether a tick pushes (`allow`) or not (`skip`) while the job of an earlier tick has not "
        "ended."
    )],
    "missed": Annotated[_Missed, Key(
        "How many missed ticks are enqueued late, newest first; `once` is one, `skip` none."
    )],
    "jitter": Annotated[float, Meta(ge=0, le=LONGEST_JITTER), Key(
        "By how many seconds a push may be delayed, spread evenly."
    )],
    "enabled": Annotated[bool, Key("Whether its ticks push anything.")],
}  # fmt: skip


def _name(row: Mapping[str, Any]) -> object:
    return row.get("name", row.get("job"))


# The time zone of all periodic jobs that name none.
Zone: TypeAlias = Annotated[str, _valid(zone_of)]
ROWS: Final = Rows(_ROW, required=("cron", "job"), name=_name)


def entry_of(row: Mapping[str, Any], tz: str) -> Entry:
    """The periodic job of a checked row; ``tz`` is the zone of one that names none."""
    job = {"class": row["job"], "args": row.get("args", [])}
    if "queue" in row:
        job["queue"] = row["queue"]
    rest = {key: value for key, value in row.items() if key not in ("job", "args", "queue")}
    return Entry.make(**{"name": row["job"], "tz": tz, **rest, "job": job})
