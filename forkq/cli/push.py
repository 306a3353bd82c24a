"""``forkq push``: a job from the shell."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import click

from ..config.config import Config
from ..default_client import use
from ..errors import shown
from ..limits.patterns import among
from ..wire.payload import DEFAULT_QUEUE, Payload
from .options import configuration, finds_redis

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
    """Push a job and print its jid. Each argument is JSON: 7, '"text"', '[1, 2]'."""
    config = configuration(**flags)
    client = use(config)
    job: Payload = {"class": name, "args": [_parsed(number, a) for number, a in enumerate(args, 1)]}
    if queue is not None:
        job["queue"] = queue
    if delay is not None:
        job["at"] = delay
    jid = client.push(job)
    _warn_of_idle_queue(config, queue or DEFAULT_QUEUE)
    click.echo(jid if jid is not None else "vetoed by a client middleware")
    return 0 if jid is not None else 1


def _warn_of_idle_queue(config: Config, queue: str) -> None:
    """A job in a queue that nobody works on waits for ever, and nothing else would say so."""
    if config.source is not None and not among(queue, config.queue_names):
        click.echo(
            f"forkq: no capsule in {config.source} works on the queue {queue!r}; "
            f"--queue {' or '.join(config.queue_names)}?",
            err=True,
        )


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
