"""``forkq doctor``: what could make this service lose, delay or refuse jobs."""

from __future__ import annotations

import json
import signal
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from ..config.config import Config
from ..doctor.examination import all_findings
from ..doctor.finding import Finding, Level, as_text
from ..runtime.exit_codes import INTERRUPTED
from .options import Number, configuration, json_option, runs_tree
from .output import echo

_INTERRUPTED: Final = (
    "forkq: interrupted: there is no verdict; the keys that it has made are deleted, or expire "
    "within ten minutes if Redis is away; run the same command again for a verdict"
)


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
@click.option(
    "--conformance",
    is_flag=True,
    help="Try what forkq needs of a server, and end with a verdict on it.",
)
@json_option
def doctor(
    unit: Path | None, grace: float | None, conformance: bool, wants_json: bool, **flags: Any
) -> int:
    """Check the server, the host, the app and the waiting jobs.

    With the flags of `forkq start`: it checks what that would run, and imports the app in a process
    of its own. One line for each check: ok, warn or fail, what was found, why it matters and what
    to do; checks that cannot be made for one reason share a line. With --json: one object a check.

    With --conformance: only the server, for one of a kind that you have not used yet. Each script
    does a real task there, under keys of its own, which are deleted afterwards. The last line says
    whether forkq works with it, with what, or why not.

    Exit codes: 0 if no check fails (a warning changes nothing), 1 if one fails, 2 if usage or
    configuration is wrong.
    """
    if conformance and (unit or grace):
        raise click.UsageError("--conformance is about the server: leave --unit and --grace out")
    config, levels = configuration(**flags), set[Level]()
    found = _tried(config) if conformance else all_findings(config, unit, grace)
    noted = _noted(found, levels)
    try:
        for line in (json.dumps(one.as_dict()) for one in noted) if wants_json else as_text(noted):
            echo(line)
    except KeyboardInterrupt:
        if not conformance:
            raise
        if isinstance(found, Generator):
            found.close()  # now, and not when Python likes
        echo(_INTERRUPTED, err=True)
        return INTERRUPTED
    return int("fail" in levels)


def _noted(findings: Iterable[Finding], levels: set[Level]) -> Iterator[Finding]:
    for finding in findings:
        levels.add(finding.level)
        yield finding


def _tried(config: Config) -> Iterator[Finding]:
    """What the server does of what forkq needs. TERM ends that as Ctrl-C does, so that its keys are
    deleted."""
    from ..doctor.conformance import conformance  # noqa: PLC0415 - it imports what a child does

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return conformance(config)
