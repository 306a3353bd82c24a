"""What each class did in the last hour, before and after the latest deploy."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.text import Text

from ... import api
from ...screens.classes import ClassLine, in_the_last, sides
from ...screens.texts import name
from ...units import format_duration, format_moment, format_share
from ..cells import QUIET, STRONG, cell, words
from ..content import Content, Look, Page, grid

_HOUR: Final = 60
_MOST: Final = 50


class MetricsPage(Page):
    """The page of job classes: the class with the most time spent first."""

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
        lines = [
            ClassLine(
                one, times[one.job].percentiles(), [at.processed for at in one.points], deploy
            )
            for one in classes
        ]
        table = in_the_last("hour").table("top", lines)
        empty = table.empty.says
        return Content(_head(deploy), *grid(table, look), foot=_foot(look, deploy), empty=empty)


def _head(deploy: api.Deploy | None) -> list[Text]:
    if deploy is None:
        return [words(("No deploy in the last hour: forkq mark-deploy notes one.", QUIET))]
    return [words("Deployed ", cell(deploy.label), (f" {format_moment(deploy.at)}", QUIET))]


def _foot(look: Look, deploy: api.Deploy | None) -> list[Text]:
    line = look.cursor.target if look.cursor else None
    if not isinstance(line, ClassLine):
        return []
    one = line.figures
    found = sides(one.points, deploy)
    says = words((name(one.job), STRONG))
    if found is None:
        return [says]
    (time, failed), (new_time, new_failed) = found
    before = f"before the deploy {format_duration(time)} a run, {format_share(failed, 1)} failed"
    since = f"; since then {format_duration(new_time)}, {format_share(new_failed, 1)} failed"
    return [says, words(before, since)]
