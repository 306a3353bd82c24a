"""Flags that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..config.config import Config
from ..config.load import load
from .shards import for_shards, shard_named

Command = TypeVar("Command", bound=Callable[..., Any])

_FINDING = (
    click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml]."),
    click.option("-e", "--environment", metavar="E", help="Which environment's tables apply."),
    click.option("-g", "--tag", metavar="T", help="Name of this tree: titles, pidfile, web UI."),
    click.option("--pidfile", metavar="F", help="The file with the master's process id."),
)
_REDIS = click.option("--redis", metavar="URL", help="redis://..., unix://... or `embedded`.")
_SHARD = click.option("--shard", metavar="NAME", help="One of [[redis.shards]], or `default`.")
_RUNNING = (
    click.option(
        "-r", "--require", "require", multiple=True, metavar="APP",
        help="Module, module:attr or file that defines the jobs (repeatable).",
    ),
    click.option("-w", "--workers", type=int, metavar="N", help="Children per capsule [1]."),
    click.option("-c", "--concurrency", type=int, metavar="N", help="Processors per child [5]."),
    click.option(
        "-q", "--queue", "queues", multiple=True, metavar="NAME[,WEIGHT]",
        help="Queue to work on, in order (repeatable) [default].",
    ),
    click.option("-t", "--timeout", type=float, metavar="S", help="Seconds to finish in [25]."),
    click.option("--log-format", type=click.Choice(["console", "json", "logfmt"])),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
)  # fmt: skip

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


def runs_tree(command: Command) -> Command:
    """Adds every flag that sets a key of the configuration."""
    return _with((*_FINDING, _REDIS, *_RUNNING), command)


def configuration(**flags: Any) -> Config:
    """The configuration that these flags, the environment and the file make. Raises ConfigError.

    With a forkq.toml of a folder above, the command goes on as if it was run there: the app is
    imported from that folder, and the master's files are those of that folder.
    """
    config = load(None, flags, os.environ, Path.cwd())
    if config.folder != Path.cwd():
        os.chdir(config.folder)
    return config.of_shard(shard_named() or config.shard)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
