"""``forkq doctor``: what could make this service lose, delay or refuse jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..doctor.examination import all_findings
from .options import Number, configuration, json_option, runs_tree
from .output import echo


@click.command()
@runs_tree
@click.option(
    "--unit", metavar="FILE", help="A unit file of systemd, to check its TimeoutStopSec.",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
@click.option(
    "--grace", metavar="SECONDS", help="terminationGracePeriodSeconds of Kubernetes, to check it.",
    type=Number(min=0),
)  # fmt: skip
@json_option
def doctor(unit: Path | None, grace: float | None, wants_json: bool, **flags: Any) -> int:
    """Check the server, the host, the app and the waiting jobs.

    With the flags of `forkq start`: it checks what that would run, and imports the app in a process
    of its own. One line for each check: ok, warn or fail, what was found, why it matters and what
    to do. With --json: one object a line.

    Exit codes: 0 if no check fails (a warning changes nothing), 1 if one fails, 2 if usage or
    configuration is wrong.
    """
    failed = False
    for finding in all_findings(configuration(**flags), unit, grace):
        failed |= finding.level == "fail"
        echo(json.dumps(finding.as_dict()) if wants_json else str(finding))
    return int(failed)
