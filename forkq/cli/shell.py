"""``forkq shell``: Python with the app loaded, its jobs at hand, and pushes to its Redis."""

from __future__ import annotations

import code
import importlib
import sys
from importlib.util import find_spec
from typing import Any

import click

from .. import registry
from ..config.config import Config
from ..default_client import use
from ..runtime.app_frames import app_traceback
from ..runtime.app_loader import import_app
from ..version import __version__
from ..wire.redis_url import redacted_url
from .options import app_options, configuration, finds_redis
from .output import echo


@click.command()
@click.option("-c", "--command", metavar="CODE", help="Run this line, and end.")
@app_options
@finds_redis
def shell(command: str | None, no_import: bool, **flags: Any) -> int:
    """Open a Python prompt with the app loaded: IPython if it is installed.

    The names of the app's jobs and `forkq` are there. Pushes go where those of the app go.
    """
    config = configuration(**flags)
    use(config)
    if not no_import:
        import_app(config.app)
    names = {**_jobs(), "forkq": importlib.import_module("forkq")}
    if command is not None:
        return _run(command, names)
    _interact(names, _banner(config, names))
    return 0


def _run(command: str, names: dict[str, Any]) -> int:
    """Runs what the user has typed. Returns the exit code."""
    try:
        program = compile(command, "<command>", "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a null character
        raise click.UsageError(f"--command: {error}") from None
    try:
        exec(program, names)  # noqa: S102
    except Exception as error:  # noqa: BLE001 - the user's own, with the user's own frames
        echo(app_traceback(error), err=True)
        return 1
    return 0


def _jobs() -> dict[str, Any]:
    """The classes and functions of the registered jobs, by their own short names."""
    found: dict[str, Any] = {}
    for name in registry.names():
        spec = registry.lookup(name)
        short = spec.where.rpartition(".")[2]
        module = sys.modules.get(spec.module)
        if module is not None and hasattr(module, short):
            found[short] = getattr(module, short)
    return found


def _banner(config: Config, names: dict[str, Any]) -> str:
    jobs = ", ".join(sorted(set(names) - {"forkq"})) or "none"
    where = redacted_url(config.redis.url)
    return f"forkq {__version__}, {config.environment}, {where}\njobs: {jobs}"


def _interact(names: dict[str, Any], banner: str) -> None:
    if find_spec("IPython") is not None:
        ipython = importlib.import_module("IPython")
        click.echo(banner)
        ipython.start_ipython(argv=["--no-banner"], user_ns=names)
        return
    code.interact(banner, local=names, exitmsg="")
