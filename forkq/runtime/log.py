"""Logging of the server's processes: structlog, one line per event, to standard error.

Only server code imports this. Job arguments are never logged: they are other people's data. A line
never raises and never waits for its reader (stderr.py): it must not cost a job its outcome.

The logger is forkq's own. The global configuration of structlog is the app's.
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
# sd-daemon(3): what the journal takes for a line's priority.
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}
_NAMES: Final = frozenset({"class", "jid", "queue"})
_LONGEST: Final = 20_000
_SEVERAL_LINES: Final = "\n\t"

Event = MutableMapping[str, Any]


def configure(level: str, style: str) -> None:
    """Sets up logging for this process and, by fork, for its children.

    ``style`` is console, json, logfmt, or auto: console at a terminal, logfmt otherwise. What
    the app and its libraries say through the standard ``logging`` comes out the same way.
    """
    terminal = os.isatty(2)
    if style == "auto":
        style = "console" if terminal else "logfmt"
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        partial(_tame, "" if style == "console" else _SEVERAL_LINES),
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
        """Logs ``event`` unless this problem is logged already."""
        if problem not in self._logged:
            self._logged.add(problem)
            self._log.warning(event, **values)

    def error(self, problem: Hashable, event: str, **values: Any) -> None:
        """As ``warning``, at the level of errors."""
        if problem not in self._logged:
            self._logged.add(problem)
            self._log.error(event, **values)

    def over(self, problem: Hashable) -> bool:
        """The problem has ended; its next beginning is logged. Whether it was logged."""
        was_logged = problem in self._logged
        self._logged.discard(problem)
        return was_logged


def wait_for_reader(seconds: float) -> None:
    """For a process that may wait: how long a line waits before it is dropped."""
    if _state.output is not None:
        _state.output.wait_for_reader(seconds)


def catch_up() -> None:
    """Tells of lines that were dropped because standard error was full, once it is not."""
    if _state.output is not None:
        _state.output.catch_up()


def _wrapped(writer: object, processors: list[Any], level: int) -> Any:
    """A logger that asks the global configuration for nothing."""
    return structlog.wrap_logger(
        writer,
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=False,
    )


class _State:
    """What ``configure`` and ``bind`` have set up for this process."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.output: Stderr | None = None
        self.logger: Any = _wrapped(structlog.ReturnLogger(), [], 50)

    def configure(self, level: str, processors: list[Any]) -> None:
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        as_text = _wrapped(structlog.ReturnLogger(), processors, 10)

        def account(count: int) -> bytes:
            told = as_text.bind(**self.bound).warning(
                "log lines dropped: standard error was full", lines=count
            )
            return f"{told}\n".encode(encoding, "backslashreplace")

        self.output = Stderr(account)
        self.logger = _wrapped(_Writer(self.output, encoding), processors, _LEVELS[level])


_state = _State()


def _after_fork() -> None:
    if _state.output is not None:
        _state.output.reset()


os.register_at_fork(after_in_child=_after_fork)


class _Writer:
    """The end of structlog's chain: each level's method takes the whole line."""

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


def _tame(keep: str, _logger: object, _method: str, event: Event) -> Event:
    """Makes each value one that every renderer can show, and no terminal obeys. ``keep``: what may
    stand in the event itself, which the console shows as it is."""
    error = event.pop("exc_info", None)
    if isinstance(error, BaseException):
        event["exception"] = traceback_of(error)
    event["event"] = printable(cut(str(event["event"]), _LONGEST), keep)
    shown = {_key(key): _shown(key, value) for key, value in event.items() if key != "event"}
    return {**shown, "event": event["event"]}


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
    except Exception as bad:  # noqa: BLE001 - the app's own code, in a value that it has bound
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
    """Hands the records of the standard ``logging`` on, so that one process writes one kind of
    line."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._here, "busy", False):
            return  # a value that logs while it is shown
        self._here.busy = True
        try:
            _write_of(record)(
                _message(record),
                logger=record.name,
                exc_info=record.exc_info[1] if record.exc_info else None,
            )
        finally:
            self._here.busy = False


def _write_of(record: logging.LogRecord) -> Callable[..., None]:
    found = logger()
    for level in ("error", "warning", "info"):
        if record.levelno >= _LEVELS[level]:
            return cast("Callable[..., None]", getattr(found, level))
    return cast("Callable[..., None]", found.debug)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as bad:  # noqa: BLE001 - arguments that do not fit must not fail the caller
        return f"{record.msg!r} (its arguments do not fit: {type(bad).__name__})"
