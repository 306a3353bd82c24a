"""What the app and its libraries log, by the standard ``logging`` or by structlog.

While the app is loaded, forkq's handler is the one of last resort: any logging that the app sets up
then counts, ``basicConfig`` too. Afterwards ``respect`` decides who writes (docs/logging.md).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog

from ..logs import JobFilter, add_job, job_values
from .log_values import as_text

_LEVELS: Final = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)
# What every record has. Other attributes come from ``extra``.
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
# What a record of structlog's has twice: as its own, and as a value.
_OF_RECORD: Final = frozenset({"event", "timestamp", "level", "logger"})
_SIMPLE: Final = (str, int, float, bool)
# structlog's own parameters: a value of that name gets an underscore.
_RESERVED: Final = frozenset({"self", "event", "method_name", "args"})

Logger = Callable[[], Any]


class _OurLevel(int):
    """A level that forkq has set, not the app."""


class AppHandler(logging.Handler):
    """Writes the records of the standard ``logging`` as forkq's lines. With ``takes_all`` it also
    writes records that a handler of the app writes."""

    def __init__(self, logger: Logger, *, takes_all: bool = True) -> None:
        super().__init__()
        self._logger = logger
        self._takes_all = takes_all
        self._of_thread = threading.local()

    def createLock(self) -> None:  # noqa: N802 - logging's name
        """Makes no lock: a job's fork could find it locked."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Writes one record, without a lock."""
        if self.filter(record) and (self._takes_all or not _is_written(record)):
            self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record. Never raises, and never calls itself."""
        if getattr(self._of_thread, "busy", False):
            return  # a value of the record logs while it is converted to text
        self._of_thread.busy = True
        try:
            values = {"logger": record.name, **job_values(), **_extra(record)}
            if record.stack_info:
                values["stack"] = record.stack_info
            event = _event(record, values)
            named = {f"{key}_" if key in _RESERVED else as_text(key): values[key] for key in values}
            _method(self._logger(), record)(event, **named)
        finally:
            self._of_thread.busy = False


def install(logger: Logger, level: int) -> None:
    """Makes forkq's handler the one of last resort, before the app is loaded. ``level`` is the
    level of loggers that have none."""
    logging.lastResort = AppHandler(logger)
    logging.getLogger().setLevel(_OurLevel(level))


def respect(logger: Logger, *, takeover: bool, level: int) -> None:
    """Decides, once the app is loaded, who writes its lines. Without ``takeover``, forkq's handler
    becomes the root logger's only if the app has given it none, and takes no record that a handler
    of the app writes. With it, the handlers that write to standard output or error go, and forkq's
    takes every record."""
    root = logging.getLogger()
    for one in _reaching_root() if takeover else [root]:
        unwanted = _is_console if takeover else _is_plain
        one.handlers[:] = [h for h in one.handlers if not unwanted(h) and type(h) is not AppHandler]
    ours = takeover or not root.handlers
    if ours:
        root.addHandler(AppHandler(logger, takes_all=takeover))
    elif isinstance(root.level, _OurLevel):
        root.setLevel(logging.WARNING)  # as Python has it
    for handler in _handlers():
        handler.addFilter(_job_filter)
    _respect_structlog(logger, level, ours=ours)


_job_filter: Final = JobFilter()


def _respect_structlog(logger: Logger, level: int, *, ours: bool) -> None:
    """An app that uses structlog as it comes writes forkq's lines. An app with its own chain gets
    the job as the first step, unless its lines go to forkq's handler, which adds the job itself."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[add_job, _hand_over],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            logger_factory=lambda *_: _Forwarder(logger),
            cache_logger_on_first_use=False,
        )
        return
    found = structlog.get_config()
    chain, factory = found["processors"], found["logger_factory"]
    if ours and isinstance(factory, structlog.stdlib.LoggerFactory):
        return
    if isinstance(chain, list) and add_job not in chain and _hand_over not in chain:
        chain.insert(0, add_job)


def _hand_over(_logger: object, _method: str, event: Any) -> tuple[tuple[Any], Any]:
    """The last step of the app's chain: the line becomes one of forkq's."""
    return (event.pop("event", ""),), event


class _Forwarder:
    """The end of the app's chain."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger

    def __getattr__(self, method: str) -> Any:
        return getattr(self._logger(), method)


def _handlers() -> Iterator[logging.Handler]:
    """The handlers of the app."""
    for one in [logging.getLogger(), *_loggers()]:
        yield from (h for h in one.handlers if type(h) is not AppHandler)


def _loggers() -> list[logging.Logger]:
    known = list(logging.Logger.manager.loggerDict.values())
    return [one for one in known if isinstance(one, logging.Logger)]


def _reaching_root() -> Iterator[logging.Logger]:
    """The loggers whose records the root logger gets; the root logger, too."""
    for one in [logging.getLogger(), *_loggers()]:
        link: logging.Logger | None = one
        while link is not None and link.parent is not None and link.propagate:
            link = link.parent
        if link is logging.root:
            yield one


def _is_console(handler: logging.Handler) -> bool:
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and handler.stream in streams


def _is_plain(handler: logging.Handler) -> bool:
    """Whether a handler is what ``basicConfig()`` makes, which Python also calls by itself at the
    first ``logging.info()``: the app has chosen no format."""
    if type(handler) is not logging.StreamHandler or not _is_console(handler):
        return False
    style = getattr(handler.formatter, "_fmt", logging.BASIC_FORMAT)
    return style == logging.BASIC_FORMAT and not handler.filters and not handler.level


def _is_written(record: logging.LogRecord) -> bool:
    """Whether a logger below the root has a handler for the record: then the app has chosen where
    it goes."""
    link = logging.getLogger(record.name)
    while link is not logging.root and link is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in link.handlers):
            return True
        link = link.parent  # type: ignore[assignment]
    return False


def _method(logger: Any, record: logging.LogRecord) -> Callable[..., None]:
    for level, name in _LEVELS:
        if record.levelno >= level:
            return getattr(logger, name)  # type: ignore[no-any-return]
    return logger.debug  # type: ignore[no-any-return]


def _event(record: logging.LogRecord, values: dict[str, Any]) -> object:
    """The message of a record. structlog hands over a dictionary (``wrap_for_formatter``), whose
    other values are added to ``values``."""
    if record.exc_info:
        values["exc_info"] = record.exc_info[1]
    if type(record.msg) is not dict:
        return _message(record)
    values.update({key: record.msg[key] for key in record.msg if key not in _OF_RECORD})
    return record.msg.get("event", "")


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """The values that the app has given as ``extra``, if they are texts or numbers."""
    return {
        key: value
        for key, value in record.__dict__.items()
        if key not in _STANDARD and as_text(key)[:1] != "_" and isinstance(value, _SIMPLE)
    }


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as bad:  # noqa: BLE001 - wrong arguments must not raise in the caller
        return f"{as_text(record.msg)} (its arguments do not fit: {type(bad).__name__})"
