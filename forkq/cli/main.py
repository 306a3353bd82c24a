"""The command line: its groups, and how errors are shown."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

import click

from .. import __version__
from ..errors import ForkqError
from ..store.connection import ConnectionLost, RedisError
from .config import config
from .cron import cron
from .demo import demo
from .deploy import mark_deploy
from .jobs import find, running, stuck
from .lifecycle import quiet, status, stop
from .limits import limits
from .output import echo
from .pause import pause, resume
from .push import push
from .start import start
from .stats import stats

_FAILURE = 1
_USAGE = 2
_REDIS_UNUSABLE = 6
_INTERRUPTED = 130

_STDOUT = 1
# The errors of a write to a full disk, to /dev/full or to a closed descriptor.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the children cannot "
    "boot, 4 no master is running, 5 one is running already, 6 Redis cannot be used, 7 Redis is a "
    "replica.",
)
@click.version_option(__version__, message="forkq %(version)s")
def cli() -> None:
    """Sidekiq's job model for Python, run by a pre-forking supervisor."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(f"forkq {__version__}")


for group in (
    (start, quiet, stop, status),
    (push, find, running, stuck, stats, cron),
    (limits, pause, resume),
    (config, mark_deploy, demo),
):
    for command in group:
        cli.add_command(command)


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
    except (*ConnectionLost, RedisError) as error:
        return _fail(f"Redis: {error}", _REDIS_UNUSABLE)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        return _FAILURE
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        return _cannot_write(error)
    return code if isinstance(code, int) else 0


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Neither JSON nor a key of forkq can hold what is not UTF-8. Raises UsageError."""
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
    """Standard output is full or closed. Drops what it still holds: at its exit Python would try to
    write that again."""
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), _STDOUT)
    if isinstance(error, BrokenPipeError):
        return _FAILURE
    return _fail(f"cannot write to standard output: {error.strerror}", _FAILURE)


def _fail(message: str, code: int) -> int:
    echo(f"forkq: {message}", err=True)
    return code
