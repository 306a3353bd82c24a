"""What is on the screen, as values: made in the watcher's thread, shown by the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec
from rich.text import Text

from ..api import Server
from ..screens.facts import Observer
from ..screens.plans import Plan
from ..screens.table import Column, Table, TableRow
from .cells import WARN, drawn, words

_WIDE: Final = 100


class Row(msgspec.Struct, frozen=True):
    """``key`` is the same for the same thing in the next content. ``target`` is what actions on
    the row are given."""

    key: str
    cells: Sequence[Text]
    target: Any = None


class Content(msgspec.Struct, frozen=True):
    """A page: lines on top, a table or a long text, lines below. ``empty`` stands in place of a
    table without rows. ``after`` is the place of the next page of a long list, or ""."""

    head: Sequence[Text] = ()
    columns: Sequence[Column[Any]] = ()
    rows: Sequence[Row] = ()
    body: Text | None = None
    foot: Sequence[Text] = ()
    empty: str = ""
    after: str = ""


class Left(NamedTuple):
    """How a page was left: its filter, its place in a long list, and the row under the cursor."""

    wanted: str
    place: str
    key: str


class Look(msgspec.Struct, frozen=True):
    """The view of the person: the row under the cursor, the text of the filter, the place in a long
    list, and the columns that the screen has."""

    observer: Observer
    cursor: Row | None = None
    wanted: str = ""
    place: str = ""
    width: int = 80

    @property
    def server(self) -> Server:
        """The server of the shard that is looked at."""
        return self.observer.server

    @property
    def is_wide(self) -> bool:
        """Whether there is room for more than the 80 columns of an old terminal."""
        return self.width >= _WIDE

    def wants(self, *words: str) -> bool:
        """Whether one of these texts has the text of the filter in it."""
        return any(self.wanted.casefold() in word.casefold() for word in words)


def grid(table: Table, look: Look) -> tuple[Sequence[Column[Any]], Sequence[Row]]:
    """The columns of a table for which there is room, and the rows."""
    columns = [column for column in table.columns if look.is_wide or not column.wide]
    return columns, [drawn_row(row, columns, look) for row in table.rows]


def cut(table: Table) -> list[Text]:
    """The sentence above a table that is cut."""
    return [words((table.cut, WARN))] if table.cut else []


def drawn_row(row: TableRow, columns: Sequence[Column[Any]], look: Look) -> Row:
    """A row with a cell for each of these columns."""
    cells = [drawn(row.cells.get(column.name), is_wide=look.is_wide) for column in columns]
    return Row(row.key, cells, row.value)


class Selection(msgspec.Struct, frozen=True):
    """The rows that an action means. ``everything``: all that the filter ``wanted`` names."""

    targets: Sequence[Any]
    everything: bool = False
    wanted: str = ""


# Says what an action on a server would do. It runs in a thread, and may raise any error of forkq.
Act: TypeAlias = Callable[[Server, Selection], Plan]


class Page:
    """One page of the screens. ``number`` is its key, and that of its question; ``letter`` follows
    g, as in the web UI. ``path`` is the page of the web UI that shows the same."""

    title: ClassVar[str] = ""
    number: ClassVar[str] = ""
    letter: ClassVar[str] = ""
    path: ClassVar[str] = ""
    tab: ClassVar[bool] = False
    question: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    # Whether rows can be selected, and the page has a filter.
    many: ClassVar[bool] = False
    # Whether its actions are about what the page shows, and need no row.
    acts_on_whole: ClassVar[bool] = False
    # Whether an action ends it: what it shows has left.
    ends: ClassVar[bool] = False
    searches: ClassVar[bool] = True

    @classmethod
    def name(cls) -> str:
        """The name of the page in the navigation, such as "Dashboard"."""
        return cls.__name__.removesuffix("Page")

    def content(self, look: Look) -> Content:
        """The content of the page, as of now. Asks Redis, in the watcher's thread."""
        raise NotImplementedError

    def acts(self) -> Mapping[str, Act]:
        """The actions on the rows of the page."""
        return NOTHING

    def open(self, target: Any) -> Page | None:
        """The page that looks into a row; None if there is no more to see."""
        return None


NOTHING: Final[Mapping[str, Act]] = {}
