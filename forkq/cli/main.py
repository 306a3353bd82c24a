"""The command line: its groups, and how errors are shown."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..command_imports import raise_interrupt
from ..errors import ForkqError, nearest
from ..runtime.exit_codes import INTERRUPTED, NO_READER
from .output import echo

_FAILURE = 1
_USAGE = 2
_REDIS_UNUSABLE = 6

_STDOUT = 1
# The errors of a write to a full disk, to /dev/full or to a closed descriptor.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)


# Command, module beside this one, and its name there if that is another. A command's module is
# loaded when the command is run: `forkq status` needs neither redis-py nor the master's code.
_COMMANDS = {
    "start": "start",
    "quiet": "tree",
    "restart": "tree",
    "stop": "tree",
    "status": "tree",
    "push": "push",
    "shell": "shell",
    "find": "find",
    "running": "find",
    "stuck": "find",
    "retry": "find",
    "cancel": "find",
    "undo": "find",
    "stats": "stats",
    "cron": "cron",
    "metrics": "metrics",
    "mark-deploy": "metrics",
    "queues": "queues",
    "shards": "shard_commands",
    "pause": "queues",
    "resume": "queues",
    "limits": "queues",
    "classes": "classes",
    "unique": "features.unique",
    "batches": "features.batches",
    "flows": "features.flows",
    "result": "features.results",
    "steps": "features.steps",
    "signal": "features.steps",
    "jobs": "jobs",
    "retries": "jobs",
    "dead": "jobs",
    "scheduled": "jobs",
    "processes": "processes",
    "config": "config",
    "doctor": "doctor",
    "check": "doctor",
    "demo": "first_steps",
    "adopt": "adopt",
    "init": "first_steps",
    "web": "web",
    "top": "top",
}


# They start, signal or inspect processes as Unix has them. The others work on Windows too.
_OF_UNIX = frozenset({"start", "tree", "doctor", "first_steps", "web", "top"})


# How ``forkq --help`` lists them; a command that no group names is in the last one.
_GROUPS = {
    "Run": ("init", "start", "quiet", "stop", "restart", "status", "push", "shell", "demo"),
    "Look": (
        *("stats", "running", "stuck", "find", "result", "steps", "processes", "queues", "jobs"),
        *("retries", "dead", "scheduled", "classes", "unique", "batches", "flows", "shards"),
        *("doctor", "check", "top", "web", "metrics"),
    ),
    "Act": (
        *("retry", "cancel", "undo", "signal", "pause", "resume", "limits", "cron"),
        "mark-deploy",
    ),
    "Configure": ("config", "adopt", "version"),
}


class _Commands(click.Group):
    """The top-level commands, each loaded when it is run or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_COMMANDS])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands by what they are for."""
        left = set(self.list_commands(ctx)).difference(*_GROUPS.values())
        for title, names in _GROUPS.items():
            more = sorted(left) if title == "Configure" else ()
            rows = [(name, self._short_help(ctx, name)) for name in (*names, *more)]
            with formatter.section(title):
                formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=90)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not hasattr(os, "fork") and _COMMANDS.get(cmd_name) in _OF_UNIX:
            return _refused(cmd_name)
        if cmd_name in _COMMANDS:
            module = importlib.import_module(f".{_COMMANDS[cmd_name]}", __package__)
            _end_imports()
            command: click.Command = getattr(module, cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses options before the command, and says where they go. Some other programs take them
        there."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if not any(arg in _COMMANDS for arg in args):
                raise
            where = f"Options follow the command: forkq COMMAND {error.option_name}"
            ctx.fail(f"{error.format_message()} {where}")

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Makes the context, quiet if the reader goes: ``--help`` is printed here, too."""
        with _quiet_without_reader():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        with _quiet_without_reader():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command. The error for a wrong name has the one that was probably meant: click
        looks only at commands that are loaded."""
        name = args[0]
        is_known = name.startswith("-") or self.get_command(ctx, name) is not None
        if not is_known and not ctx.resilient_parsing:  # a shell that completes wants no message
            near = nearest(name, self.list_commands(ctx), 0.75)
            hint = f" Did you mean {near!r}?" if near else " `forkq --help` lists them."
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """Ends quietly, as Unix tools do, if the reader of standard output has gone: click would exit
    with 1, which means that nothing was found or done."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(NO_READER) from None


def _end_imports() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, and the garbage collector is on, if
    ``__main__.py`` has stopped them. What was imported so far is left out: it stays, and a forked
    child that does not touch it shares its memory."""
    raise_interrupt()
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _refused(name: str) -> click.Command:
    """The command in place of one that cannot run on this system."""

    def refuse() -> None:
        raise click.UsageError(
            f"forkq {name} needs a Unix (Linux or macOS); pushing, and looking in, work here too"
        )

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, help="Needs a Unix.", callback=refuse, context_settings=anything)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the children cannot "
    "boot, 4 no master is running, 5 one is running already, 6 Redis cannot be used, 7 Redis is a "
    "replica, 8 start again later, 130 interrupted by Ctrl-C, 141 no program reads the output.",
)
@click.version_option(__version__, message="forkq %(version)s")
def cli() -> None:
    """Sidekiq's job model for Python, run by a pre-forking supervisor."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"forkq {__version__}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Exits; a mistake of the user's is a message, never a traceback."""
    _print_anything()
    code = _run(arguments)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = _cannot_write(error)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Runs one command. Returns the exit code."""
    try:
        _refuse_bytes(sys.argv[1:] if arguments is None else arguments)
        code = cli.main(arguments, prog_name="forkq", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return _USAGE
    except click.ClickException as error:
        error.show()
        return _FAILURE
    except ForkqError as error:
        return _fail(str(error), error.exit_code)
    except _redis_errors() as error:
        return _fail(f"Redis: {error}", _REDIS_UNUSABLE)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        return _cannot_write(error)
    return code if isinstance(code, int) else 0


def _redis_errors() -> tuple[type[BaseException], ...]:
    """The classes of redis-py's errors; none if the command has not loaded it."""
    connection = sys.modules.get("forkq.store.connection")
    return () if connection is None else (connection.RedisError,)


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Raises UsageError for an argument that is not UTF-8: neither JSON nor a key of forkq can have
    it."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise click.UsageError(
                f"argument {number} is not UTF-8: {os.fsencode(argument)!r}"
            ) from None


def _print_anything() -> None:
    """Makes output escape what is not UTF-8, and letters that the terminal does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _cannot_write(error: OSError) -> int:
    """Notes that standard output is full or closed. Drops what it still has: at its exit Python
    would try to write that again."""
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), _STDOUT)
    if isinstance(error, BrokenPipeError):
        return NO_READER
    return _fail(f"cannot write to standard output: {error.strerror}", _FAILURE)


def _fail(message: str, code: int) -> int:
    echo(f"forkq: {message}", err=True)
    return code
