"""The configuration: its values, their types and their defaults.

``load`` makes it once in every process that a user starts (``forkq start``, ``stop``, ``push``);
children get the finished ``Config`` by the fork. The annotated types below are what the file, the
variables and the flags are checked against. A new key is one more field here and one more line in
``keys``; a new table of the file is one more line in ``TABLES`` and one more field of ``Config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from ..cron.entry import Entry
from ..errors import ConfigError
from ..limits.rules import Rulebook
from ..wire.password_source import PasswordSource
from ..wire.payload import DEEPEST, LARGEST, MAX_NESTING, MAX_SIZE
from ..wire.redis_url import checked_url
from .capsule import DEFAULT_NAME, Capsule, check_name, parse_queue, weigh
from .cron_tables import ROWS
from .limit_tables import TABLES as RULES
from .limit_tables import check_queue
from .password_keys import PASSWORD_KEYS
from .paths import STATUS_SUFFIX, beside
from .recycling import KEYS as RECYCLING
from .recycling import Recycling
from .schema import Each, Table, keys_of
from .settings import DEFAULT, Origin
from .shards import ROWS as SHARDS
from .shards import Shard
from .web_table import WebTable

DEFAULT_ENVIRONMENT: Final = "development"
QUEUE_LIST: Final = 'a list of queues, each "NAME", "NAME,WEIGHT" or ["NAME", WEIGHT]'

Workers = Annotated[int, Meta(ge=1, le=512)]
SoloChildren = Annotated[int, Meta(ge=0, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=86400)]
JobSeconds = Annotated[float, Meta(ge=0, le=1_000_000_000)]
NetworkSeconds = Annotated[float, Meta(ge=0.001, le=3600)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"\A\S+\Z", description="a name without spaces")]
Tag = Annotated[str, Meta(max_length=64, description="a string of at most 64 characters")]

_LONGEST_BEAT = 10.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """``[redis]``: where the jobs are. Times in seconds; ``repr`` leaves the URL out.
    ``password_source``: of ``password_file`` or ``password_command``."""

    url: Annotated[str, checked_url] = field(default="redis://localhost:6379/0", repr=False)
    password_source: PasswordSource | None = None
    prefix: str = ""
    pool: Annotated[int, Meta(ge=1, le=1000)] = 10
    connect_timeout: NetworkSeconds = 2.0
    timeout: NetworkSeconds = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """``[log]``: the lowest level that is logged, the format, whose logging counts, and how much is
    logged: lines of one run of a job in a minute (0: any number), and each how many-th ``done``."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json", "logfmt"] = "auto"
    takeover: bool = False
    max_job_lines: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1000
    done_every: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of a forkq process, every default filled in.

    ``recycling`` has the limits of capsules without limits of their own; ``cron`` are the periodic
    jobs of the file, without what only their jobs declare
    (every.entries_by_origin); ``rules`` those of all queues, which each capsule has too; ``source``
    is the file that was read, and relative paths start at ``folder``. ``origins`` has the origin of
    each value that is no default. ``reload`` and ``foreground`` are flags of ``forkq start``.
    ``shards`` are all of them, the default first, or none. ``shard``: the one at ``redis.url``.
    """

    app: tuple[Text, ...] = ()
    timeout: Seconds = 25.0
    pidfile: Path
    environment: Name = DEFAULT_ENVIRONMENT
    tag: Tag = ""
    labels: tuple[Text, ...] = ()
    preload: bool = False
    boot_timeout: Seconds = 300.0
    workers: Workers = 1
    strict_args: Literal["raise", "warn", "off"] = "raise"
    # Below what is read: a retry and a crash record add to a payload.
    max_payload_size: Annotated[int, Meta(ge=1024, le=LARGEST // 2)] = MAX_SIZE
    max_nesting: Annotated[int, Meta(ge=10, le=DEEPEST - 100)] = MAX_NESTING
    dead_max: Annotated[int, Meta(ge=0, le=100_000_000)] = 10_000
    dead_days: Annotated[float, Meta(ge=0, le=36_500)] = 180.0
    job_timeout: JobSeconds = 0.0
    job_hard_timeout: JobSeconds = 0.0
    solo_children: SoloChildren = 0
    silent_after: Annotated[float, Meta(ge=1, le=86400)] = 30.0
    replace_silent_after: Seconds = 60.0
    kill_silent_after: Seconds = 0.0
    state_dir: Path
    recycling: Recycling = field(default_factory=Recycling)
    redis: RedisSettings = field(default_factory=RedisSettings)
    log: LogSettings = field(default_factory=LogSettings)
    web: WebTable = field(default_factory=WebTable)
    capsules: tuple[Capsule, ...] = (Capsule(DEFAULT_NAME),)
    cron: tuple[Entry, ...] = ()
    rules: Rulebook = field(default_factory=Rulebook, hash=False)
    source: Path | None = None
    folder: Path = field(default=Path(), compare=False)
    shards: tuple[Shard, ...] = ()
    shard: str = ""
    reload: bool = False
    foreground: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def queue_names(self) -> list[str]:
        """The queues and patterns of all capsules, each once."""
        names = (name for capsule in self.capsules for name in capsule.queue_names)
        return list(dict.fromkeys(names))

    @property
    def capsules_here(self) -> list[Capsule]:
        """Those whose children fetch from the Redis at ``redis.url``."""
        return [capsule for capsule in self.capsules if capsule.shard == self.shard]

    @property
    def own_capsules(self) -> list[Capsule]:
        """The capsules as the file has them; ``capsules`` has each once for each of its shards."""
        found: dict[str, Capsule] = {}
        for capsule in self.capsules:
            name = capsule.name.partition("@")[0]
            found.setdefault(name, replace(capsule, name=name))
        return list(found.values())

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
        return beside(self.pidfile, STATUS_SUFFIX)

    def of_shard(self, name: str) -> Config:
        """The same with the address of that shard; "" is itself. Raises ConfigError."""
        if name == self.shard:
            return self
        found = next((shard for shard in self.shards if shard.name == name), None)
        if found is None:
            names = ", ".join(shard.name for shard in self.shards) or "none"
            raise ConfigError(f'there is no shard "{name}" in [[redis.shards]]; there is {names}')
        server = replace(self.redis, url=found.url, password_source=found.password_source)
        return replace(self, shard=name, redis=server)

    def origin(self, key: str) -> Origin:
        """Where the value of ``key`` was given, such as "redis.url"."""
        return self.origins.get(key, DEFAULT)


def _queues(items: tuple[str | tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Both spellings of a weight, ``"mail,3"`` and ``["mail", 3]``, as pairs."""
    texts = (item if isinstance(item, str) else f"{item[0]},{item[1]}" for item in items)
    queues = weigh(parse_queue(text) for text in texts)
    for name, _ in queues:
        check_queue(name)
    return queues


