"""The lines around a page: its neighbours, what is wrong, whether Redis answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message

from ..screens.problems import Problem
from ..units import format_duration, plural
from ..wire.printable import cut
from .cells import BAD, GOOD, QUIET, WARN, cell, words
from .content import Page
from .keys import NEXT_SHARD
from .line import ShownLine
from .watcher import Away

_NUMBERS: Final = {
    "/busy": "3", "/queue": "2", "/queues": "2", "/retries": "4", "/failures": "4", "/dead": "4",
    "/scheduled": "6", "/cron": "6", "/locks": "2", "/batches": "2", "/flows": "2",
}  # fmt: skip


class TabChosen(Message):
    """A page that was clicked on, by its number."""

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number


class Link(ShownLine):
    """A line that leads to a page."""

    def __init__(self, text: Text, number: str, classes: str = "") -> None:
        super().__init__(text, classes=f"link {classes}")
        self.number = number

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(TabChosen(self.number))


class Tabs(Horizontal):
    """The line with the six pages of the number keys, and with the state of the connection."""

    def __init__(self, pages: Sequence[type[Page]], server: str) -> None:
        super().__init__(id="tabs")
        self._pages = pages
        self._server = server

    def compose(self) -> ComposeResult:
        for page in self._pages:
            yield Link(Text(f"{page.number} {page.title}"), page.number)
        yield ShownLine(id="server")

    def show(self, number: str) -> None:
        """Shows which page is looked at."""
        for link in self.query(Link):
            link.set_class(link.number == number, "here")

    def show_live(self, away: Away | None, shard: str) -> None:
        """Shows how the connection is, to the server or to that shard."""
        style, says = (BAD, "away") if away else (GOOD, "live")
        shown = self.query_one("#server", ShownLine)
        room = self.app.size.width - sum(len(f"{p.number} {p.title}") + 2 for p in self._pages) - 8
        server = cut(shard, room) or (self._server if len(self._server) <= room else "")
        shown.show(words((f"{server} ", QUIET), (f"● {says}", style)))


class ProblemLines(Vertical):
    """The lines that say whether anything is wrong: the worst problems; on most pages only the
    worst one."""

    def __init__(self) -> None:
        super().__init__(id="problems")

    def show(self, found: Sequence[Problem], well: str, away: Away | None, most: int) -> None:
        """Shows the problems, or ``well`` if nothing is wrong."""
        lines = _lines(found, well, away, most)
        links = list(self.query(Link))
        if len(links) != len(lines):
            self.remove_children()
            self.mount_all(Link(text, number) for text, number in lines)
            return
        for link, (text, number) in zip(links, lines, strict=True):
            link.number = number
            link.show(text)


def _lines(
    found: Sequence[Problem], well: str, away: Away | None, most: int
) -> list[tuple[Text, str]]:
    if away is not None:
        since = time.strftime("%H:%M:%S", time.localtime(away.since))
        gone = format_duration(max(0.0, round(time.time() - away.since)))
        says = f"Redis has not answered since {since} ({gone}). "
        return [(words((says, BAD), cell(away.says)), "1")]
    if not found:
        return [(words((well, GOOD)), "1")]
    shown = found if len(found) <= most else found[:most]
    lines = [_line(one) for one in shown]
    rest = sum(one.count for one in found[len(shown) :])
    if rest:
        lines[-1][0].append(f"  and {plural(rest, 'problem')} more: 1", QUIET)
    return lines


def _line(problem: Problem) -> tuple[Text, str]:
    style = BAD if problem.urgent else WARN
    number = NEXT_SHARD if problem.shard else number_of(problem.path)
    mark = "!" if problem.urgent else "·"
    return words((f"{number} ", QUIET), (f"{mark} {problem.says}", style)), number


def number_of(path: str) -> str:
    """The number of the page that shows what the web UI has under ``path``."""
    return _NUMBERS.get(urlsplit(path).path, "1")
