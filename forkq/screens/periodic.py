"""Periodic jobs as tables: when each runs next, how its last run ended; its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

import msgspec

from ..api.cron import Periodic
from ..api.cron_entries import Run
from ..units import format_duration, format_moment
from .table import (
    BROWSER,
    COMMAND,
    LIVE,
    Button,
    Cell,
    Column,
    Empty,
    Front,
    Moment,
    PageLink,
    Phrase,
    Sheet,
    Tone,
    note,
    tag,
)
from .texts import timestamp

NO_LEADER: Final = "No clock leads: no periodic job is enqueued. Start forkq."
_BAD: Final = frozenset({"dead", "retry", "missed"})
_NOT_TERMINAL: Final[frozenset[Front]] = COMMAND | BROWSER


class PeriodicLine(msgspec.Struct, frozen=True):
    """A periodic job and its next tick; None: there is none, or it is resting."""

    job: Periodic
    tick: int | None


def of_jobs(jobs: Iterable[Periodic]) -> list[PeriodicLine]:
    """The lines of these periodic jobs."""
    return [PeriodicLine(one, next_tick(one)) for one in jobs]


def next_tick(one: Periodic) -> int | None:
    """The next tick of a periodic job; None while it is resting."""
    return None if one.resting else next(iter(one.ticks(1)), None)


def resting_state(one: Periodic) -> str:
    """Why a periodic job does not run, in words."""
    if one.paused:
        return "paused"
    return "asleep" if one.entry.enabled else "disabled"


def short_timestamp(tick: int, one: Periodic) -> str:
    """The time of a tick, without its seconds where the expression has none."""
    shown = timestamp(tick, one.entry.schedule.tz)
    day, clock, zone = shown.split(" ", 2)
    return f"{day} {clock.removesuffix(':00')} {zone}"


def next_text(one: Periodic) -> tuple[str, str]:
    """The next tick in the entry's own zone, and as seen from now; or why there is none."""
    tick = next_tick(one)
    if tick is None:
        return resting_state(one) if one.resting else "never", ""
    return short_timestamp(tick, one), format_moment(tick)


def _name(line: PeriodicLine) -> Cell:
    job = line.job
    link = PageLink("/cron/job", {"name": job.name})
    return Phrase(job.name, link=link), note(job.entry.job["class"])


def _schedule(line: PeriodicLine) -> Cell:
    schedule = line.job.entry.schedule
    return Phrase(schedule.expression, kind="code"), note(schedule.tz)


def _next(line: PeriodicLine) -> Cell:
    if line.job.resting:
        why = ": its app does not run" if resting_state(line.job) == "asleep" else ""
        return (tag(f"{resting_state(line.job)}{why}", "warn"),)
    return (tag("never", "warn"),) if line.tick is None else (Moment(line.tick),)


def _last(line: PeriodicLine) -> Cell:
    """The latest event in the history of a periodic job, and how long ago that was."""
    run = line.job.latest
    if run is None:
        return ()
    tone: Tone = "bad" if run.event in _BAD else "good"
    return Phrase(run.event, tone), Moment(run.ended_at or run.at)


def _job(line: PeriodicLine) -> Cell:
    name: str = line.job.entry.job["class"]
    return () if name == line.job.name else (Phrase(name),)


def _facts(line: PeriodicLine) -> dict[str, Any]:
    """A periodic job as programs get it: without the arguments, which may be secrets."""
    periodic, entry = line.job, line.job.entry
    return {
        "name": entry.name,
        "cron": entry.schedule.expression,
        "tz": entry.schedule.tz,
        "job": entry.job["class"],
        "queue": entry.job.get("queue"),
        "overlap": entry.overlap,
        "missed": entry.missed,
        "jitter": entry.jitter,
        "enabled": entry.enabled,
        "paused": periodic.paused,
        "asleep": periodic.asleep,
        "origin": entry.origin,
        "last": None if periodic.latest is None else asdict(periodic.latest),
        "next": line.tick,
    }


def _buttons(line: PeriodicLine) -> tuple[Button, ...]:
    fields = {"name": line.job.name}
    pause = Button("/cron/pause", "Pause", "pause periodic job", fields)
    resume = Button("/cron/resume", "Resume", "resume periodic job", fields, "main")
    run = Button("/cron/run", "Run now", "run periodic job", fields)
    return run, resume if line.job.paused else pause


PERIODIC: Final[Sheet[PeriodicLine]] = Sheet(
    "Periodic jobs",
    (
        Column("name", "Name", _name, least=12, whole=True),
        Column("schedule", "Schedule", _schedule, least=9),
        Column(
            "tick", "Next", lambda line: (Phrase(next_text(line.job)[0]),), whole=True, on=COMMAND
        ),
        Column("away", "", lambda line: (Phrase(next_text(line.job)[1]),), on=COMMAND),
        Column("next", "Next", _next, on=LIVE),
        Column("last", "Last run", _last, least=16, brief="LAST"),
        Column("job", "Job", _job, on=COMMAND),
    ),
    lambda line: line.job.name,
    Empty(
        "No periodic jobs.",
        "Add @forkq.every to a job, or a [[cron]] table to {place}.",
        "no periodic job is known: an app publishes its own (@forkq.every, [[cron]]) at its start",
    ),
    facts=_facts,
    words=lambda line: (line.job.name,),
    order=lambda line: (math.inf if line.tick is None else line.tick, line.job.name),
    buttons=_buttons,
    command="forkq cron list",
)


class RunOfTick(msgspec.Struct, frozen=True):
    """What became of a tick of a periodic job, whose zone is ``tz``."""

    run: Run
    tz: str

    @property
    def at(self) -> float:
        """When the tick was due; for a run by hand, when it began."""
        return self.run.tick or self.run.at


def _outcome(line: RunOfTick) -> Cell:
    run = line.run
    what = {"enqueued": "enqueued, not ended"}.get(run.event, run.event)
    if run.event == "missed" and run.count is not None and run.count > 1:
        what = f"missed {run.count} ticks"
    elif run.event == "skipped":
        what = "skipped, the job before it has not ended" if run.why else "skipped, throttled"
    by_hand = ", by hand" if run.by_hand and run.event != "run by hand" else ""
    why = f": {run.why}" if run.event == "missed" and run.why else ""
    tone: Tone = "bad" if run.event in _BAD else ""
    return (Phrase(f"{what}{by_hand}{why}", tone),)


def _took(line: RunOfTick) -> Cell:
    elapsed = line.run.elapsed
    return () if elapsed is None else (Phrase(format_duration(elapsed)),)


RUNS: Final[Sheet[RunOfTick]] = Sheet(
    "Runs",
    (
        Column(
            "tick", "Tick", lambda line: (Phrase(timestamp(line.at, line.tz)),), whole=True,
            on=COMMAND,
        ),
        Column("away", "Tick", lambda line: (Moment(line.at),), on=_NOT_TERMINAL, brief=""),
        Column("what", "Outcome", _outcome, on=_NOT_TERMINAL, brief="WHAT"),
        Column("took", "Took", _took, on=_NOT_TERMINAL),
        Column(
            "jid", "Job", lambda line: (Phrase(line.run.jid, kind="id"),) if line.run.jid else (),
            whole=True, on=_NOT_TERMINAL, brief="JID",
        ),
    ),
    lambda line: f"{line.at} {line.run.jid}",
    Empty("It has not run yet.", "The outcomes of its ticks stand here."),
    facts=lambda line: asdict(line.run),
)  # fmt: skip
