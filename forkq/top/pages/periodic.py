"""Periodic jobs: when each runs next, how its last run ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rich.text import Text

from ...api import Server, cron
from ...screens import cron_acts
from ...screens.plans import Plan
from ...screens.texts import name
from ...units import format_moment
from ..cells import BAD, QUIET, STRONG, WARN, cell, words
from ..content import Act, Column, Content, Look, Page, Row, Selection

_MOST: Final = 200
_BAD: Final = frozenset({"dead", "retry", "missed"})
_COLUMNS: Final = (
    Column("NEXT", "right"), Column("NAME", least=12), Column("SCHEDULE", least=9),
    Column("LAST RUN", least=16),
)  # fmt: skip


class Periodic(Page):
    """The next one first."""

    title: ClassVar[str] = "Next"
    number: ClassVar[str] = "6"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "p"
    path: ClassVar[str] = "/cron"
    question: ClassVar[str] = "What will happen next?"
    hint: ClassVar[str] = "periodic jobs  g s scheduled jobs"

    def content(self, look: Look) -> Content:
        found = [(_next(one), one) for one in cron.list(look.server) if look.wants(one.name)]
        rows = [_row(*one) for one in sorted(found, key=lambda one: (one[0], one[1].name))]
        none = [words(("No clock leads: no periodic job is enqueued. Start forkq.", BAD))]
        head = [] if cron.has_leader(look.server) or not rows else none
        empty = "No periodic jobs: add @forkq.every to a job, or a [[cron]] table to forkq.toml."
        return Content(head, _COLUMNS, rows[:_MOST], foot=_foot(look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {"pause": _pause, "run": lambda server, chosen: cron_acts.run(server, _only(chosen))}


def _only(chosen: Selection) -> str:
    [one] = chosen.targets
    return str(one.name)


def _pause(server: Server, chosen: Selection) -> Plan:
    one = cron.get(_only(chosen), server)
    return (cron_acts.resume if one.paused else cron_acts.pause)(server, one.name)


def _next(one: cron.Periodic) -> float:
    """Its next tick; none while it is resting."""
    ticks = [] if one.resting else one.ticks(1)
    return ticks[0] if ticks else math.inf


def _row(at: float, one: cron.Periodic) -> Row:
    state = "paused" if one.paused else "asleep" if one.asleep else "disabled"
    when = words((state, WARN)) if one.resting else cell(format_moment(at))
    cells = (when, cell(one.name), cell(one.entry.schedule.expression), _last(one))
    return Row(one.name, cells, one)


def _last(one: cron.Periodic) -> Text:
    latest = one.latest
    if latest is None:
        return words(("-", QUIET))
    style = BAD if latest.event in _BAD else ""
    return words((latest.event, style), f" {format_moment(latest.at)}")


def _foot(look: Look) -> list[Text]:
    one: Any = look.cursor.target if look.cursor else None
    if not isinstance(one, cron.Periodic):
        return []
    ticks = [time.strftime("%a %H:%M", time.gmtime(at)) for at in one.ticks(5)]
    says = words((name(one.name), STRONG), f"  runs {name(one.entry.job['class'])}")
    zone = name(one.entry.schedule.tz)
    return [says, words((f"{zone}; next (UTC) {', '.join(ticks)}", QUIET))]
