"""Pushing jobs. Any process: this module and what it imports must stay light.

redis-py takes longer to import than the whole of forkq may (150 ms), so the connection module is
loaded with the first push; it is one of two imports that are not at the top (docs/decisions/006).
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from . import middleware
from .config import Config, load
from .errors import ConfigError, InvalidJob, ServerUnavailable
from .keys import Keys
from .limits import Rulebook
from .payload import DEFAULT_QUEUE, Job, StrictArgs, dumps, new_jid, validate
from .private_files import read_trusted
from .redis_url import EMBEDDED, redacted_url
from .times import due, now

if TYPE_CHECKING:
    from .connection import Wire

Command: TypeAlias = "tuple[Any, ...]"

BATCH: Final = 1000


class Client:
    """Pushes jobs to one Redis. Thread-safe, and safe to use on both sides of a fork.

    ``default()`` is the one that job classes push with.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "",
        pool: int = 10,
        timeout: float = 5.0,
        connect_timeout: float = 2.0,
        strict_args: StrictArgs = "raise",
        rules: Rulebook | None = None,
    ) -> None:
        if url == EMBEDDED:
            raise ConfigError('for the embedded server call forkq.configure("embedded")')
        self.keys = Keys(prefix)
        self.rules = rules or Rulebook()  # what this process knows of the queues' rules
        self._strict = strict_args
        self._transport = _Transport(
            url, size=pool, timeout=timeout, connect_timeout=connect_timeout
        )

    def push(self, job: Job) -> str | None:
        """Pushes ``{"class": ..., "args": [...], ...}`` and returns its jid.

        ``at`` (see times.Moment) schedules it. Returns None if a middleware vetoed it. Raises
        InvalidJob for what could never run, ServerUnavailable if Redis cannot be reached (its text
        says whether the job may have arrived), and redis-py's ResponseError if Redis refuses it.
        """
        pushed = self._prepare(job, new_jid())
        if pushed is None:
            return None
        self._write([pushed])
        return cast(str, pushed["jid"])

    def push_bulk(self, job: Job) -> list[str]:
        """Pushes one job per element of ``args``, a list of argument lists; 1,000 a round trip.

        ``at`` may be one moment for all, or a list with one for each. Returns the jids of those
        that no middleware vetoed. Everything is validated before anything is written.
        """
        rows, moments = _rows(job)
        base = {key: value for key, value in job.items() if key not in ("args", "at", "jid")}
        jobs = [
            self._prepare({**base, "args": args, **moment}, new_jid())
            for args, moment in zip(rows, moments, strict=True)
        ]
        kept = [prepared for prepared in jobs if prepared is not None]
        for start in range(0, len(kept), BATCH):
            self._write(kept[start : start + BATCH])
        return [prepared["jid"] for prepared in kept]

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """A connected Wire for whoever looks into Redis or steers it, as ``forkq.api`` does.

        Raises ServerUnavailable if Redis cannot be reached or refuses what is asked within.
        """
        with self._transport.wire() as wire:
            yield wire

    def close(self) -> None:
        """Closes the idle connections."""
        self._transport.close()

    def _prepare(self, job: Job, jid: str) -> Job | None:
        """The job as it will be written, through the client middleware; None if vetoed."""
        if type(job) is not dict:
            raise InvalidJob(f'a job is a dict like {{"class": "Name", "args": []}}, not {job!r}')
        made = {"retry": True, "queue": DEFAULT_QUEUE, "jid": jid, "created_at": now(), **job}
        at = due(made["at"]) if made.get("at") is not None else None
        made.pop("at", None)
        validate(made, self._strict)
        if at is not None and at > now():
            made["at"] = at
        if len(middleware.client):
            made = middleware.client.run(made, lambda: made)
            if made is None:
                return None
            validate({k: v for k, v in made.items() if k != "at"}, self._strict)
        return made

    def _write(self, jobs: Sequence[Job]) -> None:
        scheduled: list[Any] = []
        lists: dict[str, list[bytes]] = {}
        for job in jobs:
            if "at" in job:
                bare = {key: value for key, value in job.items() if key != "at"}
                scheduled += (job["at"], dumps(bare))
            else:
                lists.setdefault(job["queue"], []).append(dumps({**job, "enqueued_at": now()}))
        commands: list[Command] = []
        if scheduled:
            commands.append(("ZADD", self.keys.schedule, *scheduled))
        for queue, payloads in lists.items():
            commands.append(("SADD", self.keys.queues, queue))
            commands.append(("LPUSH", self.keys.queue(queue), *payloads))
        self._transport.run(commands)


