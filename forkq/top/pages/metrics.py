"""What each class did in the last hour, before and after the latest deploy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

from rich.text import Text

from ... import api
from ...screens.texts import name
from ...units import format_count, format_duration, format_moment, format_share
from ..cells import BAD, GOOD, QUIET, STRONG, cell, spark, words
from ..content import Column, Content, Look, Page, Row

T = TypeVar("T")

_HOUR: Final = 60
_MOST: Final = 50
_NARROW_SPARK, _WIDE_SPARK = 10, 30
_COLUMNS: Final = (
    Column("JOB", least=10), Column("RUNS", "right"), Column("FAILED", "right"),
    Column("P50", "right"), Column("P95", "right"), Column("P99", "right"),
    Column("LAST HOUR"), Column("SINCE DEPLOY", "right"),
)  # fmt: skip
_P99: Final = 5
_SAME, _SLOWER, _FAILING = 0.02, 0.2, 0.01  # shares: no change, and one that a person should see


class Metrics(Page):
    """The class with the most time spent first."""

    title: ClassVar[str] = "Metrics"
    number: ClassVar[str] = "5"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "m"
    path: ClassVar[str] = "/job-metrics"
    question: ClassVar[str] = "Did the deploy change anything?"

    def content(self, look: Look) -> Content:
        report = look.observer.facts().slow.hour
        classes = [one for one in report.classes if look.wants(one.job)][:_MOST]
        times = api.Metrics(look.server).histograms([one.job for one in classes], _HOUR)
        deploy = report.deploys[-1] if report.deploys else None
        rows = [_row(one, times[one.job], deploy, look.is_wide) for one in classes]
        columns = _fitting(_COLUMNS, look.is_wide)
        empty = "No job has run in the last hour."
        return Content(_head(deploy), columns, rows, foot=_foot(look, deploy), empty=empty)


def _head(deploy: api.Deploy | None) -> list[Text]:
    if deploy is None:
        return [words(("No deploy in the last hour: forkq mark-deploy notes one.", QUIET))]
    return [words("Deployed ", cell(deploy.label), (f" {format_moment(deploy.at)}", QUIET))]


def _fitting(parts: Sequence[T], is_wide: bool) -> Sequence[T]:
    """Without the one that a narrow screen has no room for."""
    return parts if is_wide else [*parts[:_P99], *parts[_P99 + 1 :]]


def _row(
    one: api.ClassMetrics, times: api.Histogram, deploy: api.Deploy | None, is_wide: bool
) -> Row:
    failed = f"{one.failed / one.processed:.1%}" if one.processed else "-"
    percentiles = ("-" if at is None else format_duration(at) for at in times.percentiles())
    cells = (
        cell(one.job), cell(format_count(one.processed)), cell(failed, BAD if one.failed else ""),
        *map(cell, percentiles), words((_bars(one.points, is_wide), "cyan")),
        _change(one.points, deploy),
    )  # fmt: skip
    return Row(one.job, _fitting(cells, is_wide), one)


def _bars(points: Sequence[api.Point], is_wide: bool) -> str:
    runs = [point.processed for point in points]
    bars = _WIDE_SPARK if is_wide else _NARROW_SPARK
    size = max(1, len(runs) // bars)
    return spark([sum(runs[at : at + size]) for at in range(0, len(runs), size)], bars)


def _change(points: Sequence[api.Point], deploy: api.Deploy | None) -> Text:
    """What has changed more with the deploy: the failures, or the time of a run."""
    sides = _sides(points, deploy)
    if sides is None:
        return words(("-" if deploy else "", QUIET))
    (time, failed), (new_time, new_failed) = sides
    slower, failing = (new_time / time - 1 if time else 0.0), new_failed - failed
    if abs(failing) > _FAILING:
        return words((f"{failing:+.1%} failed", BAD if failing > 0 else GOOD))
    shown = f"{slower:+.0%} time" if abs(slower) >= _SAME else "the same"
    return words((shown, BAD if slower > _SLOWER else QUIET))


def _sides(
    points: Sequence[api.Point], deploy: api.Deploy | None
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The average run in seconds and the share of failures, before and after the deploy."""
    if deploy is None:
        return None
    before = _side([point for point in points if point.at < deploy.at])
    after = _side([point for point in points if point.at >= deploy.at])
    return None if before is None or after is None else (before, after)


def _side(points: Sequence[api.Point]) -> tuple[float, float] | None:
    one = api.ClassMetrics("", tuple(points))
    return None if one.average is None else (one.average, one.failed / one.processed)


def _foot(look: Look, deploy: api.Deploy | None) -> list[Text]:
    one = look.cursor.target if look.cursor else None
    if not isinstance(one, api.ClassMetrics):
        return []
    sides = _sides(one.points, deploy)
    says = words((name(one.job), STRONG))
    if sides is None:
        return [says]
    (time, failed), (new_time, new_failed) = sides
    before = f"before the deploy {format_duration(time)} a run, {format_share(failed, 1)} failed"
    since = f"; since then {format_duration(new_time)}, {format_share(new_failed, 1)} failed"
    return [says, words(before, since)]
