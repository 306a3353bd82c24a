"""``flask forkq ...``: forkq's commands, with the configuration of the Flask app.

The configuration is read in a fork: the master runs no code of the app, unless the app is
preloaded. A master's next program reads it anew, too, since it executes the same command line.
"""

from __future__ import annotations

import os
from typing import Any, Final

import click
import msgspec
from flask import Flask
from flask.cli import NoAppException, ScriptInfo

from forkq.cli.main import main
from forkq.config import provided
from forkq.doctor.probe import ask_fork
from forkq.errors import CannotBoot, ConfigError, ForkqError
from forkq.runtime.passwords import hide_passwords
from forkq.wire.printable import traceback_of

from . import APP, PLACE, settings_of

_REMEDY: Final = "call Forkq(app), or forkq.init_app(app) in its factory"
_LIMIT: Final = 300.0  # seconds that the import of the app may take

_script: list[ScriptInfo] = []  # how Flask finds the app; the children inherit it


@click.command(
    "forkq",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def forkq(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run and control background jobs: start, status, stop and more."""
    hide_passwords()
    _script[:] = [ctx.ensure_object(ScriptInfo)]
    provided.use(provided.Provided(PLACE, _read_settings, APP))
    main(arguments)


def load_app() -> Flask:
    """The Flask app that the command line or FLASK_APP names. Raises CannotBoot."""
    script = _script[0] if _script else ScriptInfo(os.environ.get("FLASK_APP"))
    try:
        app = script.load_app()
    except NoAppException as error:
        raise CannotBoot(error.format_message()) from None
    if "forkq" not in app.extensions:
        raise CannotBoot(f"the Flask app {app.name} has no forkq: {_REMEDY}")
    return app


def _read_settings() -> dict[str, Any]:
    """Reads the settings of the app. Raises ConfigError: a running master then goes on as
    before."""
    line = ask_fork(_answer, _LIMIT)
    if line is None or not line.endswith(b"\n"):
        how = f"has not ended after {_LIMIT:g} s" if line is None else "ended the process"
        raise ConfigError(f"the import of the Flask app {how}")
    found: dict[str, Any] = msgspec.json.decode(line)
    if "error" in found:
        raise ConfigError(found["error"])
    return dict(found["settings"])


def _answer() -> bytes:
    """The answer of the fork as JSON: the settings, or why the app cannot be loaded."""
    return msgspec.json.encode(_answered())


def _answered() -> dict[str, Any]:
    try:
        provided.use(None)
        return {"settings": settings_of(load_app())}
    except ForkqError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 - the app's own code, SystemExit too
        return {"error": f"the Flask app cannot be loaded:\n{traceback_of(error)}"}
