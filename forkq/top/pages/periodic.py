"""Periodic jobs: when each runs next, how its last run ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rich.text import Text

from ...api import Server, cron
from ...screens import cron_acts
from ...screens.periodic import NO_LEADER, PERIODIC, PeriodicLine, of_jobs
from ...screens.plans import Plan
from ...screens.texts import name
from ..cells import BAD, QUIET, STRONG, words
from ..content import Act, Content, Look, Page, Selection, cut, grid

_MOST: Final = 200


class PeriodicPage(Page):
    """The page of periodic jobs: the next one first."""

    title: ClassVar[str] = "Next"
    number: ClassVar[str] = "6"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "p"
    path: ClassVar[str] = "/cron"
    question: ClassVar[str] = "What will happen next?"
    hint: ClassVar[str] = "periodic jobs  g s scheduled jobs"

    def content(self, look: Look) -> Content:
        found = PERIODIC.chosen(of_jobs(cron.list(look.server)), look.wanted)
        table = PERIODIC.table("top", found[:_MOST], max(0, len(found) - _MOST))
        head = [] if cron.has_leader(look.server) or not found else [words((NO_LEADER, BAD))]
        head += cut(table)
        empty = " ".join(table.empty[:2])
        return Content(head, *grid(table, look), foot=_foot(look), empty=empty)

    def acts(self) -> Mapping[str, Act]:
        return {"pause": _pause, "run": lambda server, chosen: cron_acts.run(server, _only(chosen))}


def _only(chosen: Selection) -> str:
    [one] = chosen.targets
    return str(one.job.name)


def _pause(server: Server, chosen: Selection) -> Plan:
    one = cron.get(_only(chosen), server)
    return (cron_acts.resume if one.paused else cron_acts.pause)(server, one.name)


def _foot(look: Look) -> list[Text]:
    line: Any = look.cursor.target if look.cursor else None
    if not isinstance(line, PeriodicLine):
        return []
    one = line.job
    ticks = [time.strftime("%a %H:%M", time.gmtime(at)) for at in one.ticks(5)]
    says = words((name(one.name), STRONG), f"  runs {name(one.entry.job['class'])}")
    zone = name(one.entry.schedule.tz)
    return [says, words((f"{zone}; next (UTC) {', '.join(ticks)}", QUIET))]
