"""Tables as values: which columns there are, how a cell is worded, in which order rows stand.

A command prints them, ``forkq top`` and ``forkq web`` draw them. What a person sees in three places
is worded here once, and a column is added in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from ..errors import configuration
from ..units import format_count

T = TypeVar("T")

Front: TypeAlias = Literal["cli", "top", "web"]
EVERYWHERE: Final[frozenset[Front]] = frozenset({"cli", "top", "web"})
LIVE: Final[frozenset[Front]] = frozenset({"top", "web"})
COMMAND: Final[frozenset[Front]] = frozenset({"cli"})
TERMINAL: Final[frozenset[Front]] = frozenset({"top"})
BROWSER: Final[frozenset[Front]] = frozenset({"web"})

Tone: TypeAlias = Literal["", "good", "warn", "bad", "quiet", "strong", "name"]
Kind: TypeAlias = Literal["plain", "note", "tag", "id", "copy", "code"]


class PageLink(NamedTuple):
    """What a cell leads to: a page of the web UI, and its parameters."""

    path: str
    query: Mapping[str, object]


class Phrase(NamedTuple):
    """Text, which may be a name of Redis: the screen that shows it makes it printable.

    A "note" is a smaller fact beside the others, a "tag" a state. A command prints neither of them:
    it has a column for what matters there. An "id" and "code" are written as such; a "copy" is an
    id beside a name, in a browser alone.
    """

    text: str
    tone: Tone = ""
    kind: Kind = "plain"
    link: PageLink | None = None


class Moment(NamedTuple):
    """A time (epoch seconds; None: unknown). ``text`` says it in other words than how long ago."""

    at: float | None
    text: str = ""
    tone: Tone = ""


class Trend(NamedTuple):
    """Values over time, the oldest first. ``marks``: where something happened, from 0 to 1."""

    values: Sequence[float]
    label: str
    marks: Sequence[tuple[float, str]] = ()


class Share(NamedTuple):
    """A part of a whole. ``is_said``: words beside it say the same, so a terminal leaves it out."""

    part: float
    whole: float
    label: str
    tone: Tone = ""
    is_said: bool = False


Part: TypeAlias = "Phrase | Moment | Trend | Share"
# One without parts says that there is nothing to say: "-".
Cell: TypeAlias = "tuple[Part, ...]"


def note(text: str, tone: Tone = "") -> Phrase:
    """The phrase for a smaller fact beside the others."""
    return Phrase(text, tone, "note")


def tag(text: str, tone: Tone = "") -> Phrase:
    """The phrase for a state."""
    return Phrase(text, tone, "tag")


class Button(NamedTuple):
    """An action on a row: its path in the web UI, the name by which it is allowed, its fields."""

    path: str
    label: str
    action: str
    fields: Mapping[str, object]
    kind: str = ""


class Column(msgspec.Struct, Generic[T], frozen=True):
    """``title`` has a shorter form in a terminal, ``brief``. On a narrow screen of ``forkq top`` it
    keeps ``least`` letters (None: it is never cut), and is left out if it is ``wide``. A command
    never cuts it if it is ``whole``, a name that people copy. ``fact`` is what programs get under
    the column's name."""

    name: str
    title: str
    cell: Callable[[T], Cell]
    align: Literal["left", "right"] = "left"
    least: int | None = None
    wide: bool = False
    whole: bool = False
    on: frozenset[Front] = EVERYWHERE
    brief: str | None = None
    fact: Callable[[T], object] | None = None

    @property
    def heading(self) -> str:
        """The title in a terminal."""
        return self.title.upper() if self.brief is None else self.brief


class TableRow(msgspec.Struct, frozen=True):
    """``key`` is the same for the same thing in the next table. ``cells`` by the names of columns;
    ``value`` is what an action on the row is given, ``label`` names it to those who do not see it.
    """

    key: str
    cells: Mapping[str, Cell]
    value: Any = None
    buttons: tuple[Button, ...] = ()
    label: str = ""


class Empty(NamedTuple):
    """The text in place of a table without rows: what is not there, and how it would come there,
    with ``{place}`` for where people write the configuration. A command says ``brief``."""

    says: str
    how: str = ""
    brief: str = ""


class Table(msgspec.Struct, frozen=True):
    """A table that is shown. ``name`` says to those who do not see it what it lists, ``heading`` is
    the column that names a row. ``left_out`` rows are not among ``rows``; ``command`` lists
    them."""

    name: str
    columns: Sequence[Column[Any]]
    rows: Sequence[TableRow]
    empty: Empty
    left_out: int = 0
    heading: str = ""
    command: str = ""

    @property
    def cut(self) -> str:
        """The sentence that some rows are left out; "" if none are."""
        return shown_of(len(self.rows), len(self.rows) + self.left_out, self.command)


def shown_of(shown: int, total: int, command: str = "") -> str:
    """The sentence that a list is cut, and which command lists all; "" for a list that is whole."""
    if shown >= total:
        return ""
    rest = f"; `{command}` lists all" if command else ""
    return f"{format_count(shown)} of {format_count(total)} shown{rest}."


def no_buttons(_value: Any) -> tuple[Button, ...]:
    """No actions: nothing is done with a row."""
    return ()


class Sheet(msgspec.Struct, Generic[T], frozen=True):
    """How the values of one kind become a table. ``key`` names a value, a person searches in
    ``words``, ``order`` puts first what a person should see first. ``facts`` are for programs.
    ``heading`` is the column that names a row, the first one if it is empty. ``command`` lists all
    where a page does not."""

    name: str
    columns: tuple[Column[T], ...]
    key: Callable[[T], str]
    empty: Empty
    facts: Callable[[T], dict[str, Any]] = lambda _: {}
    words: Callable[[T], Iterable[str]] = lambda _: ()
    order: Callable[[T], Any] | None = None
    buttons: Callable[[T], tuple[Button, ...]] = no_buttons
    label: Callable[[T], str] | None = None
    heading: str = ""
    command: str = ""

    def chosen(self, values: Iterable[T], wanted: str = "") -> list[T]:
        """The values that have ``wanted`` in their words, in order."""
        text = wanted.casefold()
        found = [one for one in values if any(text in word.casefold() for word in self.words(one))]
        return found if self.order is None else sorted(found, key=self.order)

    def table(self, front: Front, values: Sequence[T], left_out: int = 0) -> Table:
        """The table of these values, in their order."""
        columns = self.columns_on(front)
        rows = [self.row(columns, value) for value in values]
        heading = self.heading or columns[0].name
        empty = self.empty._replace(how=self.empty.how.replace("{place}", configuration.place))
        return Table(self.name, columns, rows, empty, left_out, heading, self.command)

    def columns_on(self, front: Front) -> tuple[Column[T], ...]:
        """The columns that are seen in that place."""
        return tuple(column for column in self.columns if front in column.on)

    def row(self, columns: Iterable[Column[T]], value: T) -> TableRow:
        """The row of one value."""
        cells = {column.name: column.cell(value) for column in columns}
        label = "" if self.label is None else self.label(value)
        return TableRow(self.key(value), cells, value, self.buttons(value), label)

    def as_object(self, value: T) -> dict[str, Any]:
        """The object that a program gets of one value."""
        more = {column.name: column.fact(value) for column in self.columns if column.fact}
        return {**self.facts(value), **more}
