"""The outcomes of a periodic job's ticks: its lines in Redis, merged to one run for each job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ..cron.history import Event
from ..errors import MalformedPayload
from ..wire.payload import bounded
from ..wire.times import seconds

_BEGINNINGS: Final = ("enqueued", "run by hand")


@dataclass(frozen=True, slots=True)
class Run:
    """One tick and its job. ``event`` is the last event that is known of it: a job whose event is
    "enqueued" is queued or runs.

    ``at``: epoch seconds of its first event. ``tick``: the whole epoch second of the tick; None if
    the job was run by hand. ``ended_at`` (epoch seconds) and ``elapsed`` (seconds): the end and the
    duration of its last run, if one has ended. ``count``: how many ticks were missed together; None
    if they were too many to count. ``why``: what kept a tick from being enqueued; for a skipped
    tick, the jid of the job that still ran.
    """

    event: Event
    at: float
    tick: int | None = None
    jid: str = ""
    by_hand: bool = False
    ended_at: float | None = None
    elapsed: float | None = None
    count: int | None = None
    why: str = ""


class _Line(msgspec.Struct):
    event: Event
    at: float
    tick: int | None = None
    jid: str = ""
    elapsed: float | None = None
    count: int | None = None
    running: str = ""
    why: str = ""


def merged(lines: Iterable[bytes]) -> list[Run]:
    """The runs in ``lines``; both newest first. A line that cannot be read is left out. Of a job
    whose first line has been trimmed, the run has what the other lines say."""
    runs: dict[object, Run] = {}
    for number, raw in enumerate(reversed(list(lines))):
        line = _read(raw)
        if line is None:
            continue
        key = line.jid or number
        runs[key] = _updated(runs[key], line) if key in runs else _new(line)
    return list(reversed(runs.values()))


def _read(raw: bytes) -> _Line | None:
    try:
        line = msgspec.json.decode(bounded(raw), type=_Line)
    except (ValueError, RecursionError, MalformedPayload):
        return None
    line.at = seconds(line.at)
    return line


def _new(line: _Line) -> Run:
    run = Run(
        event=line.event,
        at=line.at,
        tick=line.tick,
        jid=line.jid,
        by_hand=line.event == "run by hand",
        count=line.count,
        why=line.why or line.running,
    )
    return run if not line.jid or line.event in _BEGINNINGS else _updated(run, line)


def _updated(run: Run, line: _Line) -> Run:
    """The run with what ``line`` adds. The line of a quick job's end may come before the line of
    its beginning; then the run keeps its end."""
    if line.event in _BEGINNINGS:
        by_hand = line.event == "run by hand"
        return replace(run, at=line.at, tick=line.tick, by_hand=by_hand)
    return replace(run, event=line.event, ended_at=line.at, elapsed=line.elapsed)