class _Transport:
    """Runs commands on pooled connections. A push is never sent twice unless it was refused."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._wires: Any = None
        self._connection: Any = None

    def run(self, commands: Sequence[Command]) -> None:
        """Sends ``commands`` in one round trip. Raises the first error among the replies."""
        replies = self._attempt(commands)
        refused = [c for c, reply in zip(commands, replies, strict=True) if self._refused(reply)]
        if refused:
            self._wires.close()  # a failover: what is pooled leads to the old master
            replies = [reply for reply in replies if not self._refused(reply)]
            replies += self._attempt(refused)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply

    @contextmanager
    def wire(self) -> Iterator[Wire]:
        """A pooled wire; what goes wrong with it is told as ServerUnavailable."""
        wires = self._open()
        try:
            with wires.wire() as wire:
                yield wire
        except self._connection.ConnectionLost as error:
            raise ServerUnavailable(self._told(error)) from error
        except self._connection.RedisError as error:
            where = redacted_url(self._url)
            raise ServerUnavailable(f"Redis at {where} refuses: {error}") from error

    def close(self) -> None:
        if self._wires is not None:
            self._wires.close()

    def _attempt(self, commands: Sequence[Command]) -> list[Any]:
        fate = "nothing was pushed"
        try:
            with self._open().wire() as wire:
                fate = "whether the job was pushed is not known"
                replies: list[Any] = wire.pipeline(commands)
                if any(self._refused(reply) for reply in replies):
                    wire.close()
                return replies
        except self._connection.ConnectionLost as error:
            raise ServerUnavailable(f"{self._told(error)}; {fate}") from error

    def _told(self, error: Exception) -> str:
        said = f"{str(error).rstrip('.')}{self._connection.password_hint(error)}"
        return f"Redis at {redacted_url(self._url)}: {said}"

    def _refused(self, reply: Any) -> bool:
        return isinstance(reply, Exception) and bool(self._connection.refused(reply))

    def _open(self) -> Any:
        with self._lock:
            if self._wires is None:
                self._connection = importlib.import_module(".connection", __package__)
                self._wires = self._connection.Wires(self._url, **self._options)
        return self._wires


_default: Client | None = None
_server: Config | None = None
_default_lock = threading.Lock()


def configure(
    url: str | None = None,
    *,
    prefix: str | None = None,
    strict_args: StrictArgs | None = None,
    environ: Mapping[str, str] | None = None,
) -> Client:
    """Sets where job classes of this process push to, and returns that client.

    What is not given here comes from the environment (``FORKQ_REDIS``, ``REDIS_URL``, ...), the
    forkq.toml of the working directory, and the defaults, as for the server; in a child, it is as
    the server has it. Raises ConfigError.
    """
    config = _server
    if url is not None or config is None:
        flags = {"redis": url} if url else {}
        config = load(None, flags, os.environ if environ is None else environ, Path.cwd())
    return use(config, prefix=prefix, strict_args=strict_args)


def use(
    config: Config, *, prefix: str | None = None, strict_args: StrictArgs | None = None
) -> Client:
    """Sets the process's client from a loaded configuration, and returns it."""
    global _default  # noqa: PLW0603 - the one setting that a process has
    settings = config.redis
    client = Client(
        address(config),
        prefix=settings.prefix if prefix is None else prefix,
        pool=settings.pool,
        timeout=settings.timeout,
        connect_timeout=settings.connect_timeout,
        strict_args=strict_args or config.strict_args,
        rules=config.rules,
    )
    _default = client
    return client


def serve(config: Config) -> None:
    """In a child: jobs push where the server fetches, unless the app says otherwise."""
    global _server  # noqa: PLW0603 - what the master has given this process
    _server = config
    use(config)


def default() -> Client:
    """The client that job classes push with; configured by itself when first needed."""
    client = _default
    if client is None:
        with _default_lock:
            client = _default or configure()
    return client


def address(config: Config) -> str:
    """The URL to connect to: ``embedded`` stands for what the running master has noted.

    Raises ServerUnavailable if no embedded server of this configuration is running, ConfigError if
    what is noted was not noted by this user's master.
    """
    if config.redis.url != EMBEDDED:
        return config.redis.url
    note = config.url_file
    try:
        return read_trusted(note).decode().strip()
    except FileNotFoundError:
        raise ServerUnavailable(
            f"the embedded server is not running: {note} does not exist; start it with "
            "`forkq start --redis embedded` in the same working directory"
        ) from None


def _rows(job: Job) -> tuple[list[Any], list[dict[str, Any]]]:
    """The argument lists of a bulk push, and each one's share of ``at``."""
    rows = job.get("args")
    if not isinstance(rows, list | tuple) or not all(isinstance(r, list | tuple) for r in rows):
        raise InvalidJob(
            f"job {job.get('class')!r}: a bulk push takes args=[[...], [...]], a list of argument "
            "lists"
        )
    moments = job.get("at")
    if isinstance(moments, list | tuple):
        if len(moments) != len(rows):
            raise InvalidJob(
                f"job {job.get('class')!r}: {len(moments)} times `at` for {len(rows)} argument "
                "lists; pass one time, or one for each"
            )
        return [list(row) for row in rows], [{"at": moment} for moment in moments]
    shared = {} if moments is None else {"at": moments}
    return [list(row) for row in rows], [shared] * len(rows)
