"""The configuration: its values and their defaults, and how they come together.

``load`` runs once in every process that a user starts (``forkq start``, ``stop``, ``push``...);
children get the finished ``Config`` by the fork. Precedence: flags, variables, file, default.

The annotated types below are also what the file is checked against. A new table of the file is one
more line in ``TABLES`` and one more field of ``Config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from ..cron.entry import Entry
from ..errors import ConfigError
from ..limits.rules import Rulebook
from ..wire.redis_url import checked_url, redacted_url
from .capsule import DEFAULT_NAME, Capsule, check_name, parse_queue, weigh
from .cron_tables import ROWS, entry_of
from .file import DEFAULT_ENVIRONMENT, open_config
from .flags import Given, misspelt, read_options
from .limit_tables import TABLES as RULES
from .limit_tables import check_blocking, check_queue, rulebook
from .paths import beside, default_pidfile, default_state_dir
from .schema import Each, Table, keys_of

__all__ = ["Config", "LogSettings", "RedisSettings", "load", "redacted_url"]

Concurrency = Annotated[int, Meta(ge=1, le=1000)]
Workers = Annotated[int, Meta(ge=1, le=512)]
Seconds = Annotated[float, Meta(ge=0, le=86400)]
NetworkSeconds = Annotated[float, Meta(ge=0.001, le=3600)]
Text = Annotated[str, Meta(min_length=1)]
_LONGEST_BEAT = 10.0  # seconds
Name = Annotated[str, Meta(pattern=r"\A\S+\Z", description="a name without spaces")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """``[redis]``: where the jobs are. Times in seconds; ``repr`` leaves the URL out."""

    url: Annotated[str, checked_url] = field(default="redis://localhost:6379/0", repr=False)
    prefix: str = ""
    pool: Annotated[int, Meta(ge=1, le=1000)] = 10
    connect_timeout: NetworkSeconds = 2.0
    timeout: NetworkSeconds = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """``[log]``: from which level on, and how; ``auto`` depends on whether a person is reading."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json", "logfmt"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a forkq process is told; complete, with every default filled in.

    ``timeout``, ``boot_timeout`` (0: no limit) and ``silent_after`` are in seconds, ``dead_max`` in
    jobs; ``workers`` is the number of children for each capsule without its own; ``cron`` the
    periodic jobs of the file, without what only their jobs say (periodic.entries_by_origin);
    ``rules`` those of all queues, which each capsule has too; ``source`` is the file that was read.
    """

    app: tuple[Text, ...] = ()
    timeout: Seconds = 25.0
    pidfile: Path
    environment: Name = DEFAULT_ENVIRONMENT
    tag: Annotated[str, Meta(max_length=64, description="a string of at most 64 characters")] = ""
    labels: tuple[Text, ...] = ()
    preload: bool = False
    boot_timeout: Seconds = 300.0
    workers: Workers = 1
    strict_args: Literal["raise", "warn", "off"] = "raise"
    dead_max: Annotated[int, Meta(ge=0, le=100_000_000)] = 10_000
    dead_days: Annotated[float, Meta(ge=0, le=36_500)] = 180.0
    silent_after: Annotated[float, Meta(ge=1, le=86400)] = 30.0
    state_dir: Path
    redis: RedisSettings = field(default_factory=RedisSettings)
    log: LogSettings = field(default_factory=LogSettings)
    capsules: tuple[Capsule, ...] = (Capsule(DEFAULT_NAME),)
    cron: tuple[Entry, ...] = ()
    rules: Rulebook = field(default_factory=Rulebook, hash=False)
    source: Path | None = None

    @property
    def queue_names(self) -> list[str]:
        """The queues and patterns of all capsules."""
        return [name for capsule in self.capsules for name in capsule.queue_names]

    @property
    def beat_every(self) -> float:
        """Seconds between two signs of life of each process: often enough for ``silent_after``."""
        return min(_LONGEST_BEAT, self.silent_after / 3)

    @property
    def url_file(self) -> Path:
        """Where the embedded server's URL is written, for clients of the same user."""
        return beside(self.pidfile, ".redis")

    @property
    def status_file(self) -> Path:
        """Where the master writes its state, for ``forkq status``."""
        return beside(self.pidfile, ".status.json")


_QUEUE_LIST = 'a list of queues, each "NAME", "NAME,WEIGHT" or ["NAME", WEIGHT]'


