"""``forkq start``: becomes the master."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click
from setproctitle import setproctitle

from ..config.config import Config
from ..config.limit_tables import warnings
from ..doctor.app import preload
from ..doctor.examination import at_start_of_host, at_start_of_server
from ..doctor.finding import Finding
from ..doctor.opened import Opened
from ..doctor.probe import AppReport
from ..errors import CannotBoot, ConfigError, ForkqError
from ..master.embedded_redis import EmbeddedRedis
from ..master.loop import Master
from ..master.pidfile import TITLE, Pidfile
from ..master.rescue import TIMEOUT, Rescue
from ..master.spawn import refuse_threads
from ..master.systemd import SystemdNotifier
from ..runtime import log
from ..runtime.app_loader import load_app
from ..store.connection import ConnectionLost, RedisConnection, RedisError
from ..store.dead_set import DeadSet
from ..store.recovery import Recovery
from ..store.refusals import failure, refuses
from ..store.rights import check_rights
from ..store.server_check import check_files
from ..wire.keys import Keys
from ..wire.printable import traceback_of
from ..wire.redis_url import EMBEDDED, redacted_url
from .options import configuration, runs_tree

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_STDERR: Final = 2


@click.command()
@runs_tree
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug.")
def start(verbose: bool, **flags: Any) -> int:
    """Start a master and its children; ends with TERM or Ctrl-C."""
    _open_standard_streams()
    if verbose:
        flags["log_level"] = "debug"
    config = configuration(**flags)
    log.configure(config.log.level, config.log.format)
    log.bind(pid=os.getpid())
    return run(config, log.logger())


def _open_standard_streams() -> None:
    """Opens /dev/null for each standard stream that the caller has closed. Otherwise the next pipe
    would get its number, and a job would print into that pipe."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STDERR, "w", closefd=False)


def run(config: Config, logger: FilteringBoundLogger) -> int:
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
    pidfile.acquire()
    try:
        master = _assemble(config, pidfile, logger)
    except BaseException:
        pidfile.release()
        raise
    return master.run()


def _assemble(config: Config, pidfile: Pidfile, logger: FilteringBoundLogger) -> Master:
    embedded = None
    if config.redis.url == EMBEDDED:
        embedded = EmbeddedRedis(config.state_dir, config.url_file, logger)
        embedded.start()
        config = replace(config, redis=replace(config.redis, url=embedded.url))
    try:
        _check_server(config, logger)
        if config.preload:
            _preload(config, logger)
        _log_findings(at_start_of_host(config), logger)
    except BaseException:
        if embedded is not None:
            embedded.stop()
        raise
    dead_set = DeadSet(Keys(config.redis.prefix), config.dead_max, config.dead_days)
    connection = RedisConnection(config.redis.url, timeout=TIMEOUT, connect_timeout=TIMEOUT)
    rescue = Rescue(connection, Recovery(dead_set), logger)
    return Master(config, pidfile, rescue, SystemdNotifier(os.environ, logger), embedded, logger)


def _check_server(config: Config, logger: FilteringBoundLogger) -> None:
    """Logs what the server lacks. One that is away is no error: the children wait for it. One that
    is too old or refuses forkq is an error here, before the fork."""
    settings, shown = config.redis, redacted_url(config.redis.url)
    check_files(settings.url)
    connection = RedisConnection(
        settings.url, timeout=TIMEOUT, connect_timeout=settings.connect_timeout
    )
    try:
        connection.connect()
        _log_findings(at_start_of_server(connection, config), logger)
        check_rights(connection, Keys(settings.prefix))
    except ConnectionLost as error:
        if refuses(error):
            raise failure(error, settings.url) from None
        hint = _hint(settings.url)
        logger.error(
            "redis cannot be reached; waiting for it", url=shown, error=str(error), hint=hint
        )
    except RedisError as error:
        raise failure(error, settings.url) from None
    finally:
        connection.close()


def _hint(url: str) -> str:
    if url.startswith("rediss:"):
        return "check [redis] url or --redis; does that port speak TLS, as rediss:// says?"
    return "check [redis] url or --redis; `--redis embedded` needs no server"


def _log_findings(findings: Iterable[Finding], logger: FilteringBoundLogger) -> None:
    """The short form of `forkq doctor`: a line for each check that is not ok."""
    for found in findings:
        logger.warning(found.what, check=found.check, why=found.why, remedy=found.remedy)


def _preload(config: Config, logger: FilteringBoundLogger) -> None:
    """Imports the app before the fork, and freezes it: the garbage collector leaves its objects
    alone, so that the children go on sharing their memory."""
    opened = Opened()
    try:
        with opened.watch():
            load_app(config.app)
    except KeyboardInterrupt:
        raise
    except ForkqError as error:
        raise CannotBoot(str(error)) from None
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it would look like a clean end
        apps = ", ".join(config.app)
        raise CannotBoot(
            f"the app {apps} failed while it was preloaded:\n{traceback_of(error)}"
        ) from None
    refuse_threads(opened.threads())
    if sockets := opened.sockets():
        _log_findings([preload(config, AppReport(sockets=tuple(sockets)))], logger)
    gc.collect()
    gc.freeze()
