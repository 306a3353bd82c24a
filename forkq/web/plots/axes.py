"""The two axes of a chart: round values upward, round times from left to right."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

import msgspec
from markupsafe import Markup

from .svg import element, joined, percent

LABELS: Final = 18  # pixels under a plot, for the labels of its axis
_STEPS: Final = (60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAYS: Final = tuple(86_400 * days for days in (2, 7, 14, 30, 90))
_MOST_LABELS: Final = 6
_EDGE: Final = 0.04  # a label nearer than this to an end would be cut


class ValueAxis(msgspec.Struct, frozen=True):
    """The axis upward: from 0 to ``top``, a round number, over ``height`` pixels."""

    top: float
    height: int

    @classmethod
    def over(cls, highest: float, height: int) -> ValueAxis:
        """The axis on which ``highest`` still fits."""
        return cls(rounded_up(highest), height)

    def y(self, value: float) -> float:
        """The place of ``value``, in pixels from the top."""
        return round(self.height * (1 - min(value, self.top) / self.top), 2)

    def grid(self) -> Markup:
        """The lines at the top, in the middle and on the ground, to be drawn before all else."""
        heights = (("grid", 0), ("grid", self.height / 2), ("ground", self.height))
        return joined(
            element("line", x1=0, x2="100%", y1=y, y2=y, class_=kind) for kind, y in heights
        )

    def values(self, label: Callable[[float], str]) -> Markup:
        """The values of the top and the middle, to be drawn after all else."""
        return joined(
            element("text", label(value), x=2, y=self.y(value) + 12, class_="value")
            for value in (self.top, self.top / 2)
        )


class TimeAxis(msgspec.Struct, frozen=True):
    """The axis from left to right: from ``start`` to ``end``, epoch seconds."""

    start: float
    end: float

    def share(self, moment: float) -> float:
        """The place of ``moment`` between start (0) and end (1)."""
        return (moment - self.start) / (self.end - self.start)

    def has(self, moment: float) -> bool:
        """Whether ``moment`` lies on the axis."""
        return self.start <= moment <= self.end

    def labels(self, height: int) -> Markup:
        """The labels under a plot of that height: round times of UTC."""
        return joined(self._label(moment, height) for moment in self.round_times())

    def round_times(self) -> list[int]:
        """The full hours (or minutes, or days) that are labelled."""
        length = self.end - self.start
        step = next((s for s in (*_STEPS, *_DAYS) if length / s <= _MOST_LABELS), _DAYS[-1])
        first = math.ceil(self.start / step) * step
        moments = range(first, math.floor(self.end) + 1, step)
        return [at for at in moments if _EDGE <= self.share(at) <= 1 - _EDGE]

    def _label(self, moment: int, height: int) -> Markup:
        return element(
            "text", clock(moment), x=percent(self.share(moment)), y=height + 14, class_="time"
        )


def clock(moment: float) -> str:
    """A moment as hour and minute of UTC; at midnight as the day."""
    at = datetime.fromtimestamp(moment, timezone.utc)
    return f"{at:%H:%M}" if at.hour or at.minute else f"{at:%d %b}"


def rounded_up(value: float) -> float:
    """The next number of 1, 2, 4, 6, 8, 10, 20, 40 and so on: its half is round, too. 1 for a value
    that is not above 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)
