"""Text for the screen: names of Redis, bars, sparklines. Nothing in it is read as markup."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from ..screens import texts
from ..wire.printable import printable

_STEPS: Final = " ▁▂▃▄▅▆▇█"
_ASCII: Final = dict(zip("▁▂▃▄▅▆▇█░●…▲·│─╭╮╰╯", "_.:-=+*#.*~^-|-++++", strict=True))
GOOD, WARN, BAD, QUIET, STRONG = "green", "yellow", "red", "dim", "bold"


def cell(text: object, style: str = "") -> Text:
    """A name, or other text of Redis, in one line. It sets no colour, moves no cursor and is no
    wider than terminals take it for."""
    return Text(_tame(texts.name(text)), style, no_wrap=True, end="")


def prose(text: str) -> Text:
    """A line of the app's own text, as long as it is: it may wrap."""
    return Text(_tame(printable(text)))


def words(*parts: str | tuple[str, str] | Text) -> Text:
    """A line with its styles. Also in forkq's own sentences there are names of Redis."""
    return Text.assemble(*map(_plain, parts), no_wrap=True, end="")


def spark(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars, by their own scale; 0 is a blank, anything else a bar."""
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    bars = (_STEPS[max(1, round(value / top * 8)) if value > 0 else 0] for value in shown)
    return "".join(bars).rjust(width)


def bar(part: float, whole: float, width: int) -> str:
    """How much of the whole."""
    filled = 0 if whole <= 0 else round(min(1.0, max(0.0, part / whole)) * width)
    return "█" * filled + "░" * (width - filled)


class AsciiOnly(LineFilter):
    """For a terminal that has no UTF-8: each other letter is written as one of ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(_ascii(text), style, control) for text, style, control in segments]


def _ascii(text: str) -> str:
    return text if text.isascii() else "".join(map(_letter, text))


def _letter(letter: str) -> str:
    if letter.isascii():
        return letter
    if letter in _ASCII:
        return _ASCII[letter]
    plain = unicodedata.normalize("NFKD", letter)[0]
    width = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
    if unicodedata.combining(letter):
        return ""
    return (plain if plain.isascii() and plain.isprintable() else "?") * width


def _plain(part: str | tuple[str, str] | Text) -> str | tuple[str, str] | Text:
    if isinstance(part, Text):
        return part
    if isinstance(part, str):
        return _tame(printable(part))
    return _tame(printable(part[0])), part[1]


def _tame(text: str) -> str:
    """Without the selectors by which terminals disagree about the width of a letter."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    return "".join(one for one in text if not 0xFE00 <= ord(one) <= 0xFE0F)
