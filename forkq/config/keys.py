"""What each key of forkq.toml is for, and which variables and flag set it.

Read by ``load`` (flags and variables) and by the maker of docs/configuration.md; types and defaults
are declared in ``config``, ``cron_tables`` and ``limit_tables``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_COMMAS: Final = r"\s*,\s*"
_SPACES: Final = r"[\s;]+"  # queues already have a comma before the weight
_PARAMETERS: Final = {"-r": "require", "-q": "queues"}


@dataclass(frozen=True, slots=True)
class Key:
    """``about`` is one sentence. The first of ``variables`` that is set counts; ``split`` is the
    pattern that cuts its text into a list. ``default`` describes one that is no constant."""

    about: str
    variables: tuple[str, ...] = ()
    flag: str = ""
    split: str = ""
    default: str = ""

    @property
    def parameter(self) -> str:
        """The name of ``flag`` among the parsed flags."""
        return _PARAMETERS.get(self.flag, self.flag.lstrip("-").replace("-", "_"))


# NAME stands for a name of the user's choice, N for the number of a row.
KEYS: Final[Mapping[str, Key]] = {
    "forkq.app": Key(
        "What the children import to find the jobs: a module, `module:attribute` or a file.",
        ("FORKQ_REQUIRE",), "-r", _COMMAS,
    ),
    "forkq.timeout": Key(
        "Seconds from TERM until a job that still runs is interrupted and returned to its queue.",
        ("FORKQ_TIMEOUT",), "--timeout",
    ),
    "forkq.pidfile": Key(
        "The file with the master's process id, in which `quiet`, `stop` and `status` find it.",
        ("FORKQ_PIDFILE",), "--pidfile",
        default="`forkq.pid` in systemd's RuntimeDirectory, else a name made of the tag or the "
        "working directory, in `$XDG_RUNTIME_DIR/forkq`, `/run/forkq` (root) or `/tmp/forkq-UID`",
    ),
    "forkq.environment": Key(
        "Which of the tables `[environments.NAME]` is laid over the rest.",
        ("FORKQ_ENVIRONMENT",), "--environment",
    ),
    "forkq.tag": Key(
        "A word for process titles, logs and Sidekiq's Web UI; two masters that run in the same "
        "directory need different ones.",
        ("FORKQ_TAG",), "--tag",
    ),
    "forkq.labels": Key("Further words that the Web UI shows beside each child."),
    "forkq.preload": Key(
        "Whether the master imports the app once, before it forks; otherwise every child does.",
        ("FORKQ_PRELOAD",),
    ),
    "forkq.boot_timeout": Key(
        "Seconds that a child may take to import the app and run its startup handlers, and for "
        "which a new tree tries again when they fail ([a failed boot](signals.md#a-failed-boot)); "
        "0 is no limit.",
        ("FORKQ_BOOT_TIMEOUT",),
    ),
    "forkq.workers": Key(
        "Children of each capsule without `workers` of its own.", ("FORKQ_WORKERS",), "--workers"
    ),
    "forkq.strict_args": Key(
        "What a push does with an argument that JSON would change: refuses the job, gives a "
        "Python warning (once for each line) or none, and pushes what JSON makes of it."
    ),
    "forkq.max_payload_size": Key(
        "The most bytes of JSON that a pushed job may have; a larger one is refused."
    ),
    "forkq.max_nesting": Key(
        "The most levels of arrays and objects that a pushed job may have, the job itself included."
    ),
    "forkq.dead_max": Key("The most jobs that the dead set keeps."),
    "forkq.dead_days": Key("The most days for which the dead set keeps a job."),
    "forkq.job_timeout": Key(
        "Seconds after which `forkq.TimeLimit` is raised in a job that sets no `timeout`; 0 is no "
        "limit ([time limits](jobs.md#time-limits))."
    ),
    "forkq.job_hard_timeout": Key(
        "Seconds after which a job that sets no `hard_timeout` is ended with its child; 0 is no "
        "limit."
    ),
    "forkq.solo_children": Key(
        "How many jobs of a capsule that may have killed a process run side by side, each alone in "
        "a child of its own, as far as memory allows "
        "([isolation](jobs.md#jobs-that-kill-their-process)); 0 is one for each thread that "
        "runs jobs, at most 25."
    ),
    "forkq.silent_after": Key(
        "Seconds without a sign of life after which a child, the clock or the master counts as "
        "silent.",
        ("FORKQ_SILENT_AFTER",),
    ),
    "forkq.replace_silent_after": Key(
        "Seconds of silence after which a child gets a replacement, and ends when it can; 0 is "
        "never.",
        ("FORKQ_REPLACE_SILENT_AFTER",),
    ),
    "forkq.kill_silent_after": Key(
        "Seconds of silence after which a child is killed and its jobs go back, each with a crash "
        "record; 0 is never: a job may hold the interpreter in C for hours, and do its work.",
        ("FORKQ_KILL_SILENT_AFTER",),
    ),
    "forkq.max_memory": Key(
        "A child whose own share of memory (PSS) comes above this is replaced, and ends when its "
        "jobs have.",
        ("FORKQ_MAX_MEMORY",), default="no limit",
    ),
    "forkq.hard_max_memory": Key(
        "A child above this is killed at once; its jobs go back, each with a crash record.",
        ("FORKQ_HARD_MAX_MEMORY",), default="no limit",
    ),
    "forkq.max_jobs": Key(
        "A child that has run about so many jobs (up to a tenth fewer) is replaced; 0 is no limit.",
        ("FORKQ_MAX_JOBS",), default="`0`",
    ),
    "forkq.max_age": Key(
        "A child that has lived for about so many seconds (up to a tenth fewer) is replaced; 0 is "
        "no limit.",
        ("FORKQ_MAX_AGE",), default="`0`",
    ),
    "forkq.drain_timeout": Key(
        "Seconds after which the jobs of a replaced child are interrupted and returned to their "
        "queues; 0 is no limit.",
        ("FORKQ_DRAIN_TIMEOUT",), default="`0`",
    ),
    "forkq.state_dir": Key(
        "The folder of the embedded server and its data.",
        default="systemd's StateDirectory, else a folder named like the pidfile in "
        "`$XDG_STATE_HOME/forkq` or `~/.local/state/forkq`",
    ),
    "redis.url": Key(
        "The address of Redis ([forms and options](redis.md)), or `embedded`: a server that forkq "
        "starts and stops itself.",
        ("FORKQ_REDIS", "REDIS_URL"), "--redis",
    ),
    "redis.password_file": Key(
        "A file with the password of Redis, read at each connect ([a new password](redis.md#a-new-"
        "password)); a relative path starts at the folder of forkq.toml.",
        ("FORKQ_REDIS_PASSWORD_FILE",), default="none",
    ),
    "redis.password_command": Key(
        "A command that prints the password of Redis, run at each connect, without a shell.",
        ("FORKQ_REDIS_PASSWORD_COMMAND",), default="none",
    ),
    "redis.prefix": Key("Put before every key; with a prefix Sidekiq does not see the data."),
    "redis.pool": Key("The most connections that the client of one process opens."),
    "redis.connect_timeout": Key("Seconds to wait for a connection."),
    "redis.timeout": Key("Seconds to wait for a reply."),
    "redis.shards[N].name": Key(
        "What commands, process titles and logs call a further server ([sharding](sharding.md)).",
        default="required",
    ),
    "redis.shards[N].url": Key("Its address, of the same forms as `url`.", default="required"),
    "redis.shards[N].password_file": Key("As `password_file`, for this server.", default="none"),
    "redis.shards[N].password_command": Key(
        "As `password_command`, for this server.", default="none"
    ),
    "redis.shards[N].queues": Key(
        "The queues and patterns whose jobs are pushed there; the first shard that has a queue "
        "counts, and `url` has all others.",
        default="required",
    ),
    "log.level": Key("The lowest level that is logged.", ("FORKQ_LOG_LEVEL",), "--log-level"),
    "log.format": Key(
        "The format of log lines; `auto` is `console` at a terminal, otherwise `logfmt`.",
        ("FORKQ_LOG_FORMAT",), "--log-format",
    ),
    "log.takeover": Key(
        "Whether forkq writes what the app logs even if the app has set up `logging` itself "
        "([logging](logging.md))."
    ),
    "log.max_job_lines": Key(
        "Lines that the app may log and print in one run of a job in a minute, before the rest is "
        "only counted; 0 is no limit ([logging](logging.md#how-much-is-logged))."
    ),
    "log.done_every": Key(
        "Of each class each child logs the first `done` line, and then each so many-th."
    ),
    "web.listen": Key(
        "Where `forkq web` listens, `HOST:PORT`; beyond the loopback it needs an authentication.",
        ("FORKQ_WEB_LISTEN",), "--listen",
    ),
    "web.password_hash": Key(
        "The password of `forkq web`, as `forkq web hash-password` prints it.",
        ("FORKQ_WEB_PASSWORD_HASH",),
    ),
    "web.user_header": Key(
        "The header in which a reverse proxy names the user; only the proxy may reach `listen`."
    ),
    "web.authenticate": Key(
        "A function `module:name` of your own: it gets the request, and returns the name of the "
        "user, or None."
    ),
    "web.authorize": Key(
        "A function `module:name` of your own: it gets the user and an action, and returns whether "
        "the user may do it."
    ),
    "web.hosts": Key("The host names under which the web UI is served, beside the loopback."),
    "web.read_only": Key("Whether the web UI offers no actions.", (), "--read-only"),
    "capsules.NAME.queues": Key(
        "The queues and patterns that the capsule serves: strictly in this order, or with weights "
        "by chance in these proportions.",
        ("FORKQ_QUEUES",), "-q", _SPACES,
        default="the queue `default` for the capsule `default`; required for others",
    ),
    "capsules.NAME.concurrency": Key(
        "Jobs that one child runs at the same time, with a thread for each.",
        ("FORKQ_CONCURRENCY",), "--concurrency",
    ),
    "capsules.NAME.workers": Key(
        "Children of this capsule.", default="`workers` under `[forkq]`"
    ),
    "capsules.NAME.job_timeout": Key(
        "The same as under `[forkq]`, for this capsule.", default="`job_timeout` under `[forkq]`"
    ),
    "capsules.NAME.job_hard_timeout": Key(
        "The same as under `[forkq]`, for this capsule.",
        default="`job_hard_timeout` under `[forkq]`",
    ),
    "capsules.NAME.solo_children": Key(
        "The same as under `[forkq]`, for this capsule.",
        default="`solo_children` under `[forkq]`",
    ),
    **{
        f"capsules.NAME.{key}": Key(
            f"As `{key}` under `[forkq]`, for the children of this capsule.",
            default=f"`{key}` under `[forkq]`",
        )
        for key in ("max_memory", "hard_max_memory", "max_jobs", "max_age", "drain_timeout")
    },
    "cron[N].name": Key(
        "What `forkq cron` and the log call the periodic job.", default="the name of the job"
    ),
    "cron[N].cron": Key(
        "When its ticks come: a cron expression of five or six fields, or a word such as `@daily`."
    ),
    "cron[N].tz": Key("The IANA time zone of the expression."),
    "cron[N].job": Key("The registered name of the job to push at each tick."),
    "cron[N].args": Key("The arguments of every run.", default="none"),
    "cron[N].queue": Key("The queue to push to.", default="the job's own queue"),
    "cron[N].overlap": Key(
        "Whether a tick pushes (`allow`) or not (`skip`) while the job of an earlier tick has not "
        "ended."
    ),
    "cron[N].missed": Key(
        "How many missed ticks are enqueued late, newest first; `once` is one, `skip` none."
    ),
    "cron[N].jitter": Key("Each push is delayed by up to so many seconds, spread evenly."),
    "cron[N].enabled": Key("Whether its ticks push anything."),
    "limits.NAME": Key(
        "The most jobs of the queue that are in progress on all hosts.", default="none"
    ),
    "process_limits.NAME": Key(
        "The most jobs of the queue that are in progress in one child.", default="none"
    ),
    "rates.NAME": Key("How many jobs of the queue may start in a time.", default="none"),
    "rates.NAME.rate": Key("The same, where the rate is a table.", default="required"),
    "rates.NAME.burst": Key(
        "How many jobs may start at once when none has started for a while.",
        default="one job, and what the rate gives in a tenth of a second",
    ),
    "blocking.NAME": Key(
        "Which later queues of the capsule wait while this queue has jobs in progress: `true` for "
        "all of them.",
        default="`false`",
    ),
    "fair.NAME": Key(
        "Whether the queues of a pattern take turns, job by job, instead of coming in alphabetical "
        "order.",
        default="`false`",
    ),
}  # fmt: skip
