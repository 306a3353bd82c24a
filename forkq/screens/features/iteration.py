"""How far an iterable job has come, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from ...api import JobEntry
from ...api.features.iteration import iteration_of
from ...errors import ForkqError
from ...units import format_count, format_duration, plural
from ...wire.payload import encode
from ...wire.printable import cut, printable

_LONGEST: Final = 100  # characters of a cursor


def iteration_facts(entry: JobEntry) -> dict[str, Any]:
    """How far the job had come when that was saved last; empty if it has no cursor."""
    try:
        found = iteration_of(entry)
    except ForkqError as error:
        return {"iteration": {"problem": str(error)}}
    if found is None:
        return {}
    return {"iteration": {**dataclasses.asdict(found), "seconds_left": found.seconds_left}}


def iteration_text(found: Mapping[str, Any]) -> str:
    """What ``iteration_facts`` has found, such as "goes on at 1200, 1,200 items done, 40 % of the
    work, 2 runs of 3.5 s, about 5.2 s left"."""
    if "problem" in found:
        return printable(found["problem"])
    parts = [
        f"goes on at {_cursor(found['cursor'])}",
        f"{plural(found['items'], 'item')} done",
        _share(found["done"], found["total"]),
        f"{plural(found['runs'], 'run')} of {format_duration(found['seconds'])}",
        left_text(found["seconds_left"]),
        "is cancelled" if found["cancelled"] else "",
    ]
    return ", ".join(filter(None, parts))


def _cursor(cursor: Any) -> str:
    text = printable(cut(encode(cursor).decode(), _LONGEST))
    return "its beginning" if cursor is None else text


def _share(done: float | None, total: float | None) -> str:
    return f"{100 * done / total:.0f} % of {format_count(total)}" if total and done else ""


def left_text(seconds: float | None) -> str:
    """For how long a job has to run yet, in words; "" if that is not known."""
    return "" if seconds is None else f"about {format_duration(seconds)} left"
