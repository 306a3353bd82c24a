"""What the person sees: a moving picture of the tree at a terminal, else plain lines."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .show import Show

_LINE_EVERY = 2.0
_CHART = " ▁▂▃▄▅▆▇█"
_WIDEST = 90
_STATES = {"running": "green", "booting": "yellow", "quiet": "cyan", "stopping": "magenta"}


class Screen:
    """Drawn by ``show`` alone: none of rich's threads runs. A pipe gets no control codes."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a name that the log cannot spell
        terminal = sys.stdout.isatty()
        width = None if terminal else 10_000
        self._console = Console(highlight=False, force_terminal=terminal, width=width)
        self._moving = terminal and os.environ.get("TERM") != "dumb"
        self._moving &= self._console.encoding.startswith("utf")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._next_line = 0.0

    def say(self, line: str, style: str = "") -> None:
        """Writes a line that stays."""
        self._console.print(Text(printable(line), style=style))

    def show(self, show: Show) -> None:
        """Shows how things stand: in the moving picture, or now and then in a line."""
        if self._moving:
            self._live.start()
            self._live.update(_picture(show, min(self._console.width, _WIDEST)), refresh=True)
        elif show.elapsed >= self._next_line:
            self._next_line = show.elapsed + _LINE_EVERY
            self.say(_line(show))

    def close(self) -> None:
        """Ends the moving picture; what was said stays."""
        self._live.stop()


def printable(text: str) -> str:
    """Without the control codes and the stray bytes that a file's name may hold."""
    text = os.fsencode(text).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _line(show: Show) -> str:
    children = [child for child in show.status.children if child.concurrency]
    busy = (f"{c.name}={c.pid}:{len(show.running(c))}/{c.concurrency}" for c in children)
    ended, planned = sum(map(len, show.progress.done.values())), sum(show.work.planned.values())
    done = f"{ended} of {planned} done, {show.progress.rate():.0f} jobs/s"
    return f"{show.elapsed:5.1f} s  {done}, {_figures(show)}; busy {' '.join(busy)}"


def _figures(show: Show) -> str:
    return ", ".join(f"{number} {name}" for name, number in show.figures.items())


def _picture(show: Show, width: int) -> RenderableType:
    status, counts = show.status, show.progress.chart()
    peak = max([1, *counts])
    chart = "".join(_CHART[-(-count * (len(_CHART) - 1) // peak)] for count in counts)
    head = f"\n[bold]forkq[/] master [bold]{status.pid}[/] {status.state}, "
    head += f"{len(status.children)} children   [dim]{show.elapsed:.1f} s[/]\n"
    foot = (
        f"\n[bold]{show.progress.rate():.0f}[/] jobs/s [green]{chart}[/]\n[dim]{_figures(show)}[/]"
    )
    return Group(head, _tree(show, width), "", _bars(show), foot)


def _tree(show: Show, width: int) -> RenderableType:
    table = Table("child", "pid", "state", "busy", box=None, padding=(0, 2, 0, 0), width=width)
    table.add_column("done", justify="right")
    table.add_column("performs", ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    for child in sorted(show.status.children, key=lambda c: (not c.concurrency, c.name)):
        running = show.running(child)
        performs = "  ".join("/".join(Path(result).parts[-2:]) for result in running)
        dots = f"[green]{'●' * len(running)}[/][dim]{'○' * (child.concurrency - len(running))}[/]"
        done = str(child.processed) if child.concurrency else ""
        if not child.concurrency:  # the clock
            performs = "{scheduled} scheduled, {to retry} to retry".format(**show.figures)
        name = Text(child.name, style="bold yellow" if child.respawns else "bold")
        state = Text(child.state, style=_STATES.get(child.state, ""))
        table.add_row(name, str(child.pid), state, dots, done, Text(printable(performs)))
    return table


def _bars(show: Show) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for kind, planned in show.work.planned.items():
        done = len(show.progress.done[kind])
        failed = len(show.progress.failed[kind] - show.progress.done[kind])
        # Announce has failed, but is retried: it is not at its end.
        ended = done if kind == "Announce" else done + failed
        bar = ProgressBar(planned, ended, 40, complete_style="cyan", finished_style="green")
        failures = f"  [red]{failed} failed[/]" if failed else ""
        table.add_row(kind, bar, f"{done} of {planned}{failures}")
    return table