# What a file may say: every key with the type of its value.
_NOT_OF_FORKQ: Final = (
    "recycling", "redis", "log", "web", "capsules", "cron", "rules", "source", "folder", "reload",
    "foreground", "origins", "shards", "shard"
)  # fmt: skip
_FORKQ: Final[Table] = {**keys_of(Config, without=_NOT_OF_FORKQ), **RECYCLING}
_REDIS: Final[Table] = {
    "url": keys_of(RedisSettings)["url"],
    **PASSWORD_KEYS,
    **keys_of(RedisSettings, without=("url", "password_source")),
}
PLAIN_TABLES: Final[Mapping[str, Table]] = {
    "forkq": _FORKQ,
    "redis": _REDIS,
    "log": keys_of(LogSettings),
    "web": keys_of(WebTable),
}
CAPSULE: Final[Table] = {
    "queues": Annotated[tuple[str | tuple[str, int], ...], Meta(description=QUEUE_LIST), _queues],
    "concurrency": Annotated[int, Meta(ge=1, le=1000)],
    "workers": Workers,
    "job_timeout": JobSeconds,
    "job_hard_timeout": JobSeconds,
    "solo_children": SoloChildren,
    **RECYCLING,
}
TABLES: Final[Table] = {
    **PLAIN_TABLES,
    "redis": {**PLAIN_TABLES["redis"], "shards": SHARDS},
    "capsules": Each(CAPSULE, check_name),
    "cron": ROWS,
    **RULES,
}
# An environment may say all of it, except which environment it is.
ENVIRONMENT: Final[Table] = {
    **TABLES,
    "forkq": {key: hint for key, hint in _FORKQ.items() if key != "environment"},
}
FILE: Final[Table] = {**TABLES, "environments": Each(ENVIRONMENT)}
