"""``forkq web``: the web UI."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from ..config.config import Config
from ..config.web_table import address_of
from ..default_client import use
from ..errors import ForkqError, install
from ..runtime import log
from ..values import replace
from ..wire.redis_url import redacted_url
from .options import configuration, finds_redis, flag_of
from .output import echo
from .shards import by_shard, shard_named

_SHORTEST = 8


@click.group(invoke_without_command=True)
@flag_of("web.listen", metavar="HOST:PORT", about="Where to listen [{default}].")
@flag_of("web.read_only", about="Show everything, change nothing.")
@finds_redis
@click.pass_context
def web(ctx: click.Context, /, **flags: Any) -> None:
    """Serve the web UI. Needs the extra `web`: pip install 'forkq[web]'.

    To serve other hosts, set a password or another way to know the user: see docs/web.md.
    """
    if ctx.invoked_subcommand is None:
        _serve(configuration(**flags))


@web.command("hash-password")
def hash_password() -> int:
    """Print what `password_hash` under [web] must be for a password, which it asks for."""
    passwords = _part("passwords")
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if len(password) < _SHORTEST:
        raise click.UsageError(f"the password needs {_SHORTEST} characters at least")
    click.echo(passwords.hash_password(password))
    return 0


def _serve(config: Config) -> None:
    sys.path.insert(0, str(Path.cwd()))  # for web.authenticate and web.authorize
    settings = replace(_part("access").settings_of(config.web), shard=shard_named())
    # The audit log is of level info; the log of the server may show less.
    level = "debug" if config.log.level == "debug" else "info"
    log.configure(level, config.log.format)
    use(config)
    host, port = address_of(config.web.listen)
    _part("serving").serve(
        _part("app").create_app(settings), host, port, lambda url: _announce(url, config)
    )
    log.flush()


def _announce(url: str, config: Config) -> None:
    names = ", ".join(by_shard(config))
    shown = f"shards {names}" if names else redacted_url(config.redis.url)
    echo(f"forkq web: {url} (pid {os.getpid()}, {shown})", err=True)


def _part(name: str) -> Any:
    """A module of forkq/web. Raises ForkqError if what it needs is not installed."""
    try:
        return importlib.import_module(f"forkq.web.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("forkq"):
            raise
        raise ForkqError(
            f"forkq web needs {error.name}, which is not installed: {install('web')}"
        ) from None
