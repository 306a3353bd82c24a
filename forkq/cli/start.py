"""``forkq start``: becomes the master.

Before it come the flags for development and the import of the app with ``preload``. A running
master starts this command, too: for a canary, and for its own next program (docs/decisions/013).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from setproctitle import setproctitle

from ..config.config import Config, LogSettings, RedisSettings
from ..config.limit_tables import warnings
from ..config.recycling import Recycling
from ..config.shards import Shard, place_of_url
from ..doctor.examination import at_start_of_host, at_start_of_server
from ..doctor.finding import Finding
from ..doctor.opened import Opened
from ..doctor.server import SeenServers
from ..errors import CannotBoot, CannotStartYet, ConfigError, ForkqError
from ..master.code_watch import check_installed, watching
from ..master.embedded_redis import EmbeddedRedis
from ..master.handover import (
    CanaryRecord,
    MasterRecord,
    check_fixed,
    check_format,
    fixed,
    take_record,
)
from ..master.loop import Given, Master
from ..master.one_process import OneProcess
from ..master.pidfile import TITLE, Pidfile
from ..master.rescue import TIMEOUT, Rescue, ShardRescues
from ..master.spawn import refuse_threads, run_canary
from ..master.systemd import SystemdNotifier
from ..runtime import log, prompt
from ..runtime.app_loader import app_errors, is_lasting, load_app
from ..runtime.assignment import exit_process
from ..runtime.exit_codes import CANNOT_BOOT
from ..runtime.pipe import make_unbootable, send
from ..runtime.standard_streams import open_standard_streams, print_line_by_line
from ..store.connection import ConnectionLost, RedisConnection, RedisError
from ..store.dead_set import DeadSetLimits
from ..store.recovery import Recovery
from ..store.refusals import failure, refuses
from ..store.server_check import check_files, check_rights
from ..store.unserved_queues import finish
from ..values import replace
from ..wire.keys import Keys
from ..wire.redis_url import EMBEDDED, redacted_url, speaks_tls
from .options import Command, configuration, runs_tree

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_RELOAD = click.option(
    "--reload", is_flag=True, help="For development: changed code is live after each save."
)
_FOREGROUND = click.option(
    "--foreground", is_flag=True, help="For a debugger: the job (-c 1) may use the terminal."
)
_RETRY_PAUSE: Final = 1.0


def preload(config: Config) -> tuple[str, ...]:
    """Imports the app if the configuration says so, and freezes it: the garbage collector leaves
    its objects alone, so that the children go on sharing their memory. Returns which sockets the
    import has opened. Raises CannotBoot."""
    if not config.preload:
        return ()
    opened = Opened()
    with app_errors(config.app, "preloaded"), opened.watch():
        load_app(config.app)
    finish()  # a push of the app has started a thread of ours that ends by itself
    refuse_threads(opened.threads())
    gc.collect()
    gc.freeze()
    return tuple(opened.sockets())


def preload_if_possible(
    config: Config, logger: FilteringBoundLogger, *, must_run: bool
) -> tuple[Config, tuple[str, ...]]:
    """Imports the app if the configuration says so, as ``preload`` does. If that fails, but a later
    try may not, each child imports the app itself, as often as it takes: see ``is_lasting``. With
    ``must_run`` also if no try can help: the master has children to keep. Raises CannotBoot, or
    CannotStartYet if the failed import has left threads."""
    try:
        return config, preload(config)
    except CannotBoot as error:
        if is_lasting(error) and not must_run:
            raise
        logger.error("the preload failed; each child imports the app itself", error=str(error))
        if not must_run:
            _refuse_threads_of(error)
        return replace(config, preload=False), ()


def _refuse_threads_of(error: CannotBoot) -> None:
    try:
        refuse_threads()
    except CannotBoot:
        raise CannotStartYet(str(error)) from None


def development_options(command: Command) -> Command:
    """Adds the flags."""
    return _RELOAD(_FOREGROUND(command))


def for_development(config: Config, *, reload: bool, foreground: bool) -> Config:
    """Returns ``config`` with what the flags for development change. Raises ConfigError."""
    if foreground:
        config = _for_debugger(config)
    if reload and config.in_one_process:
        raise ConfigError('--reload replaces children, and with processes = "one" there are none')
    if reload:
        check_installed()
        # Python would take the bytecode of an earlier save for that of one in the same second.
        sys.dont_write_bytecode = True
        development = config.development._replace(reload=True)
        config = replace(config, development=development, preload=False)
    return config


def code_watch(config: Config) -> AbstractContextManager[None]:
    """Watches the code while its block runs, with --reload."""
    return watching(config.folder) if config.development.reload else nullcontext()


def _for_debugger(config: Config) -> Config:
    """The configuration for a debugger: one processor, which no limit ends."""
    count = sum(capsule.workers * capsule.concurrency for capsule in config.capsules)
    if count != 1:
        raise ConfigError(
            f"--foreground is for one job at a time, and there would be {count} processors: give "
            "-c 1, with one capsule and no more than one worker"
        )
    prompt.share()
    capsules = tuple(
        replace(
            capsule, kind="threads", job_timeout=0.0, job_hard_timeout=0.0, recycling=Recycling()
        )
        for capsule in config.capsules
    )
    development = config.development._replace(foreground=True)
    return replace(config, development=development, boot_timeout=0.0, capsules=capsules)


def start_canary(record: CanaryRecord, flags: Mapping[str, Any]) -> NoReturn:
    """Reads the configuration and imports the app as a new master would, then runs jobs. What is
    wrong is reported to the master, which goes on as before."""
    setproctitle(f"forkq child {record.name} [booting]")
    try:
        check_format(record)
        config = _configuration(record, flags)
        log.configure(config.log.level, config.log.format)
        preload(config)
    except ForkqError as error:
        send(record.report, make_unbootable(str(error)))
        exit_process(CANNOT_BOOT)
    run_canary(record, _with_server(config))


def await_configuration(record: MasterRecord, flags: Mapping[str, Any]) -> Config:
    """The configuration of the master's next program. The canary has read the same file; if it was
    made wrong since, or cannot be read just now, the children work on, and this waits. Raises its
    error when the master is told to stop meanwhile: then each child stops by itself."""
    said = False
    while True:
        try:
            return _configuration(record, flags)
        except (ConfigError, CannotStartYet) as error:
            if signal.sigpending() & {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}:
                raise
            if not said:
                said = True
                _log_wrong_configuration(error)
            time.sleep(_RETRY_PAUSE)


def _log_wrong_configuration(error: ForkqError) -> None:
    """Logs the error of a wrong configuration, with the default settings of the log."""
    default = LogSettings()
    log.configure(default.level, default.format)
    log.bind(pid=os.getpid())
    log.logger().error("the configuration is wrong now; waiting", error=str(error))


def _configuration(record: CanaryRecord | MasterRecord, flags: Mapping[str, Any]) -> Config:
    config = configuration(**flags)
    check_fixed(record.fixed, config)
    return config


def _with_server(config: Config) -> Config:
    """The configuration with the address of the embedded server, which the master runs."""
    if config.redis.url != EMBEDDED:
        return config
    server = EmbeddedRedis(config.state_dir, config.url_file, log.logger())
    return replace(config, redis=replace(config.redis, url=server.url))


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
    if record is not None:
        check_format(record)
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
        pidfile.inherit(record.pidfile)
    try:
        master = _assemble(config, pidfile, logger, record)
    except BaseException:
        pidfile.release()
        raise
    code = master.run()
    if config.in_one_process:
        exit_process(code)  # as a child ends: a job that ignores the stop has a thread of its own
    return code


def _assemble(
    config: Config, pidfile: Pidfile, logger: FilteringBoundLogger, record: MasterRecord | None
) -> Master | OneProcess:
    """Makes the master, with its server and its app. With ``record`` the same master goes on."""
    embedded, tree = None, fixed(config)
    if config.redis.url == EMBEDDED:
        embedded = EmbeddedRedis(config.state_dir, config.url_file, logger)
        embedded.start()
        config = replace(config, redis=replace(config.redis, url=embedded.url))
    try:
        if record is None:
            _check_servers(config, logger)
        sockets: tuple[str, ...] = ()
        if not config.in_one_process:
            config, sockets = preload_if_possible(config, logger, must_run=record is not None)
        if record is None:
            _log_findings(at_start_of_host(config, sockets), logger)
        rescue, notifier = _rescue(config, logger), SystemdNotifier(os.environ, logger)
        given = Given(config, pidfile, rescue, notifier, embedded, tree, logger)
        master = OneProcess(given) if config.in_one_process else Master(given)
        if record is not None:
            master.take_over(record)
        if isinstance(master, OneProcess):
            master.boot()
    except BaseException:
        if embedded is not None:
            embedded.stop()
        raise
    return master


def _rescue(config: Config, logger: FilteringBoundLogger) -> Rescue:
    def of(server: RedisSettings | Shard) -> Rescue:
        dead_set = DeadSetLimits(Keys(server.prefix), config.dead_max, config.dead_days)
        connection = RedisConnection(
            server.url,
            prefix=server.prefix,
            timeout=TIMEOUT,
            connect_timeout=TIMEOUT,
            password_source=server.password_source,
        )
        return Rescue(connection, Recovery(dead_set), logger)

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
        prefix=settings.prefix,
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
    url, place = config.redis.url, place_of_url(config.shard, config.shards)
    if speaks_tls(url):
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
