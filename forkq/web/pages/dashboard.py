"""The first page: is anything wrong, and how many jobs are done and fail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timezone
from typing import Final

from markupsafe import Markup

from ... import api
from ...screens import queues as screen
from ...units import plural
from ..plots.axes import TimeAxis
from ..plots.day_strip import DAY
from ..plots.over_time import TimeSlot, bars
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 10
NAV: Final = NavItem("Dashboard", "/", "h")

_RANGES: Final = (7, 30, 90)  # days of the history
_MOST_QUEUES: Final = 8
_MOST_PROBLEMS: Final = 50
_LOW: Final = 100  # pixels


def dashboard(visit: Visit) -> View:
    facts = visit.observer.facts()
    report = facts.slow.hour
    points = report.total.points
    days = visit.number("days", 30, 365) or 30
    waiting = screen.waiting(facts)
    return View(
        "dashboard.html",
        {
            "facts": facts,
            "problems": visit.problems(_MOST_PROBLEMS),
            "stats": facts.stats,
            "points": points,
            "hour": _hour(report),
            "deploys": report.deploys[::-1][:3],
            "waiting": screen.WAITING.table(
                "web", waiting[:_MOST_QUEUES], max(0, len(waiting) - _MOST_QUEUES)
            ),
            "behind_most": max((one.latency for one in waiting), default=0.0),
            "days": days,
            "ranges": _RANGES,
            "history": _history(api.history(days, visit.server)),
        },
    )


def _hour(report: api.MetricsReport) -> Markup:
    total = report.total
    summary = f"The last hour: {plural(total.processed, 'job')}, {total.failed:,} failed"
    slots = [TimeSlot(max(0, at.processed - at.failed), at.failed) for at in total.points]
    axis = TimeAxis(report.begins, report.ends)
    return bars(slots, axis, summary=summary, deploys=report.deploys)


def _history(days: Sequence[api.Day]) -> Markup:
    """The chart of the counts of ``days``, which begin with the latest."""
    slots = [TimeSlot(max(0, day.processed - day.failed), day.failed) for day in reversed(days)]
    begin = datetime.combine(days[-1].date, time(), timezone.utc).timestamp()
    axis = TimeAxis(begin, begin + len(days) * DAY)
    return bars(slots, axis, summary=f"Jobs a day in the last {len(days)} days", height=_LOW)


ROUTES: Final = [page("/", dashboard)]
