"""Every value that is in force, and its origin: what ``forkq config show`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..cron.entry import Entry
from ..limits.rate_text import rate_text
from ..limits.rules import Rules
from ..wire.password_source import PasswordSource
from ..wire.redis_url import redacted_url
from .capsule import Capsule
from .config import INHERITED, PLAIN_TABLES, Config
from .cron_tables import ROWS
from .limit_tables import FIELDS
from .password_keys import COMMAND, FILE, PASSWORD_KEYS
from .recycling import RECYCLING
from .schema import KeyPath, shown_path
from .settings import DEFAULT, Origin
from .spread import parts_by_queue


class Effective(msgspec.Struct, frozen=True):
    """One key of forkq.toml, its value, ready for JSON and without passwords, and its origin."""

    key: str
    value: Any
    origin: Origin


def effective(config: Config) -> Iterator[Effective]:
    """Every value in force, in the order of docs/configuration.md."""
    for path, value in _values(config):
        key = shown_path(path)
        yield Effective(key, _public(value), _origin(config, key, path))


def _values(config: Config) -> Iterator[tuple[KeyPath, object]]:
    owners = {"forkq": config, "redis": config.redis, "log": config.log, "web": config.web}
    for name, keys in PLAIN_TABLES.items():
        own = [key for key in keys if key not in RECYCLING and key not in PASSWORD_KEYS]
        yield from (((name, key), _without_hash(key, getattr(owners[name], key))) for key in own)
    yield from ((("forkq", key), config.recycling.shown(key)) for key in RECYCLING)
    yield from _password(("redis",), config.redis.password_source)
    for number, shard in enumerate(config.shards[1:]):
        for key in ("name", "url", "prefix", "queues"):
            yield ("redis", "shards", number, key), getattr(shard, key)
        yield from _password(("redis", "shards", number), shard.password_source)
    for capsule in config.own_capsules:
        yield ("capsules", capsule.name, "queues"), capsule.listed_queues
        for key in ("concurrency", "kind", "threads"):
            yield ("capsules", capsule.name, key), getattr(capsule, key)
        for key in INHERITED:
            yield ("capsules", capsule.name, key), _of_capsule(capsule, key)
    for index, entry in enumerate(config.cron):
        row = _row(entry)
        yield from ((("cron", index, key), row[key]) for key in ROWS.item)
    for queue, parts in parts_by_queue(config.shards).items():
        yield ("spread", queue), parts
    for queue, seconds in config.expire.items():
        yield ("expire", queue), seconds
    for table in FIELDS:
        for name, rules in config.rules.entries.items():
            yield from _rule(table, name, rules)


def _of_capsule(capsule: Capsule, key: str) -> object:
    return capsule.recycling.shown(key) if key in RECYCLING else getattr(capsule, key)


def _without_hash(key: str, value: object) -> object:
    """The value as it is shown. A hash of a password is not: a weak password can be guessed from
    it."""
    return "(not shown)" if key == "password_hash" and value else value


def _password(path: KeyPath, source: PasswordSource | None) -> Iterator[tuple[KeyPath, object]]:
    """The source of a password as it is shown. Of a command only the program: an argument may be a
    secret."""
    yield (*path, FILE), source.file if source else None
    program = source.command[0] if source and source.command else None
    yield (*path, COMMAND), f"{program} (arguments not shown)" if program else None


def _row(entry: Entry) -> dict[str, object]:
    """A periodic job as forkq.toml has it, with the number of its arguments in their place: they
    may be secrets."""
    return {
        "name": entry.name,
        "cron": entry.schedule.expression,
        "tz": entry.schedule.tz,
        "job": entry.job["class"],
        "args": f"({len(entry.job['args'])}, not shown)",
        "queue": entry.job.get("queue"),
        "overlap": entry.overlap,
        "missed": entry.missed,
        "jitter": entry.jitter,
        "enabled": entry.enabled,
    }


def _rule(table: str, name: str, rules: Rules) -> Iterator[tuple[KeyPath, object]]:
    value = getattr(rules, FIELDS[table])
    if value is None:
        return
    if table != "rates":
        yield (table, name), value
        return
    yield (table, name, "rate"), rate_text(value)
    if value.burst is not None:
        yield (table, name, "burst"), value.burst


def _origin(config: Config, key: str, path: KeyPath) -> Origin:
    """The origin of a key. A capsule inherits some keys of ``[forkq]``, and "rates.NAME" may be the
    rate itself or a table."""
    found = config.origins.get(key)
    if found is None and path[0] == "capsules" and path[-1] in INHERITED:
        found = config.origins.get(f"forkq.{path[-1]}")
    if found is None and path[0] == "rates":
        found = config.origins.get(shown_path(path[:-1]))
    return found or DEFAULT


def _public(value: object) -> object:
    if isinstance(value, tuple):
        return [_public(item) for item in value]
    return redacted_url(str(value)) if isinstance(value, str | Path) else value
