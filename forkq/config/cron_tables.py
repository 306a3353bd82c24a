"""``[[cron]]``: what a row of forkq.toml may say, and the periodic job that it means.

Used by ``config`` only. A row names its job, which is not loaded yet: what the job itself says of
its payloads is added when it is (periodic.entries_by_origin).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from ..cron.entry import LONGEST_JITTER, MOST_MISSED, Entry, Overlap, Schedule, check_name
from ..cron.zones import zone_of
from ..errors import ConfigError, InvalidSchedule
from .schema import Rows, described


def _told(check: Callable[[str], object]) -> Callable[[str], str]:
    """``check``, a value's own, as the schema wants it: returns the value, raises ConfigError."""

    def checked(value: str) -> str:
        try:
            check(value)
        except InvalidSchedule as error:
            raise ConfigError(str(error)) from None
        return value

    return checked


def _json_values(args: list[Any]) -> list[Any]:
    """``args`` itself. TOML has dates and endless numbers, which JSON has not."""
    odd = _first_odd(args)
    if odd is not None:
        raise ConfigError(
            f"expected values that JSON has, found {described(odd)}; write it in quotes, and let "
            "the job read the text"
        )
    return args


def _first_odd(value: object) -> object | None:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return next((odd for item in value if (odd := _first_odd(item)) is not None), None)
    endless = isinstance(value, float) and not math.isfinite(value)
    dated = isinstance(value, datetime.date | datetime.time)
    return value if endless or dated else None


_Missed = Annotated[
    Literal["skip", "once"] | Annotated[int, Meta(ge=0, le=MOST_MISSED)],
    Meta(description=f'"skip", "once" or a whole number from 0 to {MOST_MISSED}'),
]

_ROW: Final[dict[str, object]] = {
    "name": Annotated[str, _told(check_name)],
    "cron": Annotated[str, Meta(description="a cron expression"), _told(Schedule.parse)],
    "tz": Annotated[str, _told(zone_of)],
    "job": Annotated[str, Meta(min_length=1, description="the name of a job")],
    "args": Annotated[list[Any], Meta(description="a list of arguments"), _json_values],
    "queue": Annotated[str, Meta(min_length=1, description="the name of a queue")],
    "overlap": Overlap,
    "missed": _Missed,
    "jitter": Annotated[float, Meta(ge=0, le=LONGEST_JITTER)],
    "enabled": bool,
}


def _name(row: Mapping[str, Any]) -> object:
    return row.get("name", row.get("job"))


ROWS: Final = Rows(_ROW, required=("cron", "job"), name=_name)


def entry_of(row: Mapping[str, Any]) -> Entry:
    """The periodic job of a checked row."""
    job = {"class": row["job"], "args": row.get("args", [])}
    if "queue" in row:
        job["queue"] = row["queue"]
    rest = {key: value for key, value in row.items() if key not in ("job", "args", "queue")}
    return Entry.make(**{"name": row["job"], **rest, "job": job})
