"""``forkq doctor``: what could make this service lose, delay or refuse jobs; and ``forkq check``:
whether the code here fits the jobs that wait."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

import click

from ..config.config import Config
from ..default_client import use
from ..doctor.examination import all_findings
from ..doctor.finding import Finding, Level, as_text
from ..doctor.waiting.check import JobCheck, check_waiting
from ..runtime.app_loader import import_app
from ..runtime.exit_codes import INTERRUPTED
from .options import Number, checks_jobs, configuration, json_option, runs_tree
from .output import echo, echo_objects

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


@click.command()
@checks_jobs
@json_option
def check(wants_json: bool, **flags: Any) -> int:
    """Say whether this code can run the jobs that wait: before it is deployed.

    It imports the app here, and reads the queues, the schedule, the retries and what runs, on all
    shards, or on the one Redis that --against names. It changes nothing there. One line for each
    class and reason: how many jobs do not fit, where one of them is, and what to do. It shows names
    and types, never values of arguments.

    With --json: one object for each of these lines, and what was looked at on standard error.

    Exit codes: 0 if each job fits, 1 if one does not.
    """
    with redirect_stdout(sys.stderr):  # what the app prints
        found = _checked(configuration(**flags), is_one=flags.get("redis") is not None)
    if wants_json:
        echo_objects(one.as_dict() for one in found.mismatches)
    else:
        for one in found.mismatches:
            echo(str(one))
    for note in found.notes():
        echo(note, err=wants_json)
    return 0 if found.fits else 1


def _checked(config: Config, *, is_one: bool) -> JobCheck:
    """Imports the app, and looks at the jobs of all shards; of the default one if ``is_one``."""
    if not config.app:
        raise click.UsageError('name the code to check: give -r, or set app = "app.jobs"')
    use(config)
    import_app(config.app)
    servers = use(config).servers  # the app may have configured another address
    return check_waiting([servers.default] if is_one else servers, config.queue_names)
