"""``forkq config``: looking at configuration without starting anything."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from ..config import Config
from ..cron import Entry
from ..redis_url import redacted_url
from ..zones import zone_of
from .options import configuration

_TIME = "%a %Y-%m-%d %H:%M:%S %Z"


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml].")
@click.option("-e", "--environment", metavar="E", help="Which environment's tables apply.")
def check(**flags: Any) -> int:
    """Check the configuration and show what it comes to. Exit code 2 if it is wrong."""
    click.echo(_shown(configuration(**flags)))
    return 0


def _shown(found: Config) -> str:
    lines = [
        f"file         {found.source or 'none; defaults, variables and flags only'}",
        f"environment  {found.environment}",
        f"app          {', '.join(found.app) or 'none: name one with -r'}",
        f"redis        {redacted_url(found.redis.url)}",
        f"pidfile      {found.pidfile}",
        f"timeout      {found.timeout:g} s",
    ]
    for capsule in found.capsules:
        queues = " ".join(f"{name},{weight}" if weight else name for name, weight in capsule.queues)
        lines.append(
            f"capsule      {capsule.name}: {capsule.workers} x {capsule.concurrency} processors, "
            f"{capsule.mode}: {queues}"
        )
    lines += [f"cron         {_shown_entry(entry)}" for entry in found.cron]
    return "\n".join(lines)


def _shown_entry(entry: Entry) -> str:
    schedule = entry.schedule
    tick = schedule.after(time.time()) if entry.enabled else None
    zone = zone_of(schedule.tz).tz
    following = "never" if tick is None else f"{datetime.fromtimestamp(tick, zone):{_TIME}}"
    what = f"{entry.job['class']}, " if entry.job["class"] != entry.name else ""
    off = "" if entry.enabled else " (enabled = false)"
    return f"{entry.name}: {what}{schedule.expression} {schedule.tz}, next {following}{off}"
