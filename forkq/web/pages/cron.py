"""Periodic jobs: the next 24 hours, the last runs, run now and pause."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ...api import cron
from ..plots.day_strip import DAY, MOST_TICKS, Ticks, day_strip
from ..routing import Done, NavItem, Plan, action, page
from ..texts import name as shown
from ..visit import View, Visit

ORDER: Final = 70
NAV: Final = NavItem("Periodic", "/cron", "p")
_MOST: Final = 100  # rows of a page, and lines of its strip


@dataclass(frozen=True, slots=True)
class Row:
    """A periodic job and its ticks of the next 24 hours."""

    job: cron.Periodic
    ticks: tuple[int, ...]


def periodic(visit: Visit) -> View:
    jobs, now = cron.list(), time.time()
    rows = [_row(one, now) for one in jobs[:_MOST]]
    strip = [Ticks(row.job.name, row.ticks, row.job.resting) for row in rows]
    values = {"rows": rows, "total": len(jobs), "leader": cron.has_leader()}
    return View("cron.html", {**values, "strip": day_strip(strip, now)})


def _row(one: cron.Periodic, now: float) -> Row:
    return Row(one, tuple(one.entry.schedule.ticks(now, now + DAY, MOST_TICKS + 1)))


def history(visit: Visit) -> View:
    one = cron.get(visit.query("name"))
    values = {"job": one, "runs": cron.history(one.name, 100), "next": one.ticks(5)}
    return View("periodic.html", values)


def run(visit: Visit) -> Plan:
    one = cron.get(visit.form.get("name"))

    def do() -> Done:
        jid = cron.run(one.name)
        return Done(f"Pushed a job of {shown(one.name)}.", [jid] if jid else [], count=1)

    return Plan(f"Run {shown(one.name)} now? 1 job is pushed.", do, "Run it now", "/cron")


def pause(visit: Visit) -> Plan:
    one = cron.get(visit.form.get("name"))

    def do() -> Done:
        cron.pause(one.name)
        undo = ("/cron/resume", {"name": one.name})
        return Done(f"Paused {shown(one.name)}: none of its ticks is enqueued.", undo=undo)

    return Plan(f"Pause {shown(one.name)}?", do, back="/cron", ask=False)


def resume(visit: Visit) -> Plan:
    one = cron.get(visit.form.get("name"))

    def do() -> Done:
        cron.resume(one.name)
        return Done(f"Resumed {shown(one.name)}.")

    return Plan(f"Resume {shown(one.name)}?", do, back="/cron", ask=False)


ROUTES: Final = [
    page("/cron", periodic),
    page("/cron/job", history),
    action("/cron/run", "run periodic job", run),
    action("/cron/pause", "pause periodic job", pause),
    action("/cron/resume", "resume periodic job", resume),
]
