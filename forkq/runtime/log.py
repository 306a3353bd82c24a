"""Logging of the server's processes: structlog, one line per event, to standard error.

Only server code imports this. Job arguments are never logged: they may be private. A log line never
raises and never waits for its reader (unblocked_output.py), so that it cannot change a job's
outcome. How a line travels: log_values.py makes its values fit, log_console.py or structlog renders
it, and log_writer.py writes it. What the app logs: app_logging.py.

forkq's logger is apart from structlog's global configuration, which belongs to the app.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from . import app_logging
from .done_lines import DoneLines, DoneValues
from .job_lines import JobLines
from .log_values import processors_for
from .log_writer import LogWriter
from .unblocked_output import UnblockedOutput

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str, style: str) -> None:
    """Sets up logging for this process and, by fork, for its children.

    ``style`` is console, json, logfmt, or auto: console at a terminal, logfmt otherwise. Records
    that the app and its libraries send to the standard ``logging`` are written the same way, until
    the app sets up its own logging (``respect_app``).
    """
    terminal = os.isatty(2)
    if style == "auto":
        style = "console" if terminal else "logfmt"
    _state.configure(level, style, colors=terminal)
    app_logging.install(_state.app_logger, _LEVELS[level])


def respect_app(*, takeover: bool) -> None:
    """Leaves the app's own logging as it has set it up, once the app is loaded. Where it has set up
    none, or if forkq is to take over, forkq writes its lines."""
    app_logging.respect(_state.app_logger, takeover=takeover, level=_state.level)


def bind(**values: Any) -> None:
    """Adds ``values`` to every line of this process from now on."""
    _state.bound.update(values)


def logger() -> FilteringBoundLogger:
    """A logger with the process's values bound."""
    return cast("FilteringBoundLogger", _state.logger.bind(**_state.bound))


def bound_job_lines(most: int) -> None:
    """Bounds the lines that the app may write in a minute, in one run of a job; 0 is no bound. A
    process that runs jobs calls it."""
    _state.job_lines.most = most


def admit_print(*, urgent: bool, lines: int) -> bool:
    """Counts ``lines`` more that the app prints, and returns whether they may be written;
    ``urgent`` ones go to standard error."""
    return _state.job_lines.admit(urgent=urgent, lines=lines)


def done_writer() -> Callable[[DoneValues], None]:
    """A function that writes the line of a done job, of the job's values. The caller asks first
    whether INFO is logged."""
    return _state.writer.put


class LogOnce:
    """Logs a problem when it begins, and not again while it lasts.

    ``problem`` is any hashable value that tells one problem from another, such as a key's name.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._logged: set[Hashable] = set()

    @property
    def problems(self) -> tuple[Any, ...]:
        """What was logged, and has not ended."""
        return tuple(self._logged)

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
    """Makes each line wait that many seconds for a reader before it is dropped. A process that may
    wait calls it."""
    _state.output.wait_for_reader(seconds)


def begin_batching() -> None:
    """Writes lines of INFO and DEBUG together from now on, 50 ms later. A process that runs jobs
    calls it. Raises RuntimeError if the system has no thread left."""
    _state.writer.begin_batching()


def end_batching() -> None:
    """Writes each line at once from now on. A process that stops calls it."""
    _state.writer.end_batching()


def flush() -> None:
    """Writes the lines that wait."""
    _state.writer.flush()


def report_dropped_lines() -> None:
    """Reports the lines that were dropped while standard error was full, and those that jobs were
    not to write in a minute that is over."""
    _state.output.report_dropped_lines()
    report_left_out_lines()


def report_left_out_lines(*, at_end: bool = False) -> None:
    """Writes a line for each job that has logged more than it may. ``at_end``: this process
    ends."""
    for values, count in _state.job_lines.take_overfull(at_end=at_end):
        logger().warning(
            "lines of a job left out", **values, lines=count, why="[log] max_job_lines"
        )


def _wrapped(end: object, processors: list[Any], level: int) -> Any:
    """A logger that does not use structlog's global configuration."""
    return structlog.wrap_logger(
        end,
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
        cache_logger_on_first_use=False,
    )


class _State:
    """The logging of this process, as ``configure`` and ``bind`` have set it up. Before that,
    nothing is written."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self.job_lines = JobLines()
        self.level = 50
        self._encoding = "utf-8"
        self._as_text: Any = _wrapped(structlog.ReturnLogger(), [], 10)
        self._done_lines = DoneLines(self._render_info, console=False)
        self.output = UnblockedOutput(self._drop_notice, fd=-1)
        self.writer = LogWriter(self.output, self._done_lines.line, self._encoding)
        self.logger: Any = _wrapped(structlog.ReturnLogger(), [], 50)

    def configure(self, level: str, style: str, *, colors: bool) -> None:
        self.level = _LEVELS[level]
        self._encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        processors = processors_for(style, colors=colors)
        self._as_text = _wrapped(structlog.ReturnLogger(), processors, 10)
        self._done_lines = DoneLines(self._render_info, console=style == "console")
        self.output.close()
        self.output = UnblockedOutput(self._drop_notice)
        self.writer = LogWriter(self.output, self._done_lines.line, self._encoding)
        end = _Writer(self.writer)
        self.logger = _wrapped(end, processors, self.level)
        self._all_levels = _wrapped(end, [self.job_lines.gate, *processors], 10)

    def app_logger(self) -> Any:
        """The logger for lines of the app, whose own configuration says which levels it logs."""
        return self._all_levels.bind(**self.bound)

    def _render_info(self, values: dict[str, Any]) -> str:
        return str(self._as_text.bind(**self.bound).info("done", **values))

    def _drop_notice(self, count: int) -> bytes:
        notice = "log lines dropped: standard error was full"
        line = self._as_text.bind(**self.bound).warning(notice, lines=count)
        return f"{line}\n".encode(self._encoding, "backslashreplace")


_state = _State()


def _after_fork() -> None:
    _state.writer.reset()
    _state.job_lines.forget()


os.register_at_fork(after_in_child=_after_fork)


class _Writer:
    """The end of structlog's chain. The method of each level writes the rendered line."""

    def __init__(self, writer: LogWriter) -> None:
        self.debug = self.info = writer.put_text
        self.warning = self.error = self.critical = writer.put_now
