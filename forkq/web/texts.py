"""Filters of the templates: times, lengths of time, numbers, ids, arguments."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from markupsafe import Markup

from ..wire.printable import cut, printable

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_LONGEST_ARGS: Final = 200
_SHORT_ID: Final = 10


def length(seconds: float) -> str:
    """A length of time in at most two units: ``2 d 3 h``, ``4.2 s``, ``12 ms``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = round(seconds), list[str]()
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts))


def when(epoch: float | None) -> Markup:
    """A moment relative to now, with the exact one on hover and for machines."""
    if not epoch:
        return Markup('<span class="quiet">never</span>')
    try:
        exact = datetime.fromtimestamp(epoch, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return Markup('<span class="quiet">unknown</span>')
    away = epoch - time.time()
    text = (
        "just now"
        if abs(away) < 1
        else f"in {length(away)}"
        if away > 0
        else f"{length(-away)} ago"
    )
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        exact.isoformat(timespec="seconds"), exact.strftime("%Y-%m-%d %H:%M:%S"), text
    )


def count(number: float | None) -> str:
    """With separators: ``1,234,567``; ``-`` for None."""
    return "-" if number is None else f"{number:,.0f}"


def size(kib: float) -> str:
    """Memory, from KiB: ``84 MiB``."""
    mib = kib / 1024
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def short_id(text: str) -> Markup:
    """The end of an id; the whole one on hover, and copied by a click."""
    shown = text if len(text) <= _SHORT_ID else f"…{text[-_SHORT_ID:]}"
    return Markup(
        '<button type="button" class="id" data-copy="{0}" title="{0}: copy">{1}</button>'
    ).format(printable(text), printable(shown))


def arguments(args: Any, longest: int = _LONGEST_ARGS) -> Markup:
    """Arguments as JSON in a box of their own, cut. ``JobEntry.args`` has masked its secrets."""
    try:
        text = json.dumps(args, ensure_ascii=False, default=str)
    except RecursionError:
        text = "(nested too deeply to be shown)"
    return Markup('<code class="args">{}</code>').format(printable(cut(text, longest)))


def plural(number: int, word: str, words: str = "") -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def name(text: object) -> str:
    """A job's class, a queue's name, or other text of Redis: printable, and not too long."""
    return printable(cut(str(text)))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "args": arguments,
    "count": count,
    "length_of_time": length,
    "memory": size,
    "name": name,
    "plural": plural,
    "short_id": short_id,
    "when": when,
}
