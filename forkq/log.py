"""Logging of the server's processes: structlog, one line per event, to standard error.

Only server code imports this. Job arguments are never logged: they are other people's data.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str, style: str, stream: TextIO | None = None) -> None:
    """Sets up logging for this process and, by fork, for its children.

    ``style`` is console, json, logfmt, or auto: console at a terminal, logfmt otherwise. What
    libraries say through the standard ``logging`` comes out the same way from WARNING on.
    """
    stream = stream or sys.stderr
    if style == "auto":
        style = "console" if stream.isatty() else "logfmt"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, *_renderers(style, stream)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lasting(stream))),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=max(_LEVELS[level], logging.WARNING),
        handlers=[_ToStructlog()],
        force=True,
    )


def bind(**values: Any) -> None:
    """Adds ``values`` to every line of this process from now on."""
    _bound.update(values)


def logger() -> Any:
    """A logger with the process's values bound."""
    return structlog.get_logger().bind(**_bound)


_bound: dict[str, Any] = {}


def _renderers(style: str, stream: TextIO) -> list[Any]:
    if style == "console":
        colors = stream.isatty()
        # Where rich is installed, structlog would print every frame's locals: the job's arguments.
        plainly = structlog.dev.plain_traceback
        return [
            structlog.dev.ConsoleRenderer(
                colors=colors, pad_event_to=24, sort_keys=False, exception_formatter=plainly
            )
        ]
    plain: list[Any] = [structlog.processors.format_exc_info]
    if style == "json":
        return [*plain, structlog.processors.JSONRenderer(default=str)]
    order = ["timestamp", "level", "event"]
    return [*plain, structlog.processors.LogfmtRenderer(key_order=order, bool_as_flag=False)]


class _Lasting:
    """A stream that outlives its reader: a closed pipe or terminal must not end a master."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes, if anybody still reads."""
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flushes, if anybody still reads."""
        with suppress(OSError, ValueError):
            self._stream.flush()


class _ToStructlog(logging.Handler):
    """Hands a library's records to structlog, so that one process writes one kind of line."""

    def emit(self, record: logging.LogRecord) -> None:
        write = logger().error if record.levelno >= logging.ERROR else logger().warning
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info or None)
