"""``forkq push``: a job from the command line, checked as far as the app tells."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from typing import Any, Final

import click

from .. import api, registry
from ..config.config import Config
from ..default_client import announce_localhost, use
from ..errors import ForkqError, InvalidJob, NotPermitted, nearest, shown
from ..limits.patterns import matches_any
from ..runtime.app_loader import import_app
from ..servers import first_found
from ..wire.payload import DEEPEST, DEFAULT_QUEUE, Payload, beyond
from ..wire.printable import shown_name
from ..wire.times import due
from ..wire.validation import validate
from .options import app_options, configuration, finds_redis
from .options import delay as in_
from .output import echo

_FORCE: Final = "--force pushes it all the same"
_MOST: Final = 10  # names of queues
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
    if beyond(text.encode(), sys.maxsize, DEEPEST):
        raise click.BadParameter(
            f"argument {number} is nested too deeply (more than {DEEPEST} levels); pass a flatter "
            "structure"
        )
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        reason = f"is not JSON: {shown(text)}; a string needs its quotes, as in '{_quoted(text)}'"
        if _DIGITS.fullmatch(text):
            reason = f"is a number of {len(text):,} digits, more than Python reads; pass it as text"
    raise click.BadParameter(f"argument {number} {reason}")


def _quoted(text: str) -> str:
    return json.dumps(text) if len(text) <= _LONGEST_EXAMPLE else '"..."'


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def check_pushable(
    servers: api.Servers,
    job: Payload,
    spec: registry.JobSpec | None,
    config: Config,
    *,
    imported: bool,
) -> None:
    """Raises InvalidJob or ForkqError if no known process can run ``job``. ``spec`` is its
    definition in the app, if that was ``imported``."""
    queue = str(job.get("queue", DEFAULT_QUEUE))
    is_ours = config.source is not None and matches_any(queue, config.queue_names)
    if spec is not None:
        _check_count(job, spec)
    elif imported and (is_ours or "queue" not in job):
        raise InvalidJob(_unknown(str(job["class"]), config))
    if not is_ours:
        _check_queue(servers, queue, config)


def _check_count(job: Payload, spec: registry.JobSpec) -> None:
    fewest, most = spec.arity
    count = len(job["args"])
    if not fewest <= count <= most:
        raise InvalidJob(f"job {spec.name!r} takes {spec.takes}, not {count}; {_FORCE}")
    if spec.reader is not None:
        spec.reader.read(job["args"])


def _unknown(name: str, config: Config) -> str:
    names = registry.names()
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else "`forkq config check` lists its jobs; "
    apps = ", ".join(config.app)
    return f"the app {apps} has no job {shown_name(name)!r}: {hint}{_FORCE} (a job for Sidekiq)"


def _check_queue(servers: api.Servers, queue: str, config: Config) -> None:
    live: set[str] = set()

    def is_served(server: api.Server) -> bool | None:
        live.update(name for process in api.processes(server) for name in process.queues)
        return matches_any(queue, live) or None

    try:
        if not first_found(servers.parts_of(queue), is_served):
            raise ForkqError(_unserved(queue, config, live))
    except NotPermitted as error:
        echo(f"forkq: whether {queue!r} is served is not known: {error}", err=True)


def _unserved(queue: str, config: Config, live: set[str]) -> str:
    declared = config.queue_names if config.source else []
    near = nearest(queue, sorted({*declared, *live}))
    place = f"no capsule in {config.source} ({_some(declared)}) and " if config.source else ""
    hint = f"did you mean {shown_name(near)!r}? " if near else ""
    return (
        f"{place}no process that runs now ({_some(live)}) works on the queue "
        f"{shown_name(queue)!r}, so nothing was pushed; {hint}{_FORCE}"
    )


def _some(queues: Collection[str]) -> str:
    """The sentence about which queues are served, with the first of them."""
    if not queues:
        return "there is none"
    more = len(queues) - _MOST
    names = ", ".join(map(shown_name, sorted(queues)[:_MOST]))
    return f"they serve {names}{f' and {more:,} more' if more > 0 else ''}"
