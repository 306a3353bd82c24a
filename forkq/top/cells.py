"""Text for the screen: names of Redis, bars, sparklines. Nothing in it is read as markup."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from ..screens import table, texts
from ..units import format_moment
from ..wire.printable import printable

_STEPS: Final = " ▁▂▃▄▅▆▇█"
_ASCII: Final = dict(zip("▁▂▃▄▅▆▇█░●…▲·│─╭╮╰╯", "_.:-=+*#.*~^-|-++++", strict=True))
GOOD, WARN, BAD, QUIET, STRONG = "green", "yellow", "red", "dim", "bold"

_STYLES: Final[dict[table.Tone, str]] = {
    "": "", "good": GOOD, "warn": WARN, "bad": BAD, "quiet": QUIET, "strong": STRONG, "name": "cyan"
}  # fmt: skip
_BAR: Final = 8
_BARS: Final = {False: 12, True: 24}  # of a trend, on a narrow screen and on a wide one


def drawn(shown: table.Cell | None, *, is_wide: bool = True) -> Text:
    """A cell of a table as text. For None, which has no place in this row, it is empty."""
    if shown is None:
        return Text("")
    if not shown:
        return words(("-", QUIET))
    parts = [_drawn(part, is_wide=is_wide) for part in shown if not _is_left_out(part)]
    return Text(" ", end="", no_wrap=True).join(parts)


def _is_left_out(part: table.Part) -> bool:
    if isinstance(part, table.Share):
        return part.is_said
    return isinstance(part, table.Phrase) and part.kind == "copy"


def _drawn(part: table.Part, *, is_wide: bool) -> Text:
    if isinstance(part, table.Phrase):
        quiet = QUIET if part.kind == "note" and not part.tone else ""
        return cell(part.text, quiet or _STYLES[part.tone])
    if isinstance(part, table.Moment):
        unknown = "-" if part.at is None else format_moment(part.at)
        return cell(part.text or unknown, _STYLES[part.tone])
    if isinstance(part, table.Trend):
        return words((spark(*_grouped(part.values, _BARS[is_wide])), "cyan"))
    return words((bar(part.part, part.whole, _BAR), _STYLES[part.tone] or QUIET))


def _grouped(values: Sequence[float], bars: int) -> tuple[Sequence[float], int]:
    """The values in as many groups as there are bars: each is the sum of as many values."""
    size = max(1, -(-len(values) // bars))
    first = len(values) % size
    return [sum(values[at : at + size]) for at in range(first, len(values), size)], bars


def cell(text: object, style: str = "") -> Text:
    """The text of a name, or of other text of Redis, in one line. It sets no colour, moves no
    cursor and is no wider than terminals take it for."""
    return Text(_tame(texts.name(text)), style, no_wrap=True, end="")


def prose(text: str) -> Text:
    """The text of a line of the app's own, as long as it is: it may wrap."""
    return Text(_tame(printable(text)))


def words(*parts: str | tuple[str, str] | Text) -> Text:
    """The text of a line with its styles. In forkq's own sentences, too, there are names of
    Redis."""
    return Text.assemble(*map(_plain, parts), no_wrap=True, end="")


def spark(values: Sequence[float], width: int) -> str:
    """The last ``width`` values as bars, by their own scale; 0 is a blank, anything else a bar."""
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    bars = (_STEPS[max(1, round(value / top * 8)) if value > 0 else 0] for value in shown)
    return "".join(bars).rjust(width)


def bar(part: float, whole: float, width: int) -> str:
    """A bar that shows a part of a whole."""
    filled = 0 if whole <= 0 else round(min(1.0, max(0.0, part / whole)) * width)
    return "█" * filled + "░" * (width - filled)


class AsciiOnly(LineFilter):
    """A filter for a terminal that has no UTF-8: each other letter is written as one of ASCII."""

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
    """The text without the selectors by which terminals disagree about the width of a letter."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFC", text)
    return "".join(one for one in text if not 0xFE00 <= ord(one) <= 0xFE0F)
