"""The table of a page: its columns fit the screen, and its cursor stays on its row."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from ..screens.table import Column
from .content import Row

_PADDING: Final = 2
_LOOK_AGAIN: Final = 0.5  # seconds
_MARK: Final[Column[Any]] = Column("mark", "", lambda _: ())


class Listing(DataTable[Text]):
    """The table of a page. Its rows are replaced as a whole, once a second."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Next", show=False),
        Binding("k", "cursor_up", "Previous", show=False),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(cursor_type="row", **options)
        self._shown: tuple[Row, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._titles: tuple[str, ...] = ()
        self._lines: list[list[Text]] = []
        self._jumped_at = float("-inf")
        self._aim = ""

    @property
    def current(self) -> Row | None:
        """The row under the cursor."""
        at = self.cursor_row
        return self._shown[at] if 0 <= at < len(self._shown) else None

    @property
    def has_jumped(self) -> bool:
        """Whether the cursor has just lost its row: a person may mean that one."""
        return time.monotonic() - self._jumped_at < _LOOK_AGAIN

    def show(
        self, columns: Sequence[Column[Any]], rows: Sequence[Row], marked: Collection[str]
    ) -> None:
        """Shows these rows. The cursor stays on its row or, if that is gone, on its place."""
        key, at, scroll = self._aim or self._key, self.cursor_row, self.scroll_y
        self._shown = tuple(rows)
        lines = [[_mark(row, marked), *row.cells] for row in rows]
        if not self._set_columns([_MARK, *columns], lines) and lines == self._lines:
            return  # nothing new: the terminal gets nothing
        self._lines, aims = lines, bool(self._aim)
        if rows:
            self._aim = ""
        self.clear()
        for line in lines:
            self.add_row(*_cut(line, self._widths, [_MARK, *columns]))
        keys = [row.key for row in rows]
        if key and keys and key not in keys:
            self._jumped_at = time.monotonic()
        at = keys.index(key) if key in keys else min(at, len(rows) - 1)
        self.move_cursor(row=max(0, at), scroll=aims)
        if not aims:
            self.scroll_to(y=scroll, animate=False, force=True)

    def aim(self, key: str) -> None:
        """Makes the cursor go to the row of that key as soon as there are rows."""
        self._aim = key

    def first(self) -> None:
        """Moves the cursor to the top, as a new page begins."""
        self.move_cursor(row=0, scroll=True)
        self.scroll_to(y=0, animate=False, force=True)

    @property
    def _key(self) -> str:
        row = self.current
        return "" if row is None else row.key

    def _set_columns(self, columns: Sequence[Column[Any]], lines: Iterable[Sequence[Text]]) -> bool:
        """Sets the columns. Returns whether they have changed."""
        room = self.app.size.width - 1 - _PADDING * len(columns)
        widths = tuple(fitted(columns, list(lines), room))
        titles = tuple(column.heading for column in columns)
        same = (widths, titles) == (self._widths, self._titles)
        if same:
            return False
        self.clear(columns=True)
        self._widths, self._titles = widths, titles
        for column, width in zip(columns, widths, strict=True):
            self.add_column(_aligned(Text(column.heading), width, column), width=width)
        return True


def fitted(columns: Sequence[Column[Any]], lines: Sequence[Sequence[Text]], room: int) -> list[int]:
    """The widths of columns that fit into ``room``: the widest column that may be cut is cut first;
    what is left goes to the last one that may be cut."""
    widths = [
        max([len(column.heading), *(line[at].cell_len for line in lines)])
        for at, column in enumerate(columns)
    ]
    free = [at for at, column in enumerate(columns) if column.least is not None]
    while sum(widths) > room and (
        wide := [at for at in free if widths[at] > (columns[at].least or 0)]
    ):
        widths[max(wide, key=lambda at: widths[at])] -= 1
    if free:
        widths[free[-1]] += max(0, room - sum(widths))
    return widths


def _cut(line: Sequence[Text], widths: Sequence[int], columns: Sequence[Column[Any]]) -> list[Text]:
    return [_aligned(*parts) for parts in zip(line, widths, columns, strict=True)]


def _aligned(text: Text, width: int, column: Column[Any]) -> Text:
    shown = text.copy()
    shown.truncate(width, overflow="ellipsis")
    if column.align == "right":
        shown.pad_left(width - shown.cell_len)
    return shown


def _mark(row: Row, marked: Collection[str]) -> Text:
    return Text("●" if row.key in marked else " ")
