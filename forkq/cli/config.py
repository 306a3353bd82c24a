"""``forkq config``: looking at configuration without starting anything."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from .. import registry
from ..config.capsule import Capsule
from ..config.config import Config
from ..config.effective import Effective, effective
from ..config.limit_tables import warnings
from ..config.shards import Shard
from ..config.spread import parts_by_queue
from ..cron.entry import Entry
from ..cron.zones import zone_of
from ..errors import ConfigError
from ..limits.patterns import is_pattern
from ..limits.rate_text import rate_text
from ..limits.rules import Rules
from ..runtime.app_loader import import_app
from ..runtime.unserved import (
    UNKNOWN_JOBS,
    Unserved,
    faults_of_periodic_jobs,
    queue_of,
    unserved,
)
from ..wire.printable import shown_name
from ..wire.redis_url import redacted_url
from .options import VerbAnywhere, app_options, configuration, flag_of, json_option, runs_tree
from .output import echo, echo_objects, facts, table

_TIME = "%a %Y-%m-%d %H:%M:%S %Z"


@click.group(cls=VerbAnywhere)
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("-C", "--config", metavar="FILE", help="Configuration [./forkq.toml].")
@flag_of("forkq.environment", "-e", metavar="E", about="Which environment's tables apply.")
@app_options
def check(no_import: bool, **flags: Any) -> int:
    """Check the configuration, import the app, and show a summary with its jobs.

    Exit code 2 if the configuration is wrong, or a periodic job does not fit its job, 3 if the app
    cannot be imported, 1 if no capsule serves the queue of a job, of its retries or of a periodic
    job. A warning changes no exit code.
    """
    found = configuration(**flags)
    echo(_summary(found))
    for warning in warnings(found.rules, found.capsules):
        echo(f"warning: {found.source}: {warning}", err=True)
    if found.app and not no_import:
        import_app(found.app)
        echo(_jobs())
        _check_periodic_jobs(found)
    wrong = unserved(found, app=not no_import)
    for each in wrong:
        report_unserved_queue(each, found)
    return 1 if wrong else 0


def _check_periodic_jobs(found: Config) -> None:
    """Warns of those whose job the app, which is imported, does not have. Raises ConfigError for
    one with which no child can boot."""
    faults = faults_of_periodic_jobs(found)
    if faults.error is not None:
        raise ConfigError(str(faults.error))
    if faults.unknown:
        names = ", ".join(map(shown_name, faults.unknown))
        echo(f"warning: {UNKNOWN_JOBS}: {names}", err=True)


def _jobs() -> str:
    """The jobs of the app that was imported, with their queues."""
    specs = [registry.lookup(name) for name in registry.names()]
    return facts(
        [("job", f"{spec.name}: queue {queue_of(spec)}") for spec in specs]
        or [("job", "none: the app has registered no job")]
    )


@config.command()
@json_option
@runs_tree
def show(wants_json: bool, **flags: Any) -> int:
    """Show every value that is in force, and where it comes from.

    With the flags of `forkq start`: what that would use. Passwords in URLs and the arguments of
    periodic jobs are not shown.
    """
    values = list(effective(configuration(**flags)))
    if wants_json:
        echo_objects(map(_facts, values))
        return 0
    rows = [(value.key, _text(value.value), _origin(value)) for value in values]
    echo(table(("KEY", "VALUE", "FROM"), rows, whole=("KEY",)))
    return 0


def _facts(effective: Effective) -> dict[str, Any]:
    origin = effective.origin
    file = None if origin.file is None else str(origin.file)
    shown = {"key": effective.key, "value": effective.value, "from": origin.kind}
    return {**shown, "name": origin.name or None, "file": file}


def _text(value: object) -> str:
    """A value as TOML writes it; a string without its quotes, unless it is empty."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _origin(effective: Effective) -> str:
    """The origin of a value: the flag, the variable or the file, with its key if an environment's
    table has the value."""
    origin = effective.origin
    return str(origin.file) if origin.name == effective.key else str(origin)


def _summary(found: Config) -> str:
    pairs = [
        ("file", found.source or "none; defaults, variables and flags only"),
        ("environment", found.environment),
        ("app", ", ".join(found.app) or "none: name one with -r"),
        ("redis", redacted_url(found.redis.url)),
        *(("shard", _shown_shard(shard)) for shard in found.shards[1:]),
        *(("spread", _shown_parts(*each)) for each in parts_by_queue(found.shards).items()),
        ("pidfile", found.pidfile),
        ("timeout", f"{found.timeout:g} s"),
        *(("capsule", _shown_capsule(capsule)) for capsule in found.capsules),
        *(("rules", _shown_rules(*entry)) for entry in found.rules.entries.items()),
        *(("cron", _shown_entry(entry)) for entry in found.cron),
    ]
    return facts(pairs)


def _shown_shard(shard: Shard) -> str:
    place = " ".join(part for part in (redacted_url(shard.url), shard.prefix) if part)
    return f"{shard.name}: {place}: {' '.join(shard.queues) or 'no queue'}"


def _shown_parts(queue: str, parts: Sequence[str]) -> str:
    return f"{queue}: {' '.join(parts)} (order holds within each of them only)"


def _shown_capsule(capsule: Capsule) -> str:
    children = f"{capsule.workers} x {capsule.concurrency} processors"
    if capsule.is_async:
        children = (
            f"{capsule.workers} x {capsule.concurrency} coroutines, {capsule.threads} threads"
        )
    return f"{capsule.name}: {children}, {capsule.mode}: {' '.join(capsule.listed_queues)}"


def _shown_rules(name: str, rules: Rules) -> str:
    """The rules of one queue, or of each queue of a pattern, in words."""
    waiting = ", ".join(rules.blocking) if isinstance(rules.blocking, tuple) else "all later queues"
    parts = {
        f"limit {rules.limit}": rules.limit is not None,
        f"{rules.process_limit} per child": rules.process_limit is not None,
        rate_text(rules.rate) if rules.rate else "": rules.rate is not None,
        f"burst {rules.rate and rules.rate.burst}": bool(rules.rate and rules.rate.burst),
        f"blocks {waiting}": bool(rules.blocking),
        "in turn": bool(rules.fair),
    }
    words = ", ".join(text for text, holds in parts.items() if holds) or "none"
    return f"{name}{' (each)' if is_pattern(name) else ''}: {words}"


def _shown_entry(entry: Entry) -> str:
    schedule = entry.schedule
    tick = schedule.after(time.time()) if entry.enabled else None
    zone = zone_of(schedule.tz).tz
    following = "never" if tick is None else f"{datetime.fromtimestamp(tick, zone):{_TIME}}"
    what = f"{entry.job['class']}, " if entry.job["class"] != entry.name else ""
    off = "" if entry.enabled else " (enabled = false)"
    return f"{entry.name}: {what}{schedule.expression} {schedule.tz}, next {following}{off}"


def report_unserved_queue(found: Unserved, config: Config) -> None:
    """Says that no capsule serves a queue, where a job would wait for ever."""
    served = ", ".join(map(shown_name, config.queue_names))
    hint = f"did you mean {found.meant!r}?" if found.meant else f"they work on {served}"
    place = config.source or "the configuration"
    what = f"the queue {found.queue!r} of {found.whose}"
    echo(f"forkq: no capsule in {place} works on {what}; {hint}", err=True)
