"""``forkq top``: queues, processes and jobs in a terminal, live."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from ..default_client import use
from ..errors import ForkqError, install
from ..wire.redis_url import redacted_url
from .options import configuration, finds_redis
from .shards import by_shard

_C_LOCALES = frozenset({"C", "POSIX"})


@click.command()
@finds_redis
def top(**flags: Any) -> int:
    """Watch queues, processes and jobs in a terminal, and act on them. Needs the extra `top`: pip
    install 'forkq[top]'.

    The screens are those of `forkq web`. `?` shows the keys, `q` quits.
    """
    _check_terminal()
    app = _app()
    config = configuration(**flags)
    use(config)
    server, shards = redacted_url(config.redis.url), list(by_shard(config))
    made = app.Top(server, ascii_only=not _has_utf8(), shards=shards)
    made.run()
    return int(made.return_code or 0)


def _check_terminal() -> None:
    """Raises UsageError where there is nothing to draw on, or no keys come from."""
    streams = (sys.stdin, sys.stdout, sys.stderr)  # textual draws on standard error
    if not all(stream is not None and stream.isatty() for stream in streams):
        raise click.UsageError(
            "forkq top needs a terminal for its input and its outputs; for a file or a program: "
            "forkq stats --json, forkq queues --json, forkq running --json"
        )
    if os.environ.get("TERM", "dumb") in {"dumb", "unknown", ""}:
        raise click.UsageError(
            "forkq top needs a terminal that can move its cursor: set TERM to its kind, such as "
            "TERM=xterm-256color"
        )


def _has_utf8() -> bool:
    """Whether letters beyond ASCII can be shown. Python itself uses UTF-8 where LC_ALL is C."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("LC_ALL") not in _C_LOCALES


def _app() -> Any:
    """The app of the screens. Raises ForkqError if textual is not installed."""
    try:
        return importlib.import_module("forkq.top.app")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("forkq"):
            raise
        raise ForkqError(
            f"forkq top needs {error.name}, which is not installed: {install('top')}"
        ) from None
