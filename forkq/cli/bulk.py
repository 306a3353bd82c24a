"""Actions on many jobs: asked before, counted, watched, reported, and interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click
import msgspec

from ..api import Filter, Outcome
from ..api.changes import MOST_UNDONE, UNDO_TIME
from ..api.filters import EVERY
from ..errors import ServerUnavailable
from ..runtime.exit_codes import INTERRUPTED
from ..screens.features.locks import without_locks
from ..units import plural
from ..values import replace
from .options import finds_redis, json_option
from .output import as_json, echo

if TYPE_CHECKING:
    from rich.progress import Progress

_OPTIONS = (
    click.option("--all", "everything", is_flag=True, help="All of them."),
    click.option("--dry-run", is_flag=True, help="Only count them."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
)
_CLEARS: Final = (
    click.option("--dry-run", is_flag=True, help="Only count them."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("--no-undo", is_flag=True, help="Keep none, which frees Redis at once."),
    json_option,
    finds_redis,
)


def need_terminal(what: str) -> None:
    """Raises UsageError if there is no person to ask."""
    if not (sys.stdin and sys.stdin.isatty()):
        options = click.get_current_context().params
        count = ", or --dry-run to count the jobs" if "dry_run" in options else ""
        raise click.UsageError(
            f"{what} asks first, and standard input is no terminal: add --yes to do it{count}"
        )


def confirmed(verb: str, question: str) -> bool:
    """Whether the person at the terminal says yes. Raises UsageError if there is none."""
    need_terminal(f"`{verb}`")
    return agreed(question)


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    if click.confirm(question, err=True):
        return True
    click.echo("nothing was changed", err=True)
    return False


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


Command = TypeVar("Command", bound=Callable[..., Any])


def acts(command: Command) -> Command:
    """Adds the options of a command that acts on many jobs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class How(msgspec.Struct, frozen=True):
    """How an action is to be done, by the options of ``acts``. It acts on ``most`` jobs at most."""

    dry_run: bool = False
    yes: bool = False
    most: int | None = None
    wants_json: bool = False


class Action(msgspec.Struct, frozen=True):
    """What is done: ``verb`` and ``done`` are its name ("retry", "enqueued"), ``jobs`` what it is
    about ("dead job"). ``run`` is a method of the API, such as ``JobSet.retry_all``. ``loss`` says,
    for a number of jobs, what goes for good because of them; "" if nothing does."""

    verb: str
    done: str
    jobs: str
    run: Callable[..., Outcome]
    loss: Callable[[int], str] = lambda _: ""

    def counted(self, count: int) -> str:
        """The number of jobs in words, such as "1,204 dead jobs"."""
        return plural(count, self.jobs)


def perform(action: Action, where: Filter, how: How) -> int:
    """Does the action, after a question. Returns the exit code: 0 if at least one job was acted on
    (or would be, in a dry run), 1 if none was, 130 after Ctrl-C."""
    call = partial(action.run, where=where, most=how.most)
    if how.dry_run:
        return _report_dry_run(action, _counted(call), how)
    if not how.yes:
        need_terminal(f"`{action.verb}`")
        found = _counted(call).matched
        if not found:
            return _nothing(action)
        _print_loss(action, found)
        if not agreed(f"{action.verb.capitalize()} {action.counted(found)}?"):
            return 1
    return _run(action, call, how)


def _run(action: Action, call: Callable[..., Outcome], how: How) -> int:
    progress = ActionProgress(action.verb)
    try:
        with progress:
            outcome = call(progress=progress)
    except KeyboardInterrupt:
        _print_so_far("interrupted", action, progress.outcome)
        return INTERRUPTED
    except ServerUnavailable as error:
        if error.outcome is not None and (error.outcome.done or error.outcome.undo):
            _print_so_far("cut short", action, error.outcome)
        raise
    if how.yes:
        _print_loss(action, 0)
    return _print_outcome(action, outcome, how)


def _print_loss(action: Action, more: int) -> None:
    if loss := action.loss(more):
        echo(loss, err=True)


def _counted(call: Callable[..., Outcome]) -> Outcome:
    with ActionProgress("counting") as progress:
        return call(dry_run=True, progress=progress)


def _print_so_far(what: str, action: Action, outcome: Outcome) -> None:
    echo(f"{what}: {_summary(action, outcome)} so far, perhaps one batch more", err=True)
    if outcome.undo:
        echo(_to_undo(outcome), err=True)


def _report_dry_run(action: Action, outcome: Outcome, how: How) -> int:
    if how.wants_json:
        click.echo(as_json(asdict(outcome)))
    elif not outcome.matched:
        return _nothing(action)
    else:
        echo(f"{action.counted(outcome.matched)} would be {action.done}")
    _print_loss(action, outcome.matched)
    return 0 if outcome.matched else 1


def _print_outcome(action: Action, outcome: Outcome, how: How) -> int:
    if how.wants_json:
        click.echo(as_json(asdict(outcome)))
    elif not outcome.matched:
        return _nothing(action)
    else:
        echo(_summary(action, outcome))
        if outcome.undo:
            echo(_to_undo(outcome))
    return 0 if outcome.done else 1


def _to_undo(outcome: Outcome) -> str:
    return f"to put back within {UNDO_TIME}: forkq undo {outcome.undo}"


def _nothing(action: Action) -> int:
    echo(f"no {action.jobs} matches: nothing was changed", err=True)
    return 1


def _summary(action: Action, outcome: Outcome) -> str:
    parts = [f"{action.counted(outcome.done)} {action.done}"]
    if outcome.gone:
        parts.append(f"{outcome.gone:,} had left meanwhile")
    if outcome.refused:
        parts.append(f"{outcome.refused:,} left as they are: their payloads are no jobs")
    if outcome.unlocked:
        parts.append(without_locks(outcome.unlocked))
    return "; ".join(parts)


class Clearable(Protocol):
    """What can be cleared: a JobSet or a Queue."""

    @property
    def size(self) -> int:
        """How many jobs there are."""

    def clear(self) -> int:
        """Deletes all jobs at once, for good."""

    def delete_all(self, where: Filter = ..., *, undo: bool = ...) -> Outcome:
        """Deletes all jobs in batches."""


def clears(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a command that clears."""
    for option in reversed(_CLEARS):
        command = option(command)
    return command


def cleared(one: str, jobs: Clearable, how: How, *, undo: bool, empty: str = "") -> int:
    """Clears after a question. Returns the exit code. Redis keeps what can be restored. So a great
    many jobs are deleted for good, and at once; fewer ones only without ``undo``. ``empty`` says
    that there is no job, in better words than ``one``."""
    count = jobs.size
    action = Action("clear", "deleted", one, partial(jobs.delete_all, undo=True))
    if not count:
        echo(f"{empty or f'there is no {one}'}: nothing to do", err=True)
        return 1
    keeps = undo and count <= MOST_UNDONE
    if how.dry_run or (keeps and how.yes):
        return perform(action, EVERY, how)
    warning = "?" if keeps else "? This cannot be undone"
    if not (how.yes or confirmed("clear", f"Delete {action.counted(count)}{warning}")):
        return 1
    if keeps:
        return perform(action, EVERY, replace(how, yes=True))
    done = jobs.clear()
    echo(as_json({"done": done}) if how.wants_json else f"{action.counted(done)} deleted")
    return 0
