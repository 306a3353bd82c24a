"""Logging of the server's processes: structlog, one line per event, to standard error.

Only server code imports this. Job arguments are never logged: they may be private. A log line never
raises and never waits for its reader (stderr.py), so that it cannot change a job's outcome.

forkq's logger is apart from structlog's global configuration, which belongs to the app.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Hashable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from ..wire.printable import NAME_LIMIT, cut, printable, shown_name, traceback_of
from .stderr import Stderr

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
# The journal reads a line's priority from its prefix: sd-daemon(3).
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_NAMES: Final = frozenset({"class", "jid", "queue"})
_LONGEST: Final = 20_000
_SEVERAL_LINES: Final = "\n\t"

Event = MutableMapping[str, Any]


def configure(level: str, style: str) -> None:
    """Sets up logging for this process and, by fork, for its children.

    ``style`` is console, json, logfmt, or auto: console at a terminal, logfmt otherwise. Records
    that the app and its libraries send to the standard ``logging`` are written the same way.
    """
    terminal = os.isatty(2)
    if style == "auto":
        style = "console" if terminal else "logfmt"
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        partial(_sanitize, "" if style == "console" else _SEVERAL_LINES),
        *([_several_lines_below] if style == "console" else []),
        _renderer(style, colors=terminal),
    ]
    if _is_journal(2):
        processors.append(_with_priority)
    _state.configure(level, processors)
    logging.basicConfig(
        level=max(_LEVELS[level], logging.INFO), handlers=[_FromLogging()], force=True
    )


def bind(**values: Any) -> None:
    """Adds ``values`` to every line of this process from now on."""
    _state.bound.update(values)


def logger() -> FilteringBoundLogger:
    """A logger with the process's values bound."""
    return cast("FilteringBoundLogger", _state.logger.bind(**_state.bound))


class LogOnce:
    """Logs a problem when it begins, and not again while it lasts.

    ``problem`` is any hashable value that tells one problem from another, such as a key's name.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._logged: set[Hashable] = set()

    def warning(self, problem: Hashable, event: str, **values: Any) -> None:
        """Logs ``event`` as a warning, unless this problem is logged already."""
        if self._is_new(problem):
            self._log.warning(event, **values)

    def error(self, problem: Hashable, event: str, **values: Any) -> None:
        """Logs ``event`` as an error, unless this problem is logged already."""
        if self._is_new(problem):
            self._log.error(event, **values)

    def over(self, problem: Hashable) -> bool:
        """Notes that the problem has ended: its next beginning is logged. Returns whether it was
        logged."""
        was_logged = problem in self._logged
        self._logged.discard(problem)
        return was_logged

    def _is_new(self, problem: Hashable) -> bool:
        is_new = problem not in self._logged
        self._logged.add(problem)
        return is_new


def wait_for_reader(seconds: float) -> None:
    """For a process that may wait: a line waits so long before it is dropped."""
    if _state.output is not None:
        _state.output.wait_for_reader(seconds)


def report_dropped_lines() -> None:
    """Reports the lines that were dropped while standard error was full."""
    if _state.output is not None:
        _state.output.report_dropped_lines()


def _wrapped(writer: object, processors: list[Any], level: int) -> Any:
    """A logger that does not use structlog's global configuration."""
    return structlog.wrap_logger(
        writer,
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=False,
    )


class _State:
    """The logging of this process, as ``configure`` and ``bind`` have set it up."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.output: Stderr | None = None
        self.logger: Any = _wrapped(structlog.ReturnLogger(), [], 50)

    def configure(self, level: str, processors: list[Any]) -> None:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        as_text = _wrapped(structlog.ReturnLogger(), processors, 10)

        def drop_notice(count: int) -> bytes:
            line = as_text.bind(**self.bound).warning(
                "log lines dropped: standard error was full", lines=count
            )
            return f"{line}\n".encode(encoding, "backslashreplace")

        self.output = Stderr(drop_notice)
        self.logger = _wrapped(_Writer(self.output, encoding), processors, _LEVELS[level])


_state = _State()


def _after_fork() -> None:
    if _state.output is not None:
        _state.output.reset()


os.register_at_fork(after_in_child=_after_fork)


class _Writer:
    """The end of structlog's chain. The method of each level writes the rendered line."""

    def __init__(self, output: Stderr, encoding: str) -> None:
        self._output = output
        self._encoding = encoding

    def _write(self, line: str) -> None:
        self._output.write(f"{line}\n".encode(self._encoding, "backslashreplace"))

    debug = info = warning = error = _write


