"""Imports the app in a fork, and reports what that did.

In a fork, because an app may start threads that never end, change signal handlers or call
``os._exit`` while it is imported. What it prints goes to standard error.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from .. import middleware, registry
from ..config.config import Config
from ..errors import ForkqError
from ..runtime.app_frames import place_in_app
from ..runtime.app_loader import load_app
from ..runtime.memory import resident
from ..runtime.unserved import faults_of_periodic_jobs
from ..wire.printable import class_name, message, with_message
from .opened import Opened

_LONGEST_MESSAGE = 400


class AppReport(msgspec.Struct, frozen=True):
    """``error`` is why the app cannot be imported, "" if it can. ``resident`` are the bytes of
    memory that a process with the app takes; 0 if it cannot be imported. ``cron_error`` is why no
    child can publish the periodic jobs, "" if one can; ``cron_unknown`` are the names of those
    whose job the app has not registered; ``with_call`` those of server middleware that cannot be
    around a coroutine."""

    error: str = ""
    jobs: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    resident: int = 0
    cron_error: str = ""
    cron_unknown: tuple[str, ...] = ()
    with_call: tuple[str, ...] = ()


def import_app(config: Config) -> AppReport:
    """Imports the app in a fork, which may take ``boot_timeout`` seconds."""
    limit = config.boot_timeout
    return _decoded(ask_fork(lambda: msgspec.json.encode(_examine(config)), limit), limit)


def ask_fork(answer: Callable[[], bytes], limit: float) -> bytes | None:
    """The line that ``answer`` returns in a fork; what there is of it if that process ends early,
    None after ``limit`` seconds."""
    read_end, write_end = os.pipe()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        _run(answer, write_end)
    os.close(write_end)
    try:
        return _read(read_end, time.monotonic() + limit)
    finally:
        os.close(read_end)
        _end(pid)


def _run(answer: Callable[[], bytes], write_end: int) -> NoReturn:
    """Lives the fork's whole life. The fork ends without the exit hooks of the app and of this
    command."""
    # Both need a Unix, as a fork does; `forkq web` imports this module where there is none.
    from ..runtime.assignment import exit_process  # noqa: PLC0415
    from ..runtime.standard_streams import (  # noqa: PLC0415
        open_standard_streams,
        print_line_by_line,
    )

    try:
        os.setsid()
        open_standard_streams()
        os.dup2(2, 1)
        print_line_by_line()
        with Path(os.devnull).open(encoding="utf-8") as null:
            os.dup2(null.fileno(), 0)
        line = answer()
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(line + b"\n")
    finally:
        exit_process(0)


def _end(pid: int) -> None:
    """Ends the fork, which has reported or hangs, and all that its app has started."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _examine(config: Config) -> AppReport:
    opened = Opened()
    try:
        with opened.watch():
            load_app(config.app)
    except ForkqError as error:
        return AppReport(message(error, _LONGEST_MESSAGE))
    except BaseException as error:  # noqa: BLE001 - the app's own code, SystemExit too
        text = with_message(class_name(type(error)), message(error, _LONGEST_MESSAGE))
        return AppReport(f"{text}{place_in_app(error)}")
    threads, sockets = tuple(opened.threads()), tuple(opened.sockets())
    jobs, size = tuple(registry.names()), resident(os.getpid())
    wrong, unknown = faults_of_periodic_jobs(config)
    cron_error = "" if wrong is None else message(wrong, _LONGEST_MESSAGE)
    with_call = tuple(middleware.server.with_call())
    return AppReport("", jobs, threads, sockets, size, cron_error, unknown, with_call)


def _read(fd: int, deadline: float) -> bytes | None:
    """The line that the fork has written; what there is at its end, None at the deadline."""
    found = b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while not found.endswith(b"\n"):
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        if not (part := os.read(fd, 65536)):
            break
        found += part
    return found


def _decoded(line: bytes | None, limit: float) -> AppReport:
    if line is None:
        return AppReport(f"its import has not ended after {limit:g} s (boot_timeout)")
    if not line.endswith(b"\n"):
        return AppReport("its import ended the process")
    return msgspec.json.decode(line, type=AppReport)
