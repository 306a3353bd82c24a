"""``forkq limits``: how many jobs of a queue may run, and how fast they may start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from .. import api
from ..limits.overrides import Fields, limit_to, process_limit_to, rate_to
from ..limits.rules import HIGHEST_LIMIT
from ..wire.printable import shown_name
from .options import WholeNumber, configuration, connected, finds_redis, json_option
from .output import as_json, echo, echo_table
from .queues import warn_of_unknown_queues

_TITLES: Final = ("QUEUE", "BUSY", "LIMIT", "PER CHILD", "RATE", "TOKENS", "SIZE", "")
_NO_QUEUES: Final = "no job has been pushed to any queue, and no queue has a rule"
_CHANGED_NOTE: Final = (
    "* changed at run time; `forkq limits reset QUEUE` goes back to the configuration"
)
_COUNT: Final = WholeNumber(0, HIGHEST_LIMIT)


@click.group()
def limits() -> None:
    """Limit how many jobs of a queue run, and how fast they start.

    What is set here counts at once on all hosts, outlives restarts, and wins over forkq.toml.
    """


@limits.command("show")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@json_option
@finds_redis
def show_(queues: tuple[str, ...], wants_json: bool, **flags: Any) -> int:
    """Show the queues with their rules, their jobs in progress (busy) and waiting (size)."""
    config = configuration(**flags)
    server = connected(config)
    for name in queues:
        api.Queue(name, server)  # raises on a pattern
    warn_of_unknown_queues(server, queues, config)
    states = api.queues(*queues, server=server)
    if wants_json:
        click.echo(as_json([asdict(state) for state in states]))
    else:
        _print(states)
    return 0


def _print(states: Sequence[api.QueueState]) -> None:
    echo_table([_row(state) for state in states], _TITLES, _NO_QUEUES)
    if any(state.changed for state in states):
        echo(f"\n{_CHANGED_NOTE}")


@limits.command("set")
@click.argument("queue")
@click.argument("limit", required=False, type=_COUNT, metavar="[N]")
@click.option("--process", "process", type=_COUNT, metavar="N", help="At most N in one child.")
@click.option("--rate", metavar="RATE", help="100/minute, 5/second, 10/30s...")
@click.option(
    "--burst", type=WholeNumber(1, HIGHEST_LIMIT), metavar="N", help="With --rate: N at once."
)
@finds_redis
def set_(
    queue: str,
    limit: int | None,
    process: int | None,
    rate: str | None,
    burst: int | None,
    **flags: Any,
) -> int:
    """Let at most N jobs of a queue be in progress on all hosts, 0 for none."""
    if burst is not None and rate is None:
        raise click.UsageError("--burst belongs to a --rate; give both")
    fields: dict[str, str] = {}
    if limit is not None:
        fields |= limit_to(limit)
    if process is not None:
        fields |= process_limit_to(process)
    if rate is not None:
        fields |= rate_to(rate, burst)
    if not fields:
        raise click.UsageError("to what? Give a number, --process N or --rate RATE")
    return _change(queue, fields, flags)


@limits.command()
@click.argument("queue")
@click.option("--process", "process", is_flag=True, help="The limit of each child.")
@click.option("--rate", "rate", is_flag=True, help="The rate.")
@finds_redis
def unset(queue: str, process: bool, rate: bool, **flags: Any) -> int:
    """Lift a queue's limit, also one that forkq.toml has. `reset` goes back to that."""
    fields: dict[str, str] = {}
    if process:
        fields |= process_limit_to(None)
    if rate:
        fields |= rate_to(None)
    return _change(queue, fields or limit_to(None), flags)


@limits.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@finds_redis
def reset(queues: tuple[str, ...], **flags: Any) -> int:
    """Forget what was changed at run time, of these queues or of all: forkq.toml counts again."""
    server = connected(configuration(**flags))
    chosen = [api.Queue(name, server) for name in queues or _changed(server)]
    for queue in chosen:
        queue.reset()
        echo(f"{shown_name(queue.name)}: as configured")
    if not chosen:
        echo("nothing was changed at run time")
    return 0


def _change(name: str, fields: Fields, flags: dict[str, Any]) -> int:
    config = configuration(**flags)
    server = connected(config)
    queue = api.Queue(name, server)
    warn_of_unknown_queues(server, [name], config)
    queue.change(fields)
    [state] = api.queues(name, server=server)
    echo(f"{shown_name(name)}: {_summary(state)}")
    return 0


def _changed(server: api.Server) -> Sequence[str]:
    return [state.name for state in api.queues(server=server) if state.changed]


def _row(state: api.QueueState) -> tuple[str, ...]:
    return (
        state.name,
        f"{state.busy:,}",
        _cell(state, "limit", state.limit),
        _cell(state, "process_limit", state.process_limit),
        _cell(state, "rate", _rate(state)),
        "-" if state.tokens is None else f"{state.tokens:.1f}",
        f"{state.size:,}",
        ", ".join(_marks(state)),
    )


def _cell(state: api.QueueState, rule: str, value: object) -> str:
    if rule in state.changed:
        return f"{'none' if value is None else value}*"
    return "-" if value is None else str(value)


def _rate(state: api.QueueState) -> str | None:
    if state.rate is None or state.burst is None:
        return state.rate
    return f"{state.rate} burst {state.burst:g}"


def _marks(state: api.QueueState) -> list[str]:
    marks = ["paused"] if state.paused else []
    return [*marks, "blocking"] if state.blocking else marks


def _summary(state: api.QueueState) -> str:
    limit = "no limit" if state.limit is None else f"limit {state.limit}"
    process = "" if state.process_limit is None else f", {state.process_limit} per child"
    rate = "" if state.rate is None else f", {_rate(state)}"
    return f"{limit}{process}{rate}; busy {state.busy}, size {state.size}"
