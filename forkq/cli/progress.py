"""How far a long action is, for a person at a terminal: a bar if rich is installed, else counts."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from ..api import Outcome

if TYPE_CHECKING:
    from rich.progress import Progress


class ActionProgress:
    """Called with the outcome so far after each batch. It keeps the latest in ``outcome``, and
    shows it unless the first batch was all. Nothing of it stays on the screen."""

    def __init__(self, title: str) -> None:
        self.outcome = Outcome()
        self._title = title
        self._bar: Progress | None = None
        self._width = 0

    def __enter__(self) -> ActionProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)

    def __call__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome.seen >= outcome.total or not sys.stderr.isatty():
            return
        if find_spec("rich") is None:
            self._show_counts()
        else:
            self._show_bar()

    def _show_counts(self) -> None:
        text = f"{self._title}: {self.outcome.seen:,} of {self.outcome.total:,}"
        self._width = max(self._width, len(text))
        click.echo(f"\r{text}", nl=False, err=True)

    def _show_bar(self) -> None:
        if self._bar is None:
            self._bar = _bar()
            self._bar.add_task(self._title)
            self._bar.start()
        [task] = self._bar.task_ids
        self._bar.update(task, completed=self.outcome.seen, total=self.outcome.total)


def _bar() -> Any:
    from rich.console import Console  # noqa: PLC0415 - only for a long action at a terminal
    from rich.progress import Progress  # noqa: PLC0415

    return Progress(console=Console(stderr=True), transient=True)
