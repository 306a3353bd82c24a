"""``forkq push``: a job from the shell."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import click

from ..default_client import use
from ..errors import shown
from ..wire.payload import DEFAULT_QUEUE, Payload
from .options import configuration, finds_redis
from .queues import warn_of_unserved_queue

_DIGITS: Final = re.compile(r"-?[0-9]{1000,}")
_LONGEST_EXAMPLE: Final = 60


@click.command(context_settings={"ignore_unknown_options": True})  # -7 is a number
@click.argument("name", metavar="CLASS")
@click.argument("args", nargs=-1, metavar="[ARGS-AS-JSON]...")
@click.option("--queue", metavar="Q", help="Queue to push to [default].")
@click.option("--in", "delay", type=float, metavar="S", help="Run it S seconds from now.")
@finds_redis
def push(
    name: str, args: tuple[str, ...], queue: str | None, delay: float | None, **flags: Any
) -> int:
    """Push a job and print its jid. Each argument is JSON: 7, '"text"', '[1, 2]'.

    This command does not load the app, so it does not know the options that the job itself has
    (queue, retry and others). Give the queue with --queue. For all options of the job, push from
    Python, as in: python -c "from app.jobs import mail; mail.perform_async(7)"
    """
    config = configuration(**flags)
    client = use(config)
    job: Payload = {"class": name, "args": [_parsed(number, a) for number, a in enumerate(args, 1)]}
    if queue is not None:
        job["queue"] = queue
    if delay is not None:
        job["at"] = delay
    jid = client.push(job)
    if config.source is not None:
        warn_of_unserved_queue(queue or DEFAULT_QUEUE, config, "--queue ")
    click.echo(jid if jid is not None else "vetoed by a client middleware")
    return 0 if jid is not None else 1


def _parsed(number: int, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        reason = "is nested too deeply; pass a flatter structure"
    except ValueError:
        reason = f"is not JSON: {shown(text)}; a string needs its quotes, as in '{_quoted(text)}'"
        if _DIGITS.fullmatch(text):
            reason = f"is a number of {len(text):,} digits, more than Python reads; pass it as text"
    raise click.BadParameter(f"argument {number} {reason}")


def _quoted(text: str) -> str:
    return json.dumps(text) if len(text) <= _LONGEST_EXAMPLE else '"..."'


def _no_constant(name: str) -> Any:
    raise ValueError(name)
