"""The first page: is anything wrong, and how many jobs are done and fail."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from ... import api
from ...screens.facts import Facts
from ...screens.texts import plural
from ..charts import Bar, Mark
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 10
NAV: Final = NavItem("Dashboard", "/", "h")

_RANGES: Final = (7, 30, 90)  # days of the history
_MOST_QUEUES: Final = 8


def dashboard(visit: Visit) -> View:
    facts = visit.observer.facts()
    report = facts.slow.hour
    points = report.total.points
    days = visit.number("days", 30, 365) or 30
    return View(
        "dashboard.html",
        {
            "facts": facts,
            "stats": facts.stats,
            "last": points[-2:-1] or points[-1:],  # the last whole minute
            "points": points,
            "minutes": _minutes(points),
            "marks": [_mark(report, deploy) for deploy in report.deploys],
            "deploys": report.deploys[::-1][:3],
            "queues": _waiting(facts),
            "days": days,
            "ranges": _RANGES,
            "history": _days(api.history(days)),
        },
    )


def _waiting(facts: Facts) -> list[api.QueueFigures]:
    """The queues with jobs, that with the longest wait first."""
    waiting = [queue for queue in facts.stats.queues if queue.size]
    return sorted(waiting, key=lambda queue: -queue.latency)[:_MOST_QUEUES]


def _minutes(points: Sequence[api.Point]) -> list[Bar]:
    return [_bar(point.processed, point.failed, _clock(point.at)) for point in points]


def _days(days: Sequence[api.Day]) -> list[Bar]:
    """The oldest first."""
    return [_bar(day.processed, day.failed, day.date.isoformat()) for day in reversed(days)]


def _bar(processed: int, failed: int, when: str) -> Bar:
    title = f"{when}: {plural(processed, 'job')}, {failed:,} failed"
    return Bar(max(0, processed - failed), failed, title)


def _mark(report: api.MetricsReport, deploy: api.Deploy) -> Mark:
    return Mark((deploy.at - report.begins) / report.step, f"{_clock(deploy.at)} {deploy.label}")


def _clock(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%H:%M UTC")


ROUTES: Final = [page("/", dashboard)]
