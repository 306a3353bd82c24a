"""Cells of tables as HTML."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from ..screens import table
from ..screens.texts import name
from . import charts, texts
from .visit import Visit

_NOTHING: Final = Markup('<span class="quiet">\u2013</span>')


def drawn(cell: table.Cell | None, visit: Visit) -> Markup:
    """A cell as HTML; a dash if there is nothing to say. For None, which has no place in this row,
    it is empty."""
    if cell is None:
        return Markup("")
    return Markup(" ").join(_part(part, visit) for part in cell) if cell else _NOTHING


def _part(part: table.Part, visit: Visit) -> Markup:
    if isinstance(part, table.Phrase):
        return _linked(part, visit)
    if isinstance(part, table.Moment):
        return _toned(texts.when(part.at, part.text), part.tone)
    if isinstance(part, table.Trend):
        return charts.sparkline(part.values, part.label, marks=part.marks)
    return charts.share(part.part, part.whole, part.label, "late" if part.tone else "")


def _linked(words: table.Phrase, visit: Visit) -> Markup:
    shown = _words(words)
    if words.link is None:
        return shown
    url = visit.url(words.link.path, **words.link.query)
    return Markup('<a href="{}">{}</a>').format(url, shown)


def _words(words: table.Phrase) -> Markup:
    if words.kind in ("id", "copy"):
        return texts.short_id(words.text)
    if words.kind == "code":
        return Markup('<code class="args">{}</code>').format(words.text)
    if words.kind == "tag":
        return Markup('<span class="{}">{}</span>').format(f"tag {words.tone}".strip(), words.text)
    text = name(words.text)
    if words.kind == "note":
        kind = Markup(' class="{}"').format(words.tone) if words.tone else ""
        return Markup("<small{}>{}</small>").format(kind, text)
    return _toned(Markup.escape(text), words.tone)


def _toned(shown: Markup, tone: table.Tone) -> Markup:
    if tone in ("", "name", "strong"):
        return shown
    return Markup('<span class="{}">{}</span>').format("fine" if tone == "good" else tone, shown)
