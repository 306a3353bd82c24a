"""``forkq push``: a job from the shell."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import click

from .. import registry
from ..default_client import announce_localhost, use
from ..errors import shown
from ..wire.payload import Payload
from ..wire.times import due
from ..wire.validation import validate
from .app import import_app
from .durations import delay as in_
from .options import app_options, configuration, finds_redis
from .pushable import check_pushable

_DIGITS: Final = re.compile(r"-?[0-9]{1000,}")
_LONGEST_EXAMPLE: Final = 60


@click.command(context_settings={"ignore_unknown_options": True})  # -7 is a number
@click.argument("name", metavar="CLASS")
@click.argument("args", nargs=-1, metavar="[ARGS-AS-JSON]...")
@click.option("--queue", metavar="Q", help="Queue to push to [the job's own].")
@click.option("--in", "delay", callback=in_, metavar="T", help="Run it later: 90s, 5m, 1h, 2d.")
@click.option("--force", is_flag=True, help="Push what no process that is known can run, too.")
@app_options
@finds_redis
def push(
    name: str,
    args: tuple[str, ...],
    queue: str | None,
    delay: float | None,
    force: bool,
    no_import: bool,
    **flags: Any,
) -> int:
    """Push a job and print its jid. Each argument is JSON: 7, '"text"', '[1, 2]'.

    If an app is named (app in forkq.toml, or -r), it is imported: the job gets the options of its
    definition (queue, retry and others), and must be one that the app has. Exit code 1, and
    nothing is pushed, if no capsule of forkq.toml and no process that runs now serves the queue.
    """
    given = [_parsed(number, text) for number, text in enumerate(args, 1)]
    config = configuration(**flags)
    client = use(config)
    announce_localhost(config)
    if config.app and not no_import:
        import_app(config.app)
        use(config)  # the app may have configured another address
    spec = registry.find(name)
    job: Payload = {**(spec.options if spec else {}), "class": name, "args": given}
    job |= {key: value for key, value in (("queue", queue), ("at", delay)) if value is not None}
    validate({key: value for key, value in job.items() if key != "at"}, "off")
    due(delay or 0)
    if not force:
        check_pushable(
            client.servers, job, spec, config, imported=bool(config.app) and not no_import
        )
    jid = client.push(job)
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
