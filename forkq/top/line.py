"""A widget of one text, which costs nothing while it stays the same."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static


class ShownLine(Static):
    """A widget of one or more lines."""

    def __init__(self, text: Text | None = None, *, id: str | None = None, classes: str = ""):  # noqa: A002 - as all widgets call it
        self._text = text or Text()
        super().__init__(self._text, id=id, classes=classes)

    def show(self, text: Text) -> None:
        """Shows this text. The terminal gets a new layout and new lines only if there is news."""
        if text != self._text:
            self._text = text
            self.update(text)
