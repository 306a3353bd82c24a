"""Flags that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..config.config import Config
from ..config.load import load

Command = TypeVar("Command", bound=Callable[..., Any])

_FINDING = (
    click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml]."),
    click.option("-e", "--environment", metavar="E", help="Which environment's tables apply."),
    click.option("-g", "--tag", metavar="T", help="Name of this tree: titles, pidfile, web UI."),
    click.option("--pidfile", metavar="F", help="Where the master's pid stands."),
)
_REDIS = click.option("--redis", metavar="URL", help="redis://..., unix://... or `embedded`.")


def finds_master(command: Command) -> Command:
    """Adds the flags by which a command finds the running master."""
    return _with(_FINDING, command)


def finds_redis(command: Command) -> Command:
    """Adds the flags by which a command finds Redis, and the embedded server."""
    return _with((*_FINDING, _REDIS), command)


def configuration(**flags: Any) -> Config:
    """The configuration that these flags, the environment and the file make. Raises ConfigError."""
    return load(None, flags, os.environ, Path.cwd())


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
