"""``forkq start``: becomes the master."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from setproctitle import setproctitle

from ..config.config import Config, RedisSettings
from ..config.limit_tables import warnings
from ..config.shards import Shard, place_of_url
from ..doctor.examination import at_start_of_host, at_start_of_server
from ..doctor.finding import Finding
from ..doctor.server import SeenServers
from ..errors import ConfigError
from ..master.embedded_redis import EmbeddedRedis
from ..master.handover import CanaryRecord, MasterRecord, fixed, take_record
from ..master.loop import Master
from ..master.pidfile import TITLE, Pidfile
from ..master.rescue import TIMEOUT, Rescue, ShardRescues
from ..master.systemd import SystemdNotifier
from ..runtime import log
from ..runtime.standard_streams import open_standard_streams, print_line_by_line
from ..store.connection import ConnectionLost, RedisConnection, RedisError
from ..store.dead_set import DeadSet
from ..store.recovery import Recovery
from ..store.refusals import failure, refuses
from ..store.rights import check_rights
from ..store.server_check import check_files
from ..wire.keys import Keys
from ..wire.redis_url import EMBEDDED, redacted_url
from .development import code_watch, development_options, for_development
from .fresh import await_configuration, start_canary
from .options import configuration, runs_tree
from .preload import preload_if_possible

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


@click.command()
@runs_tree
@development_options
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug.")
def start(verbose: bool, reload: bool, foreground: bool, **flags: Any) -> int:
    """Start a master and its children; ends with TERM or Ctrl-C."""
    open_standard_streams()
    print_line_by_line()
    if verbose:
        flags["log_level"] = "debug"
    record = take_record(os.environ)
    if isinstance(record, CanaryRecord):
        start_canary(record, flags)
    config = configuration(**flags) if record is None else await_configuration(record, flags)
    config = for_development(config, reload=reload, foreground=foreground)
    log.configure(config.log.level, config.log.format)
    log.bind(pid=os.getpid())
    with code_watch(config):
        return run(config, log.logger(), record)


def run(config: Config, logger: FilteringBoundLogger, record: MasterRecord | None = None) -> int:
    """Runs the master until it ends. Returns its exit code; raises ForkqError before the fork."""
    if not config.app:
        raise ConfigError(
            "no app to load: name the module that defines your jobs, as in `forkq start -r "
            'app.jobs`, or set app = "app.jobs" in [forkq] of forkq.toml'
        )
    for warning in warnings(config.rules, config.capsules):
        logger.warning("a rule changes nothing", file=str(config.source), why=warning)
    setproctitle(f"{TITLE} (booting)")  # by this title the commands find the master
    pidfile = Pidfile(config.pidfile)
    if record is None:
        pidfile.acquire()
    else:
        pidfile.adopt(record.pidfile)
    try:
        master = _assemble(config, pidfile, logger, record)
    except BaseException:
        pidfile.release()
        raise
    return master.run()


def _assemble(
    config: Config, pidfile: Pidfile, logger: FilteringBoundLogger, record: MasterRecord | None
) -> Master:
    """The master, with its server and its app. With ``record``: the same master goes on."""
    embedded, tree = None, fixed(config)
    if config.redis.url == EMBEDDED:
        embedded = EmbeddedRedis(config.state_dir, config.url_file, logger)
        embedded.start()
        config = replace(config, redis=replace(config.redis, url=embedded.url))
    try:
        if record is None:
            _check_servers(config, logger)
        config, sockets = preload_if_possible(config, logger, must_run=record is not None)
        if record is None:
            _log_findings(at_start_of_host(config, sockets), logger)
    except BaseException:
        if embedded is not None:
            embedded.stop()
        raise
    dead_set = DeadSet(Keys(config.redis.prefix), config.dead_max, config.dead_days)
    rescue = _rescue(config, Recovery(dead_set), logger)
    notifier = SystemdNotifier(os.environ, logger)
    master = Master(config, pidfile, rescue, notifier, embedded, tree, logger)
    if record is not None:
        master.take_over(record)
    return master


def _rescue(config: Config, recovery: Recovery, logger: FilteringBoundLogger) -> Rescue:
    def of(server: RedisSettings | Shard) -> Rescue:
        connection = RedisConnection(
            server.url,
            timeout=TIMEOUT,
            connect_timeout=TIMEOUT,
            password_source=server.password_source,
        )
        return Rescue(connection, recovery, logger)

    if not config.shards:
        return of(config.redis)
    return ShardRescues({shard.name: of(shard) for shard in config.shards})


def _check_servers(config: Config, logger: FilteringBoundLogger) -> None:
    seen: SeenServers = {}
    for shard in config.shards:
        _check_server(config.of_shard(shard.name), seen, logger)
    if not config.shards:
        _check_server(config, seen, logger)


def _check_server(config: Config, seen: SeenServers, logger: FilteringBoundLogger) -> None:
    """Logs what the server lacks. One that is away, or refuses the login or TLS, is no error: the
    children wait for it, as they do when that comes later. One that is too old, gives too few
    rights, or is that of another shard, is an error here, before the fork."""
    settings, shown = config.redis, redacted_url(config.redis.url)
    check_files(settings.url)
    connection = RedisConnection(
        settings.url,
        timeout=TIMEOUT,
        connect_timeout=settings.connect_timeout,
        password_source=settings.password_source,
    )
    try:
        connection.connect()
        _log_findings(at_start_of_server(connection, config, seen), logger)
        check_rights(connection, Keys(settings.prefix))
    except ConnectionLost as error:
        if refuses(error):
            logger.error("redis refuses; waiting for it", error=str(failure(error, settings.url)))
            return
        hint = _hint(config)
        logger.error(
            "redis cannot be reached; waiting for it", url=shown, error=str(error), hint=hint
        )
    except RedisError as error:
        raise failure(error, settings.url) from None
    finally:
        connection.close()


def _hint(config: Config) -> str:
    """What to check if the server of this configuration is away."""
    url, place = config.redis.url, place_of_url(config.shard)
    if url.startswith("rediss:"):
        return (
            f"check {place}; does that port speak TLS, as rediss:// says? does the "
            "server ask for a certificate (ssl_certfile, ssl_keyfile)?"
        )
    if url.startswith("sentinel"):
        return f"check the addresses and the name in {place}; is there a failover?"
    return f"check {place}" + ("" if config.shard else "; `--redis embedded` needs no server")


def _log_findings(findings: Iterable[Finding], logger: FilteringBoundLogger) -> None:
    """The short form of `forkq doctor`: a line for each check that is not ok. The tree starts also
    where one fails: jobs that run are better than none."""
    for found in findings:
        log = logger.error if found.level == "fail" else logger.warning
        log(found.what, check=found.check, why=found.why, remedy=found.remedy)
