"""Job classes as a table: how often, how long, what failed, and what a deploy changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from .. import api
from ..units import format_count, format_duration, format_share
from ..values import replace
from .table import BROWSER, LIVE, Cell, Column, Empty, PageLink, Phrase, Sheet, Tone, Trend, note

_SAME, _SLOWER, _FAILING = 0.02, 0.2, 0.01  # shares: no change, and one that a person should see


class ClassLine(msgspec.Struct, frozen=True):
    """A class in the last ``minutes``: its figures, the percentiles of its last hour, its runs over
    time, and the last deploy."""

    figures: api.ClassMetrics
    percentiles: Sequence[float | None]
    runs: Sequence[int]
    deploy: api.Deploy | None = None
    minutes: int = 60


def sides(
    points: Sequence[api.Point], deploy: api.Deploy | None
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The averages before and after the deploy: seconds of a run, and share of failures."""
    if deploy is None:
        return None
    before = _side([point for point in points if point.at < deploy.at])
    after = _side([point for point in points if point.at >= deploy.at])
    return None if before is None or after is None else (before, after)


def _side(points: Sequence[api.Point]) -> tuple[float, float] | None:
    one = api.ClassMetrics("", tuple(points))
    return None if one.average is None else (one.average, one.failed / one.processed)


def _name(line: ClassLine) -> Cell:
    job = line.figures.job
    link = PageLink("/job-metrics", {"job": job, "minutes": line.minutes})
    return (Phrase(job, link=link),)


def _failed(line: ClassLine) -> Cell:
    one = line.figures
    if not one.failed:
        return (Phrase("0"),)
    share = one.failed / one.processed if one.processed else 1
    return Phrase(format_count(one.failed), "bad"), note(format_share(share, 1))


def _time(seconds: float | None) -> Cell:
    return () if seconds is None else (Phrase(format_duration(seconds)),)


def _change(line: ClassLine) -> Cell:
    """What changed with the deploy, in words: the failures, if their share did, or else the time of
    a run."""
    found = sides(line.figures.points, line.deploy)
    if found is None:
        return ()
    (time, failed), (new_time, new_failed) = found
    slower, failing = (new_time / time - 1 if time else 0.0), new_failed - failed
    if abs(failing) > _FAILING:
        return (Phrase(f"{failing:+.1%} failed", "bad" if failing > 0 else "good"),)
    tone: Tone = "bad" if slower > _SLOWER else "quiet"
    return (Phrase(f"{slower:+.0%} time" if abs(slower) >= _SAME else "the same", tone),)


def in_the_last(period: str) -> Sheet[ClassLine]:
    """The table of what ended in the last ``period``, such as "hour"."""
    return replace(
        CLASSES, empty=CLASSES.empty._replace(says=f"No job has ended in the last {period}.")
    )


CLASSES: Final[Sheet[ClassLine]] = Sheet(
    "Classes",
    (
        Column("class", "Class", _name, least=10, on=LIVE),
        Column("trend", "Over time", lambda line: (Trend(line.runs, "runs over time"),), on=LIVE),
        Column(
            "runs", "Runs", lambda line: (Phrase(format_count(line.figures.processed)),), "right",
            on=LIVE,
        ),
        Column("failed", "Failed", _failed, "right", on=LIVE),
        Column(
            "average", "Average", lambda line: _time(line.figures.average), "right", on=BROWSER
        ),
        Column(
            "p50", "p50, last hour", lambda line: _time(line.percentiles[0]), "right", on=LIVE,
            brief="P50",
        ),
        Column("p95", "p95", lambda line: _time(line.percentiles[1]), "right", on=LIVE),
        Column("p99", "p99", lambda line: _time(line.percentiles[2]), "right", wide=True, on=LIVE),
        Column("change", "Since deploy", _change, "right", on=LIVE),
    ),
    lambda line: line.figures.job,
    Empty(
        "No job has ended.",
        "What runs stands here by class: how often, how long, what failed. Figures come with the "
        "heartbeats of the children.",
    ),
    words=lambda line: (line.figures.job,),
)  # fmt: skip
