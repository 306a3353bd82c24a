"""Periodic jobs: the next 24 hours, the last runs, run now and pause."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...api import Server, cron
from ...screens import cron_acts
from ...screens.periodic import NO_LEADER, PERIODIC, RUNS, RunOfTick, of_jobs
from ...screens.plans import Plan
from ..plots.day_strip import DAY, MOST_TICKS, Ticks, day_strip
from ..routing import NavItem, action, page
from ..visit import View, Visit

ORDER: Final = 70
NAV: Final = NavItem("Periodic", "/cron", "p")
_MOST: Final = 100  # rows of a page, and lines of its strip


def periodic(visit: Visit) -> View:
    jobs, now = cron.list(visit.server), time.time()
    shown = jobs[:_MOST]
    strip = [Ticks(one.name, _ticks(one, now), one.resting) for one in shown]
    values = {
        "table": PERIODIC.table("web", of_jobs(shown), len(jobs) - len(shown)),
        "no_leader": "" if cron.has_leader(visit.server) else NO_LEADER,
    }
    return View("cron.html", {**values, "strip": day_strip(strip, now)})


def _ticks(one: cron.Periodic, now: float) -> tuple[int, ...]:
    return tuple(one.entry.schedule.ticks(now, now + DAY, MOST_TICKS + 1))


def history(visit: Visit) -> View:
    one = cron.get(visit.query("name"), visit.server)
    runs = [
        RunOfTick(run, one.entry.schedule.tz) for run in cron.history(one.name, 100, visit.server)
    ]
    values = {"job": one, "table": RUNS.table("web", runs), "next": one.ticks(5)}
    return View("periodic.html", values)


def _of_job(act: Callable[[Server, str], Plan]) -> Callable[[Visit], Plan]:
    """Makes an action on the periodic job that the form names."""
    return lambda visit: act(visit.server, visit.form.get("name"))


ROUTES: Final = [
    page("/cron", periodic),
    page("/cron/job", history),
    action("/cron/run", "run periodic job", _of_job(cron_acts.run)),
    action("/cron/pause", "pause periodic job", _of_job(cron_acts.pause)),
    action("/cron/resume", "resume periodic job", _of_job(cron_acts.resume)),
]
