"""Makes the values of a log line fit for every format: shown, cut, without control characters."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final

import structlog

from ..wire.printable import NAME_LIMIT, class_name, cut, message, printable, shown_name
from .app_frames import app_traceback
from .log_console import SENTENCE, render_console

# The journal reads a line's priority from its prefix: sd-daemon(3).
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_NAMES: Final = frozenset({"class", "jid", "queue"})
_LONGEST: Final = 20_000
_LONGEST_ERROR: Final = 1000
_MOST_BITS: Final = 660  # 200 digits
_SEVERAL_LINES: Final = "\n\t"

# The value that has the moment of a line, if it is not rendered at once (epoch seconds).
AT: Final = "_forkq_at"

Event = MutableMapping[str, Any]


def processors_for(style: str, *, colors: bool) -> list[Any]:
    """structlog's chain for console, json or logfmt."""
    chain: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        partial(_sanitize, style == "console"),
    ]
    if style == "console":
        chain.append(partial(render_console, colors=colors))
    elif style == "json":
        chain.append(structlog.processors.JSONRenderer())
    else:
        order = ["timestamp", "level", "event"]
        chain.append(structlog.processors.LogfmtRenderer(key_order=order, bool_as_flag=False))
    return [*chain, _with_priority] if _is_journal(2) else chain


def iso(stamp: float) -> str:
    """Writes epoch seconds as UTC, to the microsecond."""
    global _last_second  # noqa: PLW0603 - most lines are of the second of the line before
    whole = int(stamp)
    known, text = _last_second
    if known != whole:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(whole))
        _last_second = whole, text
    return f"{text}{int((stamp - whole) * 1e6):06}Z"


_last_second: tuple[int, str] = (-1, "")


def _sanitize(console: bool, _logger: object, _method: str, event: Event) -> Event:
    """Makes each value one that every renderer can show, without control characters. The console
    writes the event as it is, so there it keeps no control character at all."""
    stamp, sentence = event.pop(AT, None) or time.time(), event.pop(SENTENCE, None)
    _expand_error(event)
    if "timestamp" in event:  # of the app; the line has its own
        event["timestamp_"] = event.pop("timestamp")
    text = cut(as_text(event.get("event", "")), _LONGEST)
    text = printable(text, "" if console else _SEVERAL_LINES)
    shown = {_key(key): _fitted(key, value) for key, value in event.items() if key != "event"}
    shown = {"timestamp": stamp if console else iso(stamp), **shown, "event": text}
    if console and sentence is not None:
        shown[SENTENCE] = printable(cut(sentence, _LONGEST))
    return shown


def _expand_error(event: Event) -> None:
    """``exc_info`` as ``error_class``, ``error`` and, last, ``exception``: the traceback."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    elif isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event.setdefault("error_class", class_name(type(error)))
        event.setdefault("error", message(error, _LONGEST_ERROR))
        event["exception"] = app_traceback(error)


def _key(key: str) -> str:
    return key if key.isidentifier() else "".join(c if c.isalnum() else "_" for c in key)


def as_text(value: Any) -> str:
    """``value`` as text. An error in its ``__str__``, the app's code, must not reach the caller."""
    try:
        return value if type(value) is str else str(value)
    except Exception as bad:  # noqa: BLE001
        return f"(a {type(value).__name__} that cannot be shown: {type(bad).__name__})"


def _fitted(key: str, value: Any) -> Any:
    if value is None or type(value) in (bool, float):
        return value
    if type(value) in (list, tuple) and all(type(one) is str for one in value):
        return [printable(cut(one)) for one in value]
    if type(value) is dict:
        return {shown_name(as_text(key)): shown_name(as_text(value[key])) for key in value}
    text = as_text(value)
    if type(value) is int:
        return value if value.bit_length() < _MOST_BITS else cut(text)
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
