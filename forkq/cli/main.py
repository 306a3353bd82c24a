"""The command line: its groups, and what an error of the user's looks like."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from .. import __version__
from ..connection import ConnectionLost, RedisError
from ..errors import ForkqError
from .control import quiet, status, stop
from .cron import cron
from .demo import demo
from .deploy import mark_deploy
from .files import config
from .limits import limits
from .pause import pause, resume
from .push import push
from .running import find, running, stuck
from .start import start
from .stats import stats
from .tables import tell

_FAILURE = 1
_USAGE = 2
_REDIS_UNUSABLE = 6
_INTERRUPTED = 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 the children cannot "
    "boot, 4 no master is running, 5 one is running already, 6 Redis cannot be used.",
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
    try:
        code = cli.main(arguments, prog_name="forkq", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(_USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(_FAILURE)
    except ForkqError as error:
        _fail(str(error), error.exit_code)
    except (*ConnectionLost, RedisError) as error:
        _fail(f"Redis: {error}", _REDIS_UNUSABLE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(_FAILURE)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    tell(f"forkq: {message}", err=True)
    sys.exit(code)
