"""The configuration: its values, their types and their defaults.

``load`` makes it once in every process that a user starts (``forkq start``, ``stop``, ``push``);
children get the finished ``Config`` by the fork. A key of the file is one field with a ``Key``: its
type is what the file, the variables and the flag are checked against, and docs/configuration.md is
made of it. A new table of the file is one more line in ``TABLES`` and one more field of ``Config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from msgspec import Meta

from ..cron.entry import Entry
from ..errors import no_such_shard
from ..limits.rules import Rulebook
from ..values import replace
from ..wire.options import MOST_REPLICAS
from ..wire.password_source import PasswordSource
from ..wire.payload import DEEPEST, LARGEST, MAX_NESTING, MAX_SIZE
from ..wire.redis_url import checked_url
from .capsule import DEFAULT_NAME, Capsule, check_name
from .cluster_shards import MOST as MOST_CLUSTER_SHARDS
from .cron_tables import ROWS, Zone
from .expire_table import TABLE as EXPIRE
from .limit_tables import TABLES as RULES
from .password_keys import PASSWORD_KEYS
from .paths import STATUS_SUFFIX, beside
from .recycling import Recycling
from .schema import Each, Key, MadeOf, Table, key_of, keys_of, walk, with_key
from .settings import DEFAULT, Origin
from .shards import ROWS as SHARDS
from .shards import Shard
from .spread import TABLE as SPREAD
from .spread import parts_by_queue
from .web_table import WebTable

DEFAULT_ENVIRONMENT: Final = "development"

Seconds = Annotated[float, Meta(ge=0, le=86400)]
JobSeconds = Annotated[float, Meta(ge=0, le=1_000_000_000)]
NetworkSeconds = Annotated[float, Meta(ge=0.001, le=3600)]
Text = Annotated[str, Meta(min_length=1)]

_NAME = Meta(pattern=r"\A\S+\Z", description="a name without spaces")
_TAG = Meta(max_length=64, description="a string of at most 64 characters")
_COMMAS = r"\s*,\s*"

_LONGEST_BEAT = 10.0  # seconds


class Development(NamedTuple):
    """Flags of ``forkq start``: ``reload``: changed code is live after each save; ``foreground``: a
    job may use the terminal."""

    reload: bool = False
    foreground: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """``[redis]``: where the jobs are. Times in seconds; ``repr`` leaves the URL out.
    ``password_source`` comes from ``password_file`` or ``password_command``."""

    url: Annotated[str, checked_url, Key(
        "The address of Redis ([forms and options](redis.md)), or `embedded`: a server that forkq "
        "starts and stops itself.",
        ("FORKQ_REDIS", "REDIS_URL"), "--redis",
    )] = field(default="redis://localhost:6379/0", repr=False)  # fmt: skip
    password_source: Annotated[PasswordSource | None, MadeOf(PASSWORD_KEYS)] = None
    prefix: Annotated[
        str, Key("Put before every key; with a prefix Sidekiq does not see the data.")
    ] = ""
    cluster_shards: Annotated[int, Meta(ge=1, le=MOST_CLUSTER_SHARDS), Key(
        "How many shards the cluster has: the default one, and `s1`, `s2`, ..., each in a slot far "
        "from the others ([sharding](sharding.md#one-cluster-for-all-shards)).",
    )] = 1  # fmt: skip
    pool: Annotated[int, Meta(ge=1, le=1000), Key(
        "The most connections that the client of one process opens."
    )] = 10  # fmt: skip
    connect_timeout: Annotated[NetworkSeconds, Key("Seconds to wait for a connection.")] = 2.0
    timeout: Annotated[NetworkSeconds, Key("Seconds to wait for a reply.")] = 5.0
    wait: Annotated[int, Meta(ge=0, le=MOST_REPLICAS), Key(
        "For how many replicas of Redis each push waits ([durability]"
        "(redis.md#what-a-crash-may-lose)); 0 for none."
    )] = 0  # fmt: skip
    wait_timeout: Annotated[NetworkSeconds, Key(
        "Seconds that a push waits for replicas; at most half of `timeout`."
    )] = 0.1  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """``[log]``: the lowest level that is logged, the format, whose logging counts, and how much is
    logged: lines of one run of a job in a minute (0: any number), and each how many-th ``done``."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Key(
        "The lowest level that is logged.", ("FORKQ_LOG_LEVEL",), "--log-level"
    )] = "info"  # fmt: skip
    format: Annotated[Literal["auto", "console", "json", "logfmt"], Key(
        "The format of log lines; `auto` is `console` at a terminal, otherwise `logfmt`.",
        ("FORKQ_LOG_FORMAT",), "--log-format",
    )] = "auto"  # fmt: skip
    takeover: Annotated[bool, Key(
        "Whether forkq writes what the app logs even if the app has set up `logging` itself "
        "([logging](logging.md))."
    )] = False  # fmt: skip
    max_job_lines: Annotated[int, Meta(ge=0, le=1_000_000_000), Key(
        "Lines that the app may log and print in one run of a job in a minute, before the rest is "
        "only counted; 0 is no limit ([logging](logging.md#how-much-is-logged))."
    )] = 1000  # fmt: skip
    done_every: Annotated[int, Meta(ge=1, le=1_000_000_000), Key(
        "Each child logs the first `done` line of a class, and then one of this many."
    )] = 1  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The complete configuration of a forkq process, every default filled in.

    ``recycling`` has the limits of capsules without limits of their own; ``cron`` are the periodic
    jobs of the file, without what only their jobs declare
    (every.entries_by_origin); ``rules`` those of all queues, which each capsule has too; ``source``
    is the file that was read, and relative paths start at ``folder``. ``origins`` has the origin of
    each value that is no default.
    ``shards`` are all of them, the default first, or none. ``shard``: the one at ``redis.url``.
    """

    app: Annotated[tuple[Text, ...], Key(
        "What the children import to find the jobs: a module, `module:attribute` or a file.",
        ("FORKQ_REQUIRE",), "-r", parameter="require", split=_COMMAS,
    )] = ()  # fmt: skip
    timeout: Annotated[Seconds, Key(
        "Seconds from TERM until a job that still runs is interrupted and returned to its queue.",
        ("FORKQ_TIMEOUT",), "--timeout",
    )] = 25.0  # fmt: skip
    pidfile: Annotated[Path, Key(
        "The file with the master's process id, in which `quiet`, `stop` and `status` find it.",
        ("FORKQ_PIDFILE",), "--pidfile",
        default="`forkq.pid` in systemd's RuntimeDirectory, else a name made of the tag or the "
        "working directory, in `$XDG_RUNTIME_DIR/forkq`, `/run/forkq` (root) or `/tmp/forkq-UID`",
    )]  # fmt: skip
    environment: Annotated[str, _NAME, Key(
        "Which of the tables `[environments.NAME]` is laid over the rest.",
        ("FORKQ_ENVIRONMENT",), "--environment",
    )] = DEFAULT_ENVIRONMENT  # fmt: skip
    tag: Annotated[str, _TAG, Key(
        "A word for process titles, logs and Sidekiq's Web UI; two masters that run in the same "
        "directory need different ones.",
        ("FORKQ_TAG",), "--tag",
    )] = ""  # fmt: skip
    labels: Annotated[
        tuple[Text, ...], Key("Further words that the Web UI shows beside each child.")
    ] = ()
    preload: Annotated[bool, Key(
        "Whether the master imports the app once, before it forks; otherwise every child does.",
        ("FORKQ_PRELOAD",),
    )] = False  # fmt: skip
    boot_timeout: Annotated[Seconds, Key(
        "Seconds that a child may take to import the app and run its startup handlers, and for "
        "which a new tree tries again when they fail ([a failed boot](signals.md#a-failed-boot)); "
        "0 is no limit.",
        ("FORKQ_BOOT_TIMEOUT",),
    )] = 300.0  # fmt: skip
    processes: Annotated[Literal["many", "one"], Key(
        "`one`: master, child and clock are threads of one process, for a host with little memory "
        "([what that loses](small-mode.md)).",
        ("FORKQ_PROCESSES",), "--processes",
    )] = "many"  # fmt: skip
    workers: Annotated[int, Meta(ge=1, le=512), Key(
        "Children of each capsule without `workers` of its own.",
        ("FORKQ_WORKERS",), "--workers", per_capsule=True,
    )] = 1  # fmt: skip
    strict_args: Annotated[Literal["raise", "warn", "off"], Key(
        "What a push does with an argument that JSON would change: refuses the job, gives a "
        "Python warning (once for each line) or none, and pushes what JSON makes of it."
    )] = "raise"  # fmt: skip
    typed_args: Annotated[bool, Key(
        "Whether the jobs whose definitions do not say so are [typed](typed-arguments.md)."
    )] = False  # fmt: skip
    # Below what is read: a retry and a crash record add to a payload.
    max_payload_size: Annotated[int, Meta(ge=1024, le=LARGEST // 2), Key(
        "The most bytes of JSON that a pushed job may have; a larger one is refused."
    )] = MAX_SIZE  # fmt: skip
    max_nesting: Annotated[int, Meta(ge=10, le=DEEPEST - 100), Key(
        "The most levels of arrays and objects that a pushed job may have, the job itself included."
    )] = MAX_NESTING  # fmt: skip
    dead_max: Annotated[
        int, Meta(ge=0, le=100_000_000), Key("The most jobs that the dead set keeps.")
    ] = 10_000
    dead_days: Annotated[
        float, Meta(ge=0, le=36_500), Key("The most days for which the dead set keeps a job.")
    ] = 180.0
    job_timeout: Annotated[JobSeconds, Key(
        "Seconds after which `forkq.TimeLimit` is raised in a job that sets no `timeout`; 0 is no "
        "limit ([time limits](jobs.md#time-limits)).",
        per_capsule=True,
    )] = 0.0  # fmt: skip
    job_hard_timeout: Annotated[JobSeconds, Key(
        "Seconds after which a job that sets no `hard_timeout` is ended with its child; 0 is no "
        "limit.",
        per_capsule=True,
    )] = 0.0  # fmt: skip
    cron_tz: Annotated[Zone, Key(
        "The IANA time zone of the periodic jobs that name none, in the code too."
    )] = "UTC"  # fmt: skip
    solo_children: Annotated[int, Meta(ge=0, le=1000), Key(
        "How many jobs of a capsule that may have killed a process run side by side, each alone in "
        "a child of its own, as far as memory allows "
        "([isolation](jobs.md#jobs-that-kill-their-process)); 0 is one for each thread that "
        "runs jobs, at most 25.",
        per_capsule=True,
    )] = 0  # fmt: skip
    silent_after: Annotated[float, Meta(ge=1, le=86400), Key(
        "Seconds without a sign of life after which a child, the clock or the master counts as "
        "silent.",
        ("FORKQ_SILENT_AFTER",),
    )] = 30.0  # fmt: skip
    replace_silent_after: Annotated[Seconds, Key(
        "Seconds of silence after which a child gets a replacement, and ends when it can; 0 is "
        "never.",
        ("FORKQ_REPLACE_SILENT_AFTER",),
    )] = 60.0  # fmt: skip
    kill_silent_after: Annotated[Seconds, Key(
        "Seconds of silence after which a child is killed and its jobs go back, each with a crash "
        "record; 0 is never: a job may hold the interpreter in C for hours, and do its work.",
        ("FORKQ_KILL_SILENT_AFTER",),
    )] = 0.0  # fmt: skip
    state_dir: Annotated[Path, Key(
        "The folder of the embedded server and its data.",
        default="systemd's StateDirectory, else a folder named like the pidfile in "
        "`$XDG_STATE_HOME/forkq` or `~/.local/state/forkq`",
    )]  # fmt: skip
    recycling: Annotated[Recycling, MadeOf(keys_of(Recycling))] = field(default_factory=Recycling)
    redis: RedisSettings = field(default_factory=RedisSettings)
    log: LogSettings = field(default_factory=LogSettings)
    web: WebTable = field(default_factory=WebTable)
    capsules: tuple[Capsule, ...] = (Capsule(DEFAULT_NAME),)
    cron: tuple[Entry, ...] = ()
    rules: Rulebook = field(default_factory=Rulebook, hash=False)
    expire: Mapping[str, float] = field(default_factory=dict, hash=False)
    source: Path | None = None
    folder: Path = field(default=Path(), compare=False)
    shards: tuple[Shard, ...] = ()
    shard: str = ""
    development: Development = field(default_factory=Development)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False, repr=False)

    @property
    def queue_names(self) -> list[str]:
        """The queues and patterns of all capsules, each once."""
        names = (name for capsule in self.capsules for name in capsule.queue_names)
        return list(dict.fromkeys(names))

    @property
    def capsules_here(self) -> list[Capsule]:
        """The capsules whose children fetch from the Redis at ``redis.url``."""
        return [capsule for capsule in self.capsules if capsule.shard == self.shard]

    @property
    def spread_queues(self) -> list[str]:
        """The queues that are over several shards."""
        return list(parts_by_queue(self.shards))

    @property
    def queues_in_parts(self) -> tuple[str, ...]:
        """The queues of ``[spread]`` that have a part on the shard at ``redis.url``."""
        return next((shard.spread for shard in self.shards if shard.name == self.shard), ())

    @property
    def own_capsules(self) -> list[Capsule]:
        """The capsules as the file has them; ``capsules`` has each once for each of its shards."""
        found: dict[str, Capsule] = {}
        for capsule in self.capsules:
            name = capsule.name.partition("@")[0]
            found.setdefault(name, replace(capsule, name=name))
        return list(found.values())

    @property
    def in_one_process(self) -> bool:
        """Whether master, child and clock are threads of one process."""
        return self.processes == "one"

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
        """This configuration with the address of that shard; "" is the configuration itself. Raises
        ConfigError."""
        if name == self.shard:
            return self
        found = next((shard for shard in self.shards if shard.name == name), None)
        if found is None:
            raise no_such_shard(name, [shard.name for shard in self.shards])
        source, prefix = found.password_source, found.prefix
        server = replace(self.redis, url=found.url, prefix=prefix, password_source=source)
        return replace(self, shard=name, redis=server)

    def origin(self, key: str) -> Origin:
        """Where the value of ``key`` was given, such as "redis.url"."""
        return self.origins.get(key, DEFAULT)


def _of_capsule(key: str, hint: object) -> object:
    """The type of a key of ``[forkq]`` that may be in a capsule's table, too."""
    about = f"As `{key}` under `[forkq]`, for this capsule."
    return with_key(hint, Key(about, default=f"`{key}` under `[forkq]`"))


