"""What ``forkq start --reload`` and ``--foreground`` change in the configuration."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import click

from ..config.config import Config
from ..config.recycling import Recycling
from ..errors import ConfigError
from ..master.code_watch import check_installed, watching
from ..runtime import prompt
from .options import Command

_RELOAD = click.option(
    "--reload", is_flag=True, help="For development: changed code is live after each save."
)
_FOREGROUND = click.option(
    "--foreground", is_flag=True, help="For a debugger: the job (-c 1) may use the terminal."
)


def development_options(command: Command) -> Command:
    """Adds the flags."""
    return _RELOAD(_FOREGROUND(command))


def for_development(config: Config, *, reload: bool, foreground: bool) -> Config:
    """``config`` with what these flags change. Raises ConfigError."""
    if foreground:
        config = _for_debugger(config)
    if reload:
        check_installed()
        # Python would take the bytecode of an earlier save for that of one in the same second.
        sys.dont_write_bytecode = True
        config = replace(config, reload=True, preload=False)
    return config


def code_watch(config: Config) -> AbstractContextManager[None]:
    """Watches the code while its block runs, with --reload."""
    return watching(config.folder) if config.reload else nullcontext()


def _for_debugger(config: Config) -> Config:
    """With one processor, which no limit ends."""
    count = sum(capsule.workers * capsule.concurrency for capsule in config.capsules)
    if count != 1:
        raise ConfigError(
            f"--foreground is for one job at a time, and there would be {count} processors: give "
            "-c 1, with one capsule and no more than one worker"
        )
    prompt.share()
    capsules = (
        replace(capsule, job_timeout=0.0, job_hard_timeout=0.0, recycling=Recycling())
        for capsule in config.capsules
    )
    return replace(config, foreground=True, boot_timeout=0.0, capsules=tuple(capsules))
