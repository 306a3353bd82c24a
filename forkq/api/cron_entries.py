"""Periodic jobs as Redis has them: their definitions, whether and when each of them ticks, and the
outcomes of its ticks, merged to one run for each job."""

from __future__ import annotations

import difflib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ..cron.entry import Entry
from ..cron.history import Event
from ..errors import ForkqError, InvalidSchedule, MalformedPayload
from ..servers import Server
from ..store.process_info import running_services
from ..values import replace
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


_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic job as Redis has it.

    ``entry`` is its definition. ``last`` is its last tick that was enqueued, skipped or noted as
    missed (whole epoch seconds; None before the first). It is ``paused`` by hand, or ``asleep``
    while no tree runs the app that defines it. ``latest`` is its latest run, if one is known.
    """

    entry: Entry
    paused: bool
    last: int | None
    asleep: bool = False
    latest: Run | None = None

    @property
    def name(self) -> str:
        """The name of the periodic job, which is unique in the cluster."""
        return self.entry.name

    @property
    def resting(self) -> bool:
        """Whether none of its ticks is enqueued: it is paused, asleep, or defined with ``enabled =
        False``."""
        return self.paused or self.asleep or not self.entry.enabled

    def ticks(self, count: int) -> list[int]:
        """The next ``count`` ticks by the schedule, in epoch seconds, also while it is resting."""
        return self.entry.schedule.ticks(time.time(), float("inf"), count)


def load_all(server: Server) -> list[Periodic]:
    """Every periodic job whose definition this forkq can read, by name."""
    found = (_periodic(*definition) for definition in _definitions(server))
    return _with_state(server, [one for one in found if one is not None])


def load(server: Server, name: str) -> Periodic:
    """The periodic job of that name. Raises ForkqError if there is none, InvalidSchedule if this
    forkq cannot read its definition."""
    found = {defined: (raw, paused, last) for defined, raw, paused, last in _definitions(server)}
    if name not in found:
        raise unknown(name, list(found))
    raw, paused, last = found[name]
    [one] = _with_state(server, [Periodic(Entry.decode(raw), paused, last)])
    return one


def running_among(server: Server, services: Collection[str]) -> frozenset[str]:
    """The services among ``services`` that run."""
    if not services:
        return frozenset()
    with server.connection() as connection:
        return running_services(connection, server.keys, services)


def unknown(name: str, names: list[str]) -> ForkqError:
    """The error for a name that no periodic job has; it tells the nearest of ``names``."""
    near = difflib.get_close_matches(name, names, len(names) or 1)
    if near:
        verb = "nearest is" if len(near) == 1 else "nearest are"
        return ForkqError(f"there is no periodic job {name!r}; the {verb} {_listed(near)}")
    known = f"there are: {_listed(names)}" if names else "there are none at all"
    return ForkqError(f"there is no periodic job {name!r}; {known}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return f"{shown} and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else shown


def _definitions(server: Server) -> list[tuple[str, bytes, bool, int | None]]:
    """Name, definition, whether paused, and last tick of every periodic job, by name."""
    keys = server.keys
    definitions, paused, lasts = server.ask(
        ("HGETALL", keys.cron), ("SMEMBERS", keys.cron_paused), ("HGETALL", keys.cron_last)
    )
    return [
        (name.decode("utf-8", "replace"), raw, name in paused, _whole(lasts.get(name)))
        for name, raw in sorted(definitions.items())
    ]


def _periodic(name: str, raw: bytes, paused: bool, last: int | None) -> Periodic | None:
    try:
        return Periodic(Entry.decode(raw), paused, last)
    except InvalidSchedule:
        return None


def _with_state(server: Server, found: list[Periodic]) -> list[Periodic]:
    """The periodic jobs, with whether their app runs and with their latest run."""
    services = {one.entry.service for one in found if one.entry.service is not None}
    asleep = services - running_among(server, services)
    asked = (("LINDEX", server.keys.cron_runs(one.name), 0) for one in found)
    lines = server.ask_leniently(*asked)
    return [
        replace(one, asleep=one.entry.service in asleep, latest=_run(raw))
        for one, raw in zip(found, lines, strict=True)
    ]


def _run(raw: bytes | None) -> Run | None:
    return next(iter(merged([raw] if raw else [])), None)


def _whole(stored: bytes | None) -> int | None:
    return int(stored) if stored is not None and stored.isdigit() else None
