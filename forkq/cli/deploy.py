"""``forkq mark-deploy``: a mark in the history of metrics."""

from __future__ import annotations

import subprocess
from typing import Any

import click

from ..default_client import use
from ..errors import ForkqError
from ..store.deploys import mark
from ..wire.printable import printable
from .options import configuration, finds_redis
from .output import echo


@click.command("mark-deploy")
@click.argument("label", required=False)
@finds_redis
def mark_deploy(label: str | None, **flags: Any) -> int:
    """Mark a deploy for the graphs of metrics; LABEL is the latest commit's by default.

    Hosts that deploy together make one mark: the same label is not marked again for a minute. Other
    labels of the same minute are shown together. Exit code 0 in either case.
    """
    client = use(configuration(**flags))
    label = label or _latest_commit()
    with client.connection() as connection:
        marked = mark(connection, client.keys, label)
    if marked is None:
        echo(f"marked already, less than a minute ago, perhaps by another host: {printable(label)}")
    else:
        others = "" if marked == label else f" (this minute says: {printable(marked)})"
        echo(f"marked: {printable(label)}{others}")
    return 0


def _latest_commit() -> str:
    """Short hash and subject of HEAD in the working directory. Raises ForkqError."""
    remedy = "name the deploy: forkq mark-deploy LABEL"
    try:
        git = subprocess.run(
            ["git", "log", "-1", "--format=%h %s"],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise ForkqError(f"there is no git here to ask for the latest commit; {remedy}") from None
    if git.returncode or not git.stdout.strip():
        reason = (git.stderr.strip().splitlines() or ["no commit yet"])[0]
        raise ForkqError(f"the latest commit is not known (git: {reason}); {remedy}")
    return git.stdout.strip()
