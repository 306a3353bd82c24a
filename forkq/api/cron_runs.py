"""What became of a periodic job's ticks: its lines in Redis, those of one job put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from ..cron.history import Event
from ..wire.times import seconds

_BEGINNINGS: Final = ("enqueued", "run by hand")


@dataclass(frozen=True, slots=True)
class Run:
    """One tick and its job. ``event`` is the last that is known of it (cron/history.py): a job of
    which no more than "enqueued" is known waits or runs.

    ``at``: epoch seconds of the first that is known of it. ``tick``: the whole epoch second that it
    was for, None if it was run by hand. ``ended_at`` and ``elapsed``: of its last run, when that
    has ended. ``count``: how many ticks were missed together. ``why``: what kept a tick from being
    enqueued, or the jid that stood in its way.
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
    """The runs that ``lines``, newest first, tell of; newest first. A line that nobody can read is
    left out; a job whose beginning has been trimmed away has what is left."""
    runs: dict[object, Run] = {}
    for number, raw in enumerate(reversed(list(lines))):
        line = _read(raw)
        if line is None:
            continue
        key = line.jid or number
        runs[key] = _ended(runs[key], line) if key in runs else _begun(line)
    return list(reversed(runs.values()))


def _read(raw: bytes) -> _Line | None:
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (ValueError, RecursionError):
        return None
    line.at = seconds(line.at)
    return line


def _begun(line: _Line) -> Run:
    run = Run(
        event=line.event,
        at=line.at,
        tick=line.tick,
        jid=line.jid,
        by_hand=line.event == "run by hand",
        count=line.count,
        why=line.why or line.running,
    )
    return run if not line.jid or line.event in _BEGINNINGS else _ended(run, line)


def _ended(run: Run, line: _Line) -> Run:
    """A run of which one thing more is known. A job that is so quick that its end is told before
    its beginning keeps its end."""
    if line.event in _BEGINNINGS:
        by_hand = line.event == "run by hand"
        return replace(run, at=line.at, tick=line.tick, by_hand=by_hand)
    return replace(run, event=line.event, ended_at=line.at, elapsed=line.elapsed)
