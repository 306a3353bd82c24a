"""One action on many jobs: counted, asked for, watched, reported, and interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import click

from ..api import Filter, Outcome
from ..api.changes import UNDO_TIME
from ..errors import ServerUnavailable
from ..runtime.exit_codes import INTERRUPTED
from ..units import plural
from .output import as_json_line, echo
from .progress import ActionProgress
from .question import agreed, need_terminal

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--all", "everything", is_flag=True, help="All of them."),
    click.option("--dry-run", is_flag=True, help="Only count them."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
)


def acts(command: Command) -> Command:
    """Adds the options of a command that acts on many jobs."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class How:
    """What those options say. ``most``: at most so many jobs."""

    dry_run: bool = False
    yes: bool = False
    most: int | None = None
    wants_json: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """What is done: ``verb`` and ``done`` are its name ("retry", "enqueued"), ``jobs`` what it is
    about ("dead job"). ``run`` is a method of the API, such as ``JobSet.retry_all``.
    ``loss`` says what goes for good because of so many jobs, if anything does."""

    verb: str
    done: str
    jobs: str
    run: Callable[..., Outcome]
    loss: Callable[[int], str] = lambda _: ""

    def counted(self, count: int) -> str:
        """Such as "1,204 dead jobs"."""
        return plural(count, self.jobs)


def perform(action: Action, where: Filter, how: How) -> int:
    """Does it, after a question. Returns the exit code: 0 if at least one job was acted on (or
    would be, in a dry run), 1 if none was, 130 after Ctrl-C."""
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
    return _report(action, outcome, how)


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
        click.echo(as_json_line(asdict(outcome)))
    elif not outcome.matched:
        return _nothing(action)
    else:
        echo(f"{action.counted(outcome.matched)} would be {action.done}")
    _print_loss(action, outcome.matched)
    return 0 if outcome.matched else 1


def _report(action: Action, outcome: Outcome, how: How) -> int:
    if how.wants_json:
        click.echo(as_json_line(asdict(outcome)))
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
    return "; ".join(parts)
