"""``forkq push``: a job from the shell."""

from __future__ import annotations

import json
from typing import Any

import click

from ..client import use
from ..connection import ConnectionLost, RedisError, refuses
from ..errors import InvalidJob, ServerUnavailable
from ..payload import Job
from ..redis_url import redacted_url
from .options import configuration, finds_redis


@click.command()
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
    job: Job = {"class": name, "args": [_parsed(number, a) for number, a in enumerate(args, 1)]}
    if queue is not None:
        job["queue"] = queue
    if delay is not None:
        job["at"] = delay
    try:
        jid = client.push(job)
    except (*ConnectionLost, RedisError) as error:
        raise _not_pushed(config.redis.url, error) from None
    click.echo(jid if jid is not None else "vetoed by a client middleware")
    return 0 if jid is not None else 1


def _not_pushed(url: str, error: Exception) -> ServerUnavailable:
    said = f"Redis at {redacted_url(url)}: {error}"
    hint = "; a password belongs into the URL: redis://:PASSWORD@HOST" if refuses(error) else ""
    return ServerUnavailable(f"{said}{hint}")


def _parsed(number: int, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        raise InvalidJob(
            f"argument {number} is not JSON: {text}; a string needs its quotes, as in "
            f"'{json.dumps(text)}'"
        ) from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)