# What a file may say: every key with the type of its value.
PLAIN_TABLES: Final[Mapping[str, Table]] = {
    "forkq": keys_of(Config),
    "redis": keys_of(RedisSettings),
    "log": keys_of(LogSettings),
    "web": keys_of(WebTable),
}
_FORKQ: Final = PLAIN_TABLES["forkq"]
# The keys of [forkq] that count in a capsule without its own value.
INHERITED: Final = tuple(key for key, hint in _FORKQ.items() if key_of(hint).per_capsule)
CAPSULE: Final[Table] = {
    **keys_of(Capsule),
    **{key: _of_capsule(key, _FORKQ[key]) for key in INHERITED},
}
TABLES: Final[Table] = {
    **PLAIN_TABLES,
    "redis": {**PLAIN_TABLES["redis"], "shards": SHARDS},
    "capsules": Each(CAPSULE, check_name),
    "cron": ROWS,
    "spread": SPREAD,
    "expire": EXPIRE,
    **RULES,
}
# Every key that has a value, by its path; NAME is a name, N the number of a row.
TYPES: Final = {
    ".".join(path): hint for path, hint in walk(TABLES) if not isinstance(hint, Mapping)
}
KEYS: Final = {path: key_of(hint) for path, hint in TYPES.items()}
# An environment may say all of it, except which environment it is.
ENVIRONMENT: Final[Table] = {
    **TABLES,
    "forkq": {key: hint for key, hint in _FORKQ.items() if key != "environment"},
}
FILE: Final[Table] = {**TABLES, "environments": Each(ENVIRONMENT)}
