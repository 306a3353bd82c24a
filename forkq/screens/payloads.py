"""A payload and its arguments as text to read, their secrets masked."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .. import api
from ..wire.printable import cut, printable

LONGEST: Final = 20_000  # characters


def pretty(value: Any) -> str:
    """JSON in lines."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def payload_text(entry: api.JobEntry) -> str:
    """The masked payload; bytes that are no JSON as they are."""
    raw = entry.masked
    try:
        text = msgspec.json.format(raw, indent=2).decode()
    except (ValueError, RecursionError, msgspec.MsgspecError):
        text = raw.decode("utf-8", "replace")
    return printable(cut(text, LONGEST), keep="\n")
