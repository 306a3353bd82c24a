"""The question before what cannot be taken back."""

from __future__ import annotations

import sys

import click


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
