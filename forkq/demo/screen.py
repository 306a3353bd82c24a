"""What the person sees: a picture of the tree that moves, or plain lines where nobody watches."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .books import Depths
from .tree import Child, Status

_PLAIN_EVERY: Final = 2.0
_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDEST: Final = 90
_STATES: Final = {"running": "green", "booting": "yellow", "quiet": "cyan", "stopping": "magenta"}


@dataclass(frozen=True, slots=True)
class Work:
    """How far one kind of job is."""

    kind: str
    done: int
    failed: int
    total: int


@dataclass(frozen=True, slots=True)
class View:
    """All that the screen shows at one moment. Times in seconds, ``running`` by pid."""

    elapsed: float
    now: float
    status: Status
    depths: Depths
    work: tuple[Work, ...]
    running: dict[int, list[str]]
    rate: float
    chart: list[int]

    @property
    def done(self) -> int:
        """Jobs done, of all kinds."""
        return sum(work.done for work in self.work)

    @property
    def total(self) -> int:
        """Jobs that there are to do."""
        return sum(work.total for work in self.work)

    def busy(self, child: Child) -> int:
        """Processors of ``child`` that perform a job now, as the journal says."""
        return min(child.concurrency, len(self.running.get(child.pid, ())))


class Screen(Protocol):
    """Where the demo shows itself."""

    def say(self, line: str, style: str = "") -> None:
        """Writes a line that stays."""

    def show(self, view: View) -> None:
        """Shows how things stand."""

    def close(self) -> None:
        """Ends the moving picture; what was said stays."""

    def table(self, rows: Sequence[tuple[str, str]], style: str) -> None:
        """Writes the summary: a name and a text each."""


def open_screen() -> Screen:
    """A moving picture on a terminal, else plain lines without control codes."""
    utf8 = (sys.stdout.encoding or "").lower().startswith("utf")
    if sys.stdout.isatty() and utf8 and os.environ.get("TERM", "dumb") != "dumb":
        return Moving()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the log cannot spell
    return Plain()


class Plain:
    """For a log file or a CI job: a line every two seconds, and whatever happens."""

    def __init__(self) -> None:
        self._next = 0.0

    def say(self, line: str, style: str = "") -> None:
        print(_printable(line), flush=True)

    def show(self, view: View) -> None:
        if view.elapsed < self._next:
            return
        self._next = view.elapsed + _PLAIN_EVERY
        children = [c for c in view.status.children if c.concurrency]
        busy = " ".join(f"{c.name}={c.pid}:{view.busy(c)}/{c.concurrency}" for c in children)
        print(
            f"{view.elapsed:5.1f} s  {view.done} of {view.total} done, {view.rate:.0f} jobs/s, "
            f"{_places(view)}; busy {busy}",
            flush=True,
        )

    def close(self) -> None:
        pass

    def table(self, rows: Sequence[tuple[str, str]], style: str) -> None:
        print()
        for name, text in rows:
            print(f"{name:<10}{_printable(text)}")


class Moving:
    """For a terminal. Redrawn by ``show`` alone: no thread of rich's runs."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None

    def say(self, line: str, style: str = "") -> None:
        self._console.print(Text(_printable(line), style=style))

    def show(self, view: View) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(_picture(view, self._console.width), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def table(self, rows: Sequence[tuple[str, str]], style: str) -> None:
        grid = Table.grid(padding=(0, 2))
        for number, (name, text) in enumerate(rows):
            grid.add_row(
                Text(name, style="dim"), Text(_printable(text), style="" if number else style)
            )
        self._console.print()
        self._console.print(grid)


def _picture(view: View, width: int) -> RenderableType:
    tree = _tree(view, min(width, _WIDEST))
    return Group(Text(), _head(view), Text(), tree, Text(), _progress(view), _foot(view))


def _head(view: View) -> RenderableType:
    status = view.status
    return Text.from_markup(
        f"[bold]forkq[/] master [bold]{status.pid}[/] {escape(status.state)}, "
        f"{len(status.children)} children   [dim]{view.elapsed:.1f} s[/]"
    )


def _tree(view: View, width: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", width=width)
    for name in ("child", "pid", "state", "busy"):
        table.add_column(name, no_wrap=True)
    table.add_column("done", justify="right")
    table.add_column("performs", ratio=1, no_wrap=True, overflow="ellipsis")
    for child in sorted(view.status.children, key=lambda c: (not c.concurrency, c.name)):
        table.add_row(*_row(child, view))
    return table


def _row(child: Child, view: View) -> list[RenderableType]:
    name = Text(child.name, style="bold yellow" if child.respawns else "bold")
    state = Text(child.state, style=_STATES.get(child.state, ""))
    if not child.concurrency:
        depths = view.depths
        waiting = f"{depths.schedule} scheduled, {depths.retry} to retry"
        return [name, str(child.pid), state, "", "", Text(waiting, style="dim")]
    busy = view.busy(child)
    dots = Text("●" * busy, style="green") + Text("○" * (child.concurrency - busy), style="dim")
    labels = _printable("  ".join(view.running.get(child.pid, ())))
    return [name, str(child.pid), state, dots, str(child.processed), Text(labels, style="dim")]


def _progress(view: View) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for work in view.work:
        # What is to be retried has failed, and is not at its end.
        ended = work.done + work.failed if work.kind != "Announce" else work.done
        bar = ProgressBar(
            work.total, ended, width=40, complete_style="cyan", finished_style="green"
        )
        failed = f"  [red]{work.failed} failed[/]" if work.failed else ""
        figures = Text.from_markup(f"{work.done} of {work.total}{failed}")
        table.add_row(Text(work.kind), bar, figures)
    return table


def _foot(view: View) -> RenderableType:
    peak = max(view.chart, default=0) or 1
    chart = "".join(_BARS[-(-count * (len(_BARS) - 1) // peak)] for count in view.chart)
    return Text.from_markup(
        f"\n[bold]{view.rate:.0f}[/] jobs/s [green]{chart}[/]\n[dim]{_places(view)}[/]"
    )


def count(number: int, thing: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def shortened(path: str | Path) -> str:
    """As seen from the working directory, if it lies below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)


def _printable(text: str) -> str:
    """Without the control codes that a file's name may hold."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _places(view: View) -> str:
    depths = view.depths
    places = [f"{depths.queued} queued", f"{depths.in_flight} in flight"]
    for count, name, due in (
        (depths.retry, "to retry", depths.retry_due),
        (depths.schedule, "scheduled", depths.schedule_due),
    ):
        if count:
            places.append(f"{count} {name} in {max(0.0, due - view.now):.0f} s")
    return ", ".join([*places, f"{depths.dead} dead"])
