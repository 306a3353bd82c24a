"""The beginnings of the processes that a running master starts by exec: a canary, and the master's
own next program (docs/decisions/013)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from setproctitle import setproctitle

from ..config.config import Config, LogSettings
from ..errors import CannotStartYet, ConfigError, ForkqError
from ..master.embedded_redis import EmbeddedRedis
from ..master.handover import CanaryRecord, MasterRecord, check_fixed, check_format
from ..master.spawn import run_canary
from ..runtime import log
from ..runtime.assignment import exit_process
from ..runtime.exit_codes import CANNOT_BOOT
from ..runtime.pipe import make_unbootable, send
from ..wire.redis_url import EMBEDDED
from .options import configuration
from .preload import preload

_RETRY_PAUSE: Final = 1.0


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
    """With the default settings of the log: those of the file are wrong."""
    default = LogSettings()
    log.configure(default.level, default.format)
    log.bind(pid=os.getpid())
    log.logger().error("the configuration is wrong now; waiting", error=str(error))


def _configuration(record: CanaryRecord | MasterRecord, flags: Mapping[str, Any]) -> Config:
    config = configuration(**flags)
    check_fixed(record.fixed, config)
    return config


def _with_server(config: Config) -> Config:
    """With the address of the embedded server, which the master runs."""
    if config.redis.url != EMBEDDED:
        return config
    server = EmbeddedRedis(config.state_dir, config.url_file, log.logger())
    return replace(config, redis=replace(config.redis, url=server.url))