def _queues(items: tuple[str | tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Both spellings of a weight, ``"mail,3"`` and ``["mail", 3]``, as pairs."""
    texts = (item if isinstance(item, str) else f"{item[0]},{item[1]}" for item in items)
    queues = weigh(parse_queue(text) for text in texts)
    for name, _ in queues:
        check_queue(name)
    return queues


Queues = Annotated[
    tuple[str | tuple[str, int], ...],
    Meta(description=_QUEUE_LIST),
    _queues,
]

# What a file may say: every key with the type of its value.
_FORKQ = keys_of(Config, without=("redis", "log", "capsules", "cron", "rules", "source"))
_CAPSULE: dict[str, object] = {"queues": Queues, "concurrency": Concurrency, "workers": Workers}
TABLES: dict[str, object] = {
    "forkq": _FORKQ,
    "redis": keys_of(RedisSettings),
    "log": keys_of(LogSettings),
    "capsules": Each(_CAPSULE, check_name),
    "cron": ROWS,
    **RULES,
}
# What flags and variables may say; of the capsules they know one, see _target.
_OPTION_TABLES: dict[str, Table] = {
    "forkq": _FORKQ,
    "redis": keys_of(RedisSettings),
    "log": keys_of(LogSettings),
    "capsule": _CAPSULE,
}


def load(
    path: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path
) -> Config:
    """The whole configuration; ConfigError lists everything that is wrong, one problem a line.

    ``flags`` are the parsed flags by name (None or empty: not given), relative paths start at
    ``cwd``, ``environ`` is the process's environment.
    """
    file = open_config(path or flags.get("config"), environ, cwd)
    problems = list(misspelt(environ, file.variables()))
    given = read_options(flags, environ, _OPTION_TABLES, problems)
    environment = given["forkq"].get("environment") or file.environment(environ)
    values, wrong = file.values(TABLES, environment, environ)
    problems += wrong
    if problems:
        raise ConfigError("\n".join(problems))
    return _build(values, given, file.source, environ, cwd)


def _build(
    values: dict[str, Any],
    given: Given,
    source: Path | None,
    environ: Mapping[str, str],
    cwd: Path,
) -> Config:
    """The checked parts put together; what nobody gave is the default of its dataclass."""
    forkq = {**values.get("forkq", {}), **given["forkq"]}
    tag = forkq.get("tag", "")
    pidfile = forkq.pop("pidfile", None) or default_pidfile(environ, cwd, tag)
    state_dir = forkq.pop("state_dir", None) or default_state_dir(environ, cwd, tag)
    rules = rulebook(values, source)
    workers = forkq.get("workers", 1)
    capsules = _capsules(values.get("capsules", {}), given["capsule"], workers, source)
    check_blocking(rules, capsules, source)
    return Config(
        **forkq,
        pidfile=cwd / pidfile,
        state_dir=cwd / state_dir,
        redis=RedisSettings(**{**values.get("redis", {}), **given["redis"]}),
        log=LogSettings(**{**values.get("log", {}), **given["log"]}),
        capsules=tuple(replace(capsule, rules=rules) for capsule in capsules),
        cron=tuple(map(entry_of, values.get("cron", ()))),
        rules=rules,
        source=source,
    )


def _capsules(
    named: dict[str, dict[str, Any]], given: dict[str, Any], workers: int, source: Path | None
) -> tuple[Capsule, ...]:
    tables = {name: {"workers": workers, **table} for name, table in named.items()}
    if given or not tables:
        target = _target(list(named), given)
        tables[target] = {"workers": workers, **tables.get(target, {}), **given}
    for name, table in tables.items():
        if "queues" not in table and name != DEFAULT_NAME:
            raise ConfigError(f"{source}: capsules.{name}.queues: missing, expected {_QUEUE_LIST}")
    return tuple(Capsule(name, **table) for name, table in tables.items())


def _target(names: list[str], given: dict[str, Any]) -> str:
    """The capsule that -q and -c are about: ``default``, or the only one that there is."""
    if len(names) == 1:
        return names[0]
    if names and DEFAULT_NAME not in names and "queues" not in given:
        raise ConfigError(
            f"--concurrency (FORKQ_CONCURRENCY): of which capsule? The file has {', '.join(names)} "
            f"and none called {DEFAULT_NAME}; give it there, or add -q to run one more capsule"
        )
    return DEFAULT_NAME
