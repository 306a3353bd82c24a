"""Which shard of ``[[redis.shards]]`` a command is about.

A command that names a queue is about the shard of that queue; of a queue that is spread over
several, about the whole queue or, if it reads a set of jobs, about one part after the other. One
that lists shows each shard under its name. Any other one asks for ``--shard``. Without shards, each
runs as it is.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import click

from ..config.config import Config
from ..config.load import load
from ..config.shards import parts_of
from ..errors import ServerUnavailable
from ..limits.patterns import is_pattern
from .output import echo, echo_objects

Callback: TypeAlias = Callable[..., Any]
Command = TypeVar("Command", bound=Callback)

# Where a command's context has the name of the shard that it is about.
_KEY: Final = "forkq.shard"
_FINDING: Final = ("config", "environment", "tag", "pidfile", "redis")
# The first words of commands that are about all shards: a push goes to that of its queue by itself,
# a jid, a token, a batch or a flow is looked for on each, a signal is sent to each, and a shell is
# about all of them; metrics and screens show them all.
_ALL: Final = frozenset(
    {
        *("push", "find", "retry", "cancel", "undo", "result", "steps", "signal"),
        *("batches", "flows", "shell", "metrics", "web", "top"),
    }
)
# They list, or do to each shard what they do to one.
_EACH: Final = frozenset(
    {
        *("stats", "running", "stuck", "mark-deploy", "queues list", "processes list"),
        *(
            "classes list",
            "jobs list",
            "retries list",
            "dead list",
            "scheduled list",
            "limits show",
            "cron list",
            "cron next",
        ),
    }
)
# They are about all parts of a spread queue at once.
_WHOLE: Final = frozenset(
    {
        *("pause", "resume", "queues show", "queues clear", "jobs delete", "jobs kill"),
        *("jobs move", "limits set", "limits unset", "limits reset"),
    }
)


def shard_named() -> str:
    """The shard that the command runs for now; "" if it runs for none."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_KEY, ""))


def by_shard(config: Config) -> dict[str, Config]:
    """The configuration for each shard that the command is about, by its name; "" for the one that
    --shard names, and for the only Redis."""
    if shard_named() or not config.shards:
        return {"": config}
    return {shard.name: config.of_shard(shard.name) for shard in config.shards}


def for_shards(callback: Command) -> Command:
    """Runs the callback of a command for the shards that it is about."""

    @wraps(callback)
    def run(*args: Any, **given: Any) -> Any:
        shard = given.pop("shard", None)
        if _is_group():
            return callback(*args, **given)
        flags = {name: given.get(name) for name in _FINDING}
        config = load(None, flags, os.environ, Path.cwd())
        if shard is not None:
            config.of_shard(shard)  # raises ConfigError for one that there is not
        elif not config.shards or _command().partition(" ")[0] in _ALL:
            return callback(*args, **given)
        runs = [(shard, given)] if shard is not None else list(_runs(config, given))
        if len(runs) == 1:
            return _run_on(runs[0][0], callback, args, runs[0][1])
        code = _run_on_each(runs, callback, args)
        if _command() == "queues list" and not given.get("wants_json"):
            _print_spread_queues(config)
        return code

    return cast("Command", run)


def _is_group() -> bool:
    """Whether a command below this one has been called (``forkq web hash-password``)."""
    return click.get_current_context().invoked_subcommand is not None


def _command() -> str:
    """The command as a user writes it, such as "queues list"."""
    return click.get_current_context().command_path.partition(" ")[2]


def _runs(config: Config, given: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each shard that the command is about, with the arguments that are for it."""
    names = [shard.name for shard in config.shards]
    several = given.get("queues")
    one = given.get("queue")
    if several:
        for place in ("", *names):
            mine = tuple(queue for queue in several if place in _places(config, queue))
            if mine:
                yield place, {**given, "queues": mine}
    elif isinstance(one, str) and not is_pattern(one):
        yield from ((place, given) for place in _places(config, one))
    elif _command() in _EACH and not given.get("name"):
        yield from ((name, given) for name in names)
    else:
        raise click.UsageError(f"of which shard? Name it with --shard: {', '.join(names)}")


def _places(config: Config, queue: str) -> list[str]:
    """The shards for which the command runs, if it names that queue; "" is all parts of a spread
    queue at once."""
    names = [shard.name for shard in parts_of(config.shards, queue)]
    return [""] if len(names) > 1 and _command() in _WHOLE else names


def _print_spread_queues(config: Config) -> None:
    """Says of each queue that is spread over several shards how many jobs it has in all."""
    from ..default_client import use  # noqa: PLC0415 - every command imports this module
    from ..screens.shards import sizes, sizes_in_words  # noqa: PLC0415

    servers = use(config).servers
    for name in config.spread_queues:
        echo(f"\n{sizes_in_words(name, sizes(name, servers.parts_of(name)))}")


def _run_on(shard: str, callback: Callback, args: Iterable[Any], given: dict[str, Any]) -> Any:
    click.get_current_context().meta[_KEY] = shard
    return callback(*args, **given)


def _run_on_each(
    runs: Sequence[tuple[str, dict[str, Any]]], callback: Callback, args: tuple[Any, ...]
) -> int:
    """Runs the command for one shard after the other. A shard that is down hides no other one."""
    codes, failed = [], 0
    for number, (shard, given) in enumerate(runs):
        try:
            if given.get("wants_json"):
                codes.append(_print_json(shard, callback, args, given))
            else:
                title = f"shard {shard}" if shard else "over several shards"
                click.echo(f"{'' if number == 0 else chr(10)}{title}")
                codes.append(_run_on(shard, callback, args, given) or 0)
        except ServerUnavailable as error:
            echo(f"forkq: shard {shard}: {error}", err=True)
            failed = error.exit_code
    best = max if _command() == "stuck" else min
    return failed or best(codes, default=0)


def _print_json(shard: str, callback: Callback, args: Iterable[Any], given: dict[str, Any]) -> int:
    """Prints the objects of one shard, each object with the shard's name."""
    with redirect_stdout(io.StringIO()) as printed:
        code = _run_on(shard, callback, args, given) or 0
    echo_objects({"shard": shard, **json.loads(line)} for line in printed.getvalue().splitlines())
    return int(code)
