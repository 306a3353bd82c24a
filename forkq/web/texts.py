"""Filters of the templates: the words of forkq/screens, as HTML where that has more to show."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Final

from markupsafe import Markup

from ..screens.texts import name
from ..units import (
    format_count,
    format_duration,
    format_moment,
    format_size,
    plural,
)
from ..wire.printable import printable

_SHORT_ID: Final = 10


def when(epoch: float | None, text: str = "") -> Markup:
    """HTML of a moment relative to now, or as ``text``, with the exact one on hover and for
    machines."""
    if not epoch:
        return Markup('<span class="quiet">never</span>')
    try:
        exact = datetime.fromtimestamp(epoch, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return Markup('<span class="quiet">unknown</span>')
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        exact.isoformat(timespec="seconds"),
        exact.strftime("%Y-%m-%d %H:%M:%S"),
        text or format_moment(epoch),
    )


def short_id(text: str) -> Markup:
    """HTML of the end of an id; the whole one shows on hover, and a click copies it."""
    shown = text if len(text) <= _SHORT_ID else f"…{text[-_SHORT_ID:]}"
    return Markup(
        '<button type="button" class="id" data-copy="{0}" title="{0}: copy">{1}</button>'
    ).format(printable(text), printable(shown))


def coded(text: str) -> Markup:
    """HTML of a sentence: what stands between two backticks is a command."""
    parts = [
        Markup("<code>{}</code>").format(part) if at % 2 else Markup.escape(part)
        for at, part in enumerate(printable(text).split("`"))
    ]
    return Markup().join(parts)


def memory(kib: float) -> str:
    """The memory of a process in words, from KiB."""
    return format_size(kib * 1024)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "coded": coded,
    "count": format_count,
    "duration": format_duration,
    "memory": memory,
    "name": name,
    "plural": plural,
    "short_id": short_id,
    "when": when,
}
