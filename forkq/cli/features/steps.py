"""``forkq steps``: what a job remembers, or which jobs wait for signals; ``forkq signal``."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ...api.features.steps import job_steps, waiting_jobs
from ...errors import InvalidJob, shown
from ...features.steps.parts import STAYS_FOR
from ...screens.features.steps import STEPS, WAITING_JOBS
from ...servers import Server
from ...steps.signals import signal_to
from ...wire.printable import shown_name
from ..options import configuration, duration, finds_redis, json_option, searched
from ..output import echo, print_values


@click.command()
@click.argument("jid", required=False)
@json_option
@finds_redis
def steps(jid: str | None, wants_json: bool, **flags: Any) -> int:
    """Show which steps a job has done, and what it waits for. Exit code 1 if it remembers none.

    Without a JID it lists the jobs that wait for signals. The values of jobs with secret arguments
    are not shown.
    """
    where = searched(configuration(**flags))
    if jid is None:
        print_values(WAITING_JOBS, waiting_jobs(where), wants_json=wants_json)
        return 0
    found = job_steps(jid, where)
    if not found and not wants_json:
        echo(f"{shown_name(jid)} remembers no steps: it has done none, or has ended")
        return 1
    print_values(STEPS, found, wants_json=wants_json)
    return 0 if found else 1


@click.command()
@click.argument("event")
@click.option("--key", metavar="KEY", help="The key for which the jobs wait, such as an order.")
@click.option("--data", metavar="JSON", help="What the jobs get.")
@click.option(
    "--ttl", callback=duration, metavar="T", help="How long it stays: 2h; 30d if left out."
)
@click.option("--for-one", is_flag=True, help="Only one job gets it, which has waited longest.")
@finds_redis
def signal(
    event: str, key: str | None, data: str | None, ttl: float | None, for_one: bool, **flags: Any
) -> int:
    """Let the jobs go on that wait for an event, and those that will wait for it. Exit code 1 if
    another signal stands there: the first one counts."""
    try:
        value = None if data is None else msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidJob(
            f"--data is {shown(data)}, which is no JSON ({error}); write text as '\"text\"'"
        ) from None
    where = searched(configuration(**flags))
    servers = [where] if isinstance(where, Server) else list(where)
    stays = STAYS_FOR if ttl is None else ttl
    is_first = signal_to(servers, event, key, value, stays, for_one=for_one)
    name = shown_name(event if key is None else f"{event}:{key}")
    echo(f"{name} is sent" if is_first else f"{name} was sent before: the first signal counts")
    return 0 if is_first else 1
