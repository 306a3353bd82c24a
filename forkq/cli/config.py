"""``forkq config``: looking at configuration without starting anything."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from ..config.config import Config
from ..config.limit_tables import warnings
from ..cron.entry import Entry
from ..cron.zones import zone_of
from ..limits.patterns import among, is_pattern
from ..limits.rate_text import rate_text
from ..limits.rules import Rules
from ..wire.redis_url import redacted_url
from .options import configuration

_TIME = "%a %Y-%m-%d %H:%M:%S %Z"


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml].")
@click.option("-e", "--environment", metavar="E", help="Which environment's tables apply.")
def check(**flags: Any) -> int:
    """Check the configuration and show what it comes to. Exit code 2 if it is wrong.

    A warning changes no exit code: what it is about may be another host's.
    """
    found = configuration(**flags)
    click.echo(_shown(found))
    for warning in warnings(found.rules, found.capsules):
        click.echo(f"warning: {found.source}: {warning}", err=True)
    for entry in found.cron:
        _warn_of_idle_queue(found, entry)
    return 0


def _warn_of_idle_queue(found: Config, entry: Entry) -> None:
    """A queue that is not in the file may still be the job's own, which only the app knows."""
    queue = entry.job.get("queue")
    if queue is not None and not among(queue, found.queue_names):
        click.echo(
            f"forkq: no capsule in {found.source} works on the queue {queue!r} of the periodic job "
            f"{entry.name!r}; {' or '.join(found.queue_names)}?",
            err=True,
        )


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
    lines += [f"rules        {_told(*entry)}" for entry in found.rules.entries.items()]
    lines += [f"cron         {_shown_entry(entry)}" for entry in found.cron]
    return "\n".join(lines)


def _told(name: str, rules: Rules) -> str:
    """The rules of one queue, or of each queue of a pattern, in words."""
    waiting = ", ".join(rules.blocking) if isinstance(rules.blocking, tuple) else "all later queues"
    told = {
        f"limit {rules.limit}": rules.limit is not None,
        f"{rules.process_limit} per child": rules.process_limit is not None,
        rate_text(rules.rate) if rules.rate else "": rules.rate is not None,
        f"burst {rules.rate and rules.rate.burst}": bool(rules.rate and rules.rate.burst),
        f"blocks {waiting}": bool(rules.blocking),
        "in turn": bool(rules.fair),
    }
    words = ", ".join(text for text, said in told.items() if said) or "none"
    return f"{name}{' (each)' if is_pattern(name) else ''}: {words}"


def _shown_entry(entry: Entry) -> str:
    schedule = entry.schedule
    tick = schedule.after(time.time()) if entry.enabled else None
    zone = zone_of(schedule.tz).tz
    following = "never" if tick is None else f"{datetime.fromtimestamp(tick, zone):{_TIME}}"
    what = f"{entry.job['class']}, " if entry.job["class"] != entry.name else ""
    off = "" if entry.enabled else " (enabled = false)"
    return f"{entry.name}: {what}{schedule.expression} {schedule.tz}, next {following}{off}"
