"""What each class did lately: how often, how long, what failed, and what a deploy changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ... import api
from ...screens.classes import ClassLine, in_the_last
from ...units import format_duration
from ...values import replace
from ..paging import paging
from ..plots.axes import TimeAxis
from ..plots.over_time import PlotLine, TimeSlot, bars, lines
from ..plots.run_times import heat_map, histogram
from ..routing import NavItem, page
from ..visit import View, Visit

ORDER: Final = 65
NAV: Final = NavItem("Metrics", "/job-metrics", "m")
PATH: Final = NAV.path

# Minutes that can be looked at, and how many intervals of the report are one bar.
_RANGES: Final = {60: 1, 480: 5, 4320: 6}
_NAMES: Final = {60: "hour", 480: "8 hours", 4320: "3 days"}
_HOUR: Final = 60
_KEPT: Final = 480  # minutes for which Redis has run times
_PER_PAGE: Final = 10
_PERCENTILES: Final = ("p50", "p95", "p99")


def metrics(visit: Visit) -> View:
    minutes = visit.number("minutes", _HOUR, _KEPT * 9)
    minutes = minutes if minutes in _RANGES else _HOUR
    report = api.Metrics(visit.server).over(minutes)
    shared = {
        "minutes": minutes, "ranges": _NAMES, "deploys": report.deploys[::-1][:5],
    }  # fmt: skip
    job = visit.query("job")
    values = _one(visit, job, report, minutes) if job else _all(visit, report, minutes)
    return View("job_class.html" if job else "job_metrics.html", {**shared, **values})


def _all(visit: Visit, report: api.MetricsReport, minutes: int) -> dict[str, object]:
    listed = paging(visit, len(report.classes), _PER_PAGE)
    shown = report.classes[listed.start : listed.stop]
    times = api.Metrics(visit.server).histograms([one.job for one in shown], _HOUR)
    deploy = report.deploys[-1] if report.deploys else None
    lines = [
        ClassLine(one, times[one.job].percentiles(), _trend(one, minutes), deploy, minutes)
        for one in shown
    ]
    table = in_the_last(_NAMES[minutes]).table("web", lines)
    total = report.total
    runs = _runs(total, report, minutes)
    return {"table": table, "paging": listed, "total": total, "runs": runs}


def _trend(one: api.ClassMetrics, minutes: int) -> list[int]:
    return [slot.good + slot.failed for slot in _slots(one, minutes)]


def _one(visit: Visit, job: str, report: api.MetricsReport, minutes: int) -> dict[str, object]:
    nothing = tuple(
        replace(point, processed=0, failed=0, seconds=0) for point in report.total.points
    )
    found = (one for one in report.classes if one.job == job)
    one = next(found, api.ClassMetrics(job, nothing))
    times = api.Metrics(visit.server).histogram(job, min(minutes, _KEPT))
    return {
        "one": one,
        "times": times,
        "runs": _runs(one, report, minutes),
        **_plots(times, report),
    }


def _runs(one: api.ClassMetrics, report: api.MetricsReport, minutes: int) -> str:
    summary = f"{one.processed:,} runs, {one.failed:,} of them failed"
    axis = TimeAxis(report.begins, report.ends)
    return bars(_slots(one, minutes), axis, summary=summary, deploys=report.deploys)


def _slots(one: api.ClassMetrics, minutes: int) -> list[TimeSlot]:
    size = _RANGES[minutes]
    parts = [one.points[at : at + size] for at in range(0, len(one.points), size)]
    return [_slot(part) for part in parts]


def _slot(points: Sequence[api.Point]) -> TimeSlot:
    failed = sum(point.failed for point in points)
    return TimeSlot(max(0, sum(point.processed for point in points) - failed), failed)


def _plots(times: api.Histogram, report: api.MetricsReport) -> dict[str, object]:
    """The charts of the run times: together, by percentile, and as a heat map."""
    if not times.count:
        return {}
    parts, axis = list(_parts(times)), TimeAxis(times.begins, times.ends)
    known = [part.percentiles() for part in parts]
    series = [PlotLine(name, [at[n] for at in known]) for n, name in enumerate(_PERCENTILES)]
    told = ", ".join(
        f"{name} {format_duration(value)}"
        for name, value in zip(_PERCENTILES, times.percentiles(), strict=True)
        if value is not None
    )
    columns, deploys = [part.buckets for part in parts], report.deploys
    return {
        "spread": histogram(times.buckets, times.bounds, summary=f"run times: {told}"),
        "lines": lines(
            series, axis, summary=f"{told} over time", label=format_duration, deploys=deploys
        ),
        "heat": heat_map(columns, times.bounds, axis, summary=told, deploys=deploys),
    }


def _parts(times: api.Histogram) -> Iterator[api.Histogram]:
    """The runs in ``times``, by parts of a minute, or of five."""
    size = _RANGES[len(times.columns)]
    for at in range(0, len(times.columns), size):
        yield replace(times, columns=times.columns[at : at + size])


ROUTES: Final = [page(PATH, metrics)]
