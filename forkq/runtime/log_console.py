"""The console's format, for people: at most 100 columns.

``14:03:12.345 W Thumbnail            failed after 1.2 s: ValueError: no such picture     7ff3cf34``

Local time, the level (a letter from WARNING on, and for DEBUG), the job's class or the process,
what happened, and the beginning of the jid. A longer text goes on in the next lines, and a value of
several lines, such as a traceback, follows as it is.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import MutableMapping
from typing import Any, Final

WIDTH: Final = 100
# The value that has the sentence for the console, instead of the event and its values.
SENTENCE: Final = "_forkq_sentence"
SHORT_JID: Final = 8
_LETTERS: Final = {"debug": "D", "info": " ", "warning": "W", "error": "E", "critical": "C"}
_COLORS: Final = {"D": "\x1b[2m", "W": "\x1b[33m", "E": "\x1b[31m", "C": "\x1b[1;31m"}
_SUBJECT: Final = 20
_LONGEST_SUBJECT: Final = 32
_INDENT: Final = 15  # the columns of time and level
_TEXT: Final = _INDENT + _SUBJECT + 1
# What the console shows elsewhere, or not at all.
_PLACED: Final = frozenset({"timestamp", "level", "event", SENTENCE, "pid", "capsule", "logger"})
_OF_JOB: Final = frozenset({"class", "jid", "queue", "attempt"})

Event = MutableMapping[str, Any]


def render_console(_logger: object, _method: str, event: Event, *, colors: bool) -> str:
    """The last step of structlog's chain. The values are shown already (log_values.py)."""
    name = event.get("class")
    text = event.get(SENTENCE)
    if name is None:
        subject = str(event.get("capsule") or ("master" if "pid" in event else ""))
        text, jid = text or _with_values(event, _PLACED), ""
    else:
        subject, jid = str(name), str(event.get("jid") or "")
        text = text or _with_values(event, _PLACED | _OF_JOB)
    letter = _LETTERS.get(event.get("level", "info"), " ")
    line = job_line(event["timestamp"], subject, text, jid, letter)
    if colors and letter in _COLORS:
        line = f"{_COLORS[letter]}{line}\x1b[0m"
    below = [v for k, v in event.items() if type(v) is str and "\n" in v and k != "event"]
    return "\n".join([line, *below])


def job_line(at: float, subject: str, text: str, jid: str, letter: str = " ") -> str:
    """One line, or several of at most 100 columns. The jid ends the first."""
    if len(subject) > _LONGEST_SUBJECT:
        subject = f"...{subject[3 - _LONGEST_SUBJECT :]}"
    head = f"{_clock(at)} {letter} {subject:<{_SUBJECT}} "
    room = WIDTH - len(head) - (SHORT_JID + 1 if jid else 0)
    if len(text) <= room:
        return f"{head}{text:<{room}} {jid[:SHORT_JID]}" if jid else head + text
    first, rest = _split(text, room)
    lines = [f"{head}{first:<{room}} {jid[:SHORT_JID]}" if jid else head + first]
    if rest:
        margin = " " * (_INDENT + _SUBJECT + 1)
        wrap = textwrap.TextWrapper(
            WIDTH, initial_indent=margin, subsequent_indent=margin, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        lines += wrap.wrap(rest)
    return "\n".join(lines)


def _split(text: str, room: int) -> tuple[str, str]:
    """The words that fit the first line, and the others. A word that is too long starts a new
    line."""
    end = text.rfind(" ", 0, room + 1)
    return ("", text) if end <= 0 else (text[:end], text[end + 1 :])


def _with_values(event: Event, placed: frozenset[str]) -> str:
    """The event, and the values that have no place of their own. The values of an error are in its
    traceback."""
    name, text = event.get("logger"), event["event"]
    if name is not None and name != "root":
        text = f"{name}: {text}"
    if "exception" in event:
        placed |= {"error_class", "error"}
    values = [
        f"{key}={_value(value)}"
        for key, value in event.items()
        if key not in placed and not (type(value) is str and "\n" in value)
    ]
    return " ".join([text, *values])


def _value(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return f'"{text}"' if " " in text else text


_last_second: tuple[int, str] = (-1, "")


def _clock(at: float) -> str:
    """The local time of a line, to the millisecond."""
    global _last_second  # noqa: PLW0603 - most lines are of the second of the line before
    whole = int(at)
    known, text = _last_second
    if known != whole:
        text = time.strftime("%H:%M:%S", time.localtime(whole))
        _last_second = whole, text
    return f"{text}.{int((at - whole) * 1000):03}"
