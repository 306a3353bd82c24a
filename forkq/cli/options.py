"""What several commands share: lengths of time, queues that the shell completes, and the flags
that become a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from string import hexdigits
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import click

from ..config.config import KEYS, TYPES, Config
from ..config.load import load
from ..config.schema import base_of
from ..default_client import use
from ..errors import ForkqError, nearest
from ..servers import Server, Servers
from ..units import parse_age, parse_duration
from ..wire.printable import printable
from .shards import for_shards, shard_named

if TYPE_CHECKING:
    from ..api.queue import Queue

# How much a word must be like a command to be taken for that and for nothing else.
_SURELY: Final = 0.7


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``: callback of an option. Raises BadParameter."""
    return _read(parse_duration, value)


def age(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``, or since that time: callback of an option. Raises BadParameter."""
    return _read(parse_age, value)


def delay(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """The seconds in ``value``; a number alone is seconds, as in ``perform_in``: callback of an
    option. Raises BadParameter."""
    try:
        seconds = None if value is None else float(value)
    except ValueError:
        return _read(parse_duration, value)
    if seconds is not None and seconds < 0:
        raise click.BadParameter(f"{value} is in the past; give a time to wait, such as 90s")
    return seconds


def _read(parse: Callable[[str], float], value: str | None) -> float | None:
    try:
        return None if value is None else parse(value)
    except ForkqError as error:
        raise click.BadParameter(str(error)) from None


def complete_queues(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The queues that were ever pushed to. None if Redis cannot be asked."""
    try:
        return [name for name in _queue_names(context.params) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a message would be in the line that is typed
        return []


def _queue_names(flags: dict[str, Any]) -> list[str]:
    from .. import api  # noqa: PLC0415 - only when the shell asks

    finding = ("config", "environment", "tag", "pidfile", "redis")
    server = connected(configuration(**{name: flags.get(name) for name in finding}))
    return [name for name in api.queue_names(server) if name.isprintable()]


Command = TypeVar("Command", bound=Callable[..., Any])


class WholeNumber(click.IntRange):
    """A whole number within bounds. Click calls it an "integer range" where it refuses one."""

    name = "whole number"


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"


def flag_of(key: str, *names: str, about: str = "", **words: Any) -> Callable[[Command], Command]:
    """The flag that sets ``key``, of the type that the key is declared with. ``names`` are further
    names of it. ``{default}`` in ``about`` is the key's."""
    declared, base = KEYS[key], base_of(TYPES[key])
    initial = declared.initial
    default = f"{initial:g}" if isinstance(initial, float) else str(initial)
    if base is bool:
        words |= {"is_flag": True, "default": None}
    elif get_origin(base) is tuple:
        words |= {"multiple": True}
    elif get_origin(base) is Literal:
        words |= {"type": click.Choice(get_args(base))}
    elif base in (int, float):
        words |= {"type": base}
    shown = about.format(default=default) or None
    return click.option(*names, declared.flag, declared.parsed_as, help=shown, **words)


_FINDING = (
    click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml]."),
    flag_of("forkq.environment", "-e", metavar="E", about="Which environment's tables apply."),
    flag_of("forkq.tag", "-g", metavar="T", about="Name of this tree: titles, pidfile, web UI."),
    flag_of("forkq.pidfile", metavar="F", about="The file with the master's process id."),
)
_REDIS = flag_of("redis.url", metavar="URL", about="redis://..., unix://... or `embedded`.")
_AGAINST = flag_of(
    "redis.url", "--against", metavar="URL", about="The one Redis whose jobs are looked at."
)
_QUEUE = flag_of(
    "capsules.NAME.queues", "--queue", metavar="NAME[,WEIGHT]",
    about="Queue to work on, in order (repeatable) [default].",
)  # fmt: skip
_RUNNING = (
    flag_of(
        "forkq.app", "--require", metavar="APP",
        about="Module, module:attr or file that defines the jobs (repeatable).",
    ),
    flag_of("forkq.processes", about="`one` takes a third less memory [{default}]."),
    flag_of("forkq.workers", "-w", metavar="N", about="Children per capsule [{default}]."),
    flag_of(
        "capsules.NAME.concurrency", "-c", metavar="N", about="Processors per child [{default}]."
    ),
    _QUEUE,
    flag_of("forkq.timeout", "-t", metavar="S", about="Seconds to finish in [{default}]."),
    flag_of("log.format"),
    flag_of("log.level"),
)  # fmt: skip

_SHARD = click.option("--shard", metavar="NAME", help="One of [[redis.shards]], or `default`.")
_REQUIRE = _RUNNING[0]
_NO_IMPORT = click.option("--no-import", is_flag=True, help="Do not import the app.")


json_option = click.option("--json", "wants_json", is_flag=True, help="As JSON, for programs.")


def finds_master(command: Command) -> Command:
    """Adds the flags by which a command finds the running master."""
    return _with(_FINDING, command)


def app_options(command: Command) -> Command:
    """Adds the flags of a command that imports the app."""
    return _with((_REQUIRE, _NO_IMPORT), command)


def finds_redis(command: Command) -> Command:
    """Adds the flags by which a command finds Redis, and the embedded server; of several Redis it
    is about those that shards.py chooses."""
    return _with((*_FINDING, _REDIS, _SHARD), for_shards(command))


def finds_shards(command: Command) -> Command:
    """Adds the flags by which a command finds all shards: --redis would leave the others out."""
    return _with(_FINDING, command)


def runs_tree(command: Command) -> Command:
    """Adds every flag that sets a key of the configuration."""
    return _with((*_FINDING, _REDIS, *_RUNNING), command)


def checks_jobs(command: Command) -> Command:
    """Adds the flags that say which code is compared with the jobs of which Redis."""
    return _with((*_FINDING, _AGAINST, _REQUIRE, _QUEUE), command)


def configuration(**flags: Any) -> Config:
    """The configuration that these flags, the environment and the file make. Raises ConfigError.

    With a forkq.toml of a folder above, the command goes on as if it had been called there: the app
    is imported from that folder, and the master's files are those of that folder.
    """
    config = load(None, flags, os.environ, Path.cwd())
    if config.folder != Path.cwd():
        os.chdir(config.folder)
    return config.of_shard(shard_named() or config.shard)


def connected(config: Config) -> Server:
    """The server that the command is about; also for pushes of this process. Raises ForkqError."""
    return use(config).servers.default


def queue_named(name: str, server: Server) -> Queue:
    """The queue that a command names: on the shard that the command runs for, or all parts of one
    that is spread. Raises InvalidRule for a pattern."""
    from ..api.queue import Queue, whole_queue  # noqa: PLC0415 - few commands need it

    return Queue(name, server) if shard_named() else whole_queue(name, server)


def searched(config: Config) -> Server | Servers:
    """Where the command looks for a jid or a token: on the shard that --shard names, else on all of
    them. Raises ForkqError."""
    servers = use(config).servers
    return servers.default if shard_named() else servers


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


class VerbAnywhere(click.Group):
    """A group whose options may also come before the command: ``forkq queues --json list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_early = bool(args) and args[0].startswith("-") and args[0] not in ("-h", "--help")
        if is_early and not ctx.resilient_parsing:  # which a shell's TAB asks for
            at = self._verb_in(args)
            args = args if at is None else [args[at], *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command. The error for a wrong name says what was probably meant: a command, or
        the thing of that name."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {self._meant(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> str:
        """What was probably meant by a name that is no command. A name that is only a little like
        a command is more likely that of a thing: `default` is no `delete`."""
        if near := nearest(name, self.list_commands(ctx), _SURELY):
            return f"Did you mean {near!r}?"
        if "show" not in self.commands:
            near = nearest(name, self.list_commands(ctx))
            return f"Did you mean {near!r}?" if near else f"`{ctx.command_path} -h` lists them."
        return f"Did you mean `{ctx.command_path} {self._how_to_see(name)} {printable(name)}`?"

    def _how_to_see(self, name: str) -> str:
        """What shows the thing of that name: a job has a jid, which is hexadecimal."""
        lists = self.commands.get("list")
        takes = {option for one in lists.params for option in one.opts} if lists else ()
        if "--queue" not in takes or set(name.lower()) <= set(hexdigits):
            return "show"
        return "list --class" if "." in name else "list --queue"

    def _verb_in(self, args: list[str]) -> int | None:
        """Where the command is: the first that is neither an option nor the value of one."""
        options = [param for each in self.commands.values() for param in each.params]
        take_values = {
            name
            for option in options
            if isinstance(option, click.Option) and not (option.is_flag or option.count)
            for name in option.opts
        }
        skips = False
        for at, arg in enumerate(args):
            if skips:
                skips = False
            elif arg.startswith("-"):
                skips = arg in take_values
            else:
                return at if arg in self.commands else None
        return None


class ListFirst(VerbAnywhere):
    """A group that lists, or shows, where no command is given: ``forkq dead --class Mail`` is
    ``forkq dead list ...``, ``forkq limits`` is ``forkq limits show``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        if bare and self._verb_in(args) is None and not ctx.resilient_parsing:
            args = ["list" if "list" in self.commands else "show", *args]
        return super().parse_args(ctx, args)
