"""All checks in order. ``forkq doctor`` makes all of them, ``forkq start`` those that are quick."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from ..config.config import Config
from ..config.shards import place_of_url
from ..default_client import address, default, use
from ..errors import ConfigError, ForkqError
from ..runtime.memory import resident
from ..store.connection import RedisConnection, RedisError
from ..store.refusals import failure
from ..store.server_check import check_files, check_usable
from ..values import replace
from ..wire.redis_url import EMBEDDED
from .app import app, cron, preload
from .backlog import classes, moves, spread, strays
from .batches import batches
from .finding import Finding, examine, listed, unchecked
from .flows import flows, signals
from .host import max_memory, memory, oom_group, open_files, processes
from .journal import journal
from .locks import locks, sidekiq
from .network import clock, latency, rights
from .probe import AppReport, import_app
from .redis_settings import clients, huge_pages, idle_timeout, output_buffers, overcommit
from .server import (
    ExaminedServer,
    SeenServers,
    eviction,
    persistence,
    redis_memory,
    separate,
    version,
)
from .stop_time import kubernetes, systemd
from .versions import versions

_Check: TypeAlias = "Callable[[ExaminedServer], Finding]"

# Without those that the start refuses a server for: version and rights.
_AT_START: Final[dict[str, _Check]] = {
    "eviction": eviction,
    "persistence": persistence,
    "redis-memory": redis_memory,
    "latency": latency,
}
_OF_SERVER: Final[dict[str, _Check]] = {
    "version": version,
    **_AT_START,
    "clock": clock,
    "rights": rights,
    "timeout": idle_timeout,
    "huge-pages": huge_pages,
    "overcommit": overcommit,
}


def all_findings(config: Config, unit: Path | None, grace: float | None) -> Iterator[Finding]:
    """Every check: the host, the app, Redis, and the jobs that wait there."""
    report = import_app(config) if config.app else None
    yield from _of_host(config, report, unit, grace)
    yield examine("journal", partial(journal, unit, os.environ))
    yield examine("app", partial(app, config, report))
    yield examine("cron", partial(cron, report))
    yield examine("preload", partial(preload, config, report))
    seen: SeenServers = {}
    for shard in config.shards:
        found = _of_redis(config.of_shard(shard.name), report, seen)
        yield from (replace(one, check=f"{one.check}@{shard.name}") for one in found)
    if not config.shards:
        yield from _of_redis(config, report, seen)


def at_start_of_server(
    connection: RedisConnection, config: Config, seen: SeenServers
) -> list[Finding]:
    """The findings about the server that are not ok, by a few quick commands. Raises
    ServerUnavailable if forkq cannot run there, ConfigError if it is that of another shard,
    ConnectionLost, or RedisError without the right to INFO."""
    server = ExaminedServer(connection, config)
    check_usable(server.info, server.connection)
    found = separate(server, config, seen)
    if found.level == "fail":
        raise ConfigError(f"shard {config.shard}: {found.what}; {found.why}; {found.remedy}")
    return _bad(examine(name, partial(check, server)) for name, check in _AT_START.items())


def at_start_of_host(config: Config, sockets: tuple[str, ...]) -> list[Finding]:
    """The findings about the host, and about the preloaded app, that are not ok: ``sockets`` are
    those that its import has opened. Without a preload a child's memory is taken for that of a
    process without the app."""
    opened = [preload(config, AppReport(sockets=sockets))] if sockets else []
    return [*_bad(_of_host(config, None, None, None)), *opened]


def _bad(findings: Iterator[Finding]) -> list[Finding]:
    """The findings of checks that are not ok. A check that cannot be made is not worth a line each
    time."""
    return [each for each in findings if each.checked and each.level != "ok"]


def _of_host(
    config: Config, report: AppReport | None, unit: Path | None, grace: float | None
) -> Iterator[Finding]:
    yield examine("open-files", partial(open_files, config))
    yield examine("processes", partial(processes, config))
    yield examine("memory", partial(_memory, config, report))
    yield examine("max-memory", partial(_max_memory, config))
    yield examine("oom-group", oom_group)
    yield examine("systemd", partial(systemd, config, unit, os.environ))
    yield examine("kubernetes", partial(kubernetes, config, grace, os.environ))


def _memory(config: Config, report: AppReport | None) -> Finding:
    bare = resident(os.getpid())
    return memory(config, bare, (report and report.resident) or bare)


def _max_memory(config: Config) -> Finding:
    return max_memory(config, resident(os.getpid()))


def _of_redis(config: Config, report: AppReport | None, seen: SeenServers) -> Iterator[Finding]:
    """The checks of Redis, over one connection. If there is none, no check can be made."""
    checks: dict[str, _Check] = {
        **({"separate": partial(separate, config=config, seen=seen)} if config.shard else {}),
        **_OF_SERVER,
        "clients": partial(clients, config=config),
        "buffers": partial(output_buffers, config=config),
        "classes": partial(classes, config=config, report=report),
        "versions": versions,
        "moves": moves,
        "batches": batches,
        "flows": flows,
        "signals": signals,
        "locks": locks,
        "sidekiq": sidekiq,
        **(_of_shard(config) if config.shard else {}),
    }
    # `forkq start` imports this module, and needs none of what the screens need.
    from .service import SERVICE, service  # noqa: PLC0415

    found, server = connected(config)
    yield found
    if server is None:
        names = [*checks, *(check.name for check in SERVICE)]
        yield from (unchecked(name, "there is no connection to Redis") for name in names)
        return
    try:
        yield from (examine(name, partial(check, server)) for name, check in checks.items())
        yield from service(config)
    finally:
        server.connection.close()
        default().close()


def _of_shard(config: Config) -> dict[str, _Check]:
    """The checks of jobs that only a configuration with shards has."""
    checks: dict[str, _Check] = {"strays": partial(strays, config=config)}
    if config.spread_queues:
        checks["spread"] = partial(spread, config=config)
    return checks


def connected(config: Config) -> tuple[Finding, ExaminedServer | None]:
    """A connection for the checks of Redis. The API of forkq uses the same address."""
    if config.redis.url == EMBEDDED and not config.url_file.exists():
        return unchecked("redis", "the embedded server runs only while `forkq start` does"), None
    try:
        server = _connect(config)
    except ForkqError as error:
        why = _what_stops(config)
        remedy = f"check {place_of_url(config.shard, config.shards)}"
        return Finding("fail", "redis", str(error), why, remedy), None
    return Finding("ok", "redis", server.shown), server


def _what_stops(config: Config) -> str:
    """What does not go on while this Redis cannot be reached."""
    if not config.shard:
        return "forkq runs no job"
    parts = config.queues_in_parts
    go_on = f"; new jobs of {listed(parts)} go to the other parts" if parts else ""
    return f"no job of its queues runs{go_on}"


def _connect(config: Config) -> ExaminedServer:
    """Connects to Redis. Raises ConfigError or ServerUnavailable."""
    use(config)
    url, settings = address(config), config.redis
    check_files(url)
    connection = RedisConnection(
        url,
        prefix=settings.prefix,
        timeout=settings.timeout,
        connect_timeout=settings.connect_timeout,
        password_source=settings.password_source,
    )
    try:
        connection.connect()
    except RedisError as error:
        raise failure(error, url) from None
    return ExaminedServer(connection, config)