def _renderer(style: str, *, colors: bool) -> Any:
    if style == "console":
        return structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=24, sort_keys=False)
    if style == "json":
        return structlog.processors.JSONRenderer()
    order = ["timestamp", "level", "event"]
    return structlog.processors.LogfmtRenderer(key_order=order, bool_as_flag=False)


def _sanitize(keep: str, _logger: object, _method: str, event: Event) -> Event:
    """Makes each value one that every renderer can show, without control characters. ``keep``: the
    control characters that may stay in the event, which the console writes as it is."""
    error = event.pop("exc_info", None)
    if isinstance(error, BaseException):
        event["exception"] = traceback_of(error)
    event["event"] = printable(cut(str(event["event"]), _LONGEST), keep)
    shown = {_key(key): _shown(key, value) for key, value in event.items() if key != "event"}
    return {**shown, "event": event["event"]}


def _several_lines_below(_logger: object, _method: str, event: Event) -> Event:
    """For the console, which would escape it: a value of several lines, such as the traceback of an
    app that cannot be loaded, follows the line as it is."""
    below = [key for key, value in event.items() if type(value) is str and "\n" in value]
    texts = [event.pop(key) for key in below if key != "event"]
    if texts:
        event["exception"] = "\n".join(texts)
    return event


def _key(key: str) -> str:
    return key if key.isidentifier() else "".join(c if c.isalnum() else "_" for c in key)


def _shown(key: str, value: Any) -> Any:
    if value is None or type(value) in (bool, float):
        return value
    if type(value) in (list, tuple) and all(type(one) is str for one in value):
        return [printable(cut(one)) for one in value]
    if type(value) is dict:
        return {shown_name(name): shown_name(one) for name, one in value.items()}
    try:
        text = value if type(value) is str else str(value)
    except Exception as bad:  # noqa: BLE001 - the __str__ of a value is the app's code
        return f"(a {type(value).__name__} that cannot be shown: {type(bad).__name__})"
    if type(value) is int:
        return value if len(text) <= NAME_LIMIT else cut(text)
    return printable(cut(text, NAME_LIMIT if key in _NAMES else _LONGEST), keep=_SEVERAL_LINES)


def _with_priority(_logger: object, method: str, line: str) -> str:
    prefix = f"<{_PRIORITIES[method]}>"
    return prefix + line.replace("\n", f"\n{prefix}")


def _is_journal(fd: int) -> bool:
    """Whether ``fd`` leads to the journal, which systemd says in JOURNAL_STREAM."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class _FromLogging(logging.Handler):
    """Writes the records of the standard ``logging`` as forkq's own lines."""

    def __init__(self) -> None:
        super().__init__()
        self._of_thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._of_thread, "busy", False):
            return  # a value of the record logs while it is converted to text
        self._of_thread.busy = True
        try:
            _method_for(record)(
                _message(record),
                logger=record.name,
                exc_info=record.exc_info[1] if record.exc_info else None,
            )
        finally:
            self._of_thread.busy = False


def _method_for(record: logging.LogRecord) -> Callable[..., None]:
    log = logger()
    for level in ("error", "warning", "info"):
        if record.levelno >= _LEVELS[level]:
            return cast("Callable[..., None]", getattr(log, level))
    return cast("Callable[..., None]", log.debug)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as bad:  # noqa: BLE001 - wrong arguments must not raise in the caller
        return f"{record.msg!r} (its arguments do not fit: {type(bad).__name__})"
