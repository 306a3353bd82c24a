"""``forkq result``: what a job has returned, or why it has not."""

from __future__ import annotations

from typing import Any

import click

from ...api.features.results import job_result
from ...screens.features.results import kept_until, result_object, result_text
from ...wire.printable import shown_name
from ..options import configuration, finds_redis, json_option, searched
from ..output import as_json, echo


@click.command()
@click.argument("jid")
@json_option
@finds_redis
def result(jid: str, wants_json: bool, **flags: Any) -> int:
    """Show what a job has returned, or how it has ended. Exit code 0 if it is done, 1 if it is not,
    or if nothing is known.

    Results are kept of jobs with result_ttl. Those of jobs with secret arguments are not shown.
    """
    found = job_result(jid, searched(configuration(**flags)))
    if found is None:
        unknown = {"jid": jid, "outcome": None}
        text = "is unknown, or its result has expired; `result_ttl` keeps results"
        echo(as_json(unknown) if wants_json else f"{shown_name(jid)} {text}")
        return 1
    said = f"{shown_name(found.jid)} ({shown_name(found.job)}) is {result_text(found)}"
    if not found.outcome:
        said = f"{shown_name(found.jid)} ({shown_name(found.job)}): {result_text(found)}"
    echo(as_json(result_object(found)) if wants_json else f"{said}; {kept_until(found)}")
    return 0 if found.outcome == "done" else 1
