"""Names, times, arguments and payloads as text to read, in the words of every screen."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import msgspec

from .. import api
from ..cron.zones import zone_of
from ..wire.printable import cut, printable

LONGEST: Final = 20_000  # characters of a payload
_LONGEST_ARGS: Final = 200


def arguments(args: Any, longest: int = _LONGEST_ARGS) -> str:
    """Arguments as JSON, cut. ``JobEntry.args`` has masked its secrets."""
    try:
        text = json.dumps(args, ensure_ascii=False, default=str)
    except RecursionError:
        text = "(nested too deeply to be shown)"
    return printable(cut(text, longest))


def name(text: object) -> str:
    """A job's class, a queue's name, or other text of Redis: printable, and not too long."""
    return printable(cut(str(text)))


def timestamp(stamp: float, tz: str | None = None) -> str:
    """An epoch second as text in a zone; without one, in this machine's."""
    try:
        at = datetime.fromtimestamp(stamp, None if tz is None else zone_of(tz).tz)
    except (ValueError, OverflowError, OSError):  # what is in Redis may be any number
        return "before the year 1" if stamp < 0 else "after the year 9999"
    return f"{at.astimezone() if tz is None else at:%Y-%m-%d %H:%M:%S %Z}"


def pretty(value: Any) -> str:
    """The value as JSON in several lines."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def payload_text(entry: api.JobEntry) -> str:
    """The masked payload as text; bytes that are no JSON as they are."""
    raw = entry.masked
    try:
        text = msgspec.json.format(raw, indent=2).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        text = raw.decode("utf-8", "replace")
    return printable(cut(text, LONGEST), keep="\n")
