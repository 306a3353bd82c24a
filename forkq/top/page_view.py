"""A page on the screen: its question, its lines, its table or text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from .cells import QUIET, STRONG, words
from .content import Content, Page, Row, Selection
from .line import ShownLine
from .listing import Listing


class PageView(Vertical):
    """Shows the content of a page, and knows which of its rows are chosen."""

    def __init__(self) -> None:
        super().__init__(id="page")
        self._content = Content()
        self._marked: set[str] = set()
        self._all = False

    def compose(self) -> ComposeResult:
        yield ShownLine(id="question")
        yield ShownLine(id="head")
        yield Listing(id="listing")
        with VerticalScroll(id="body"):
            yield ShownLine(id="text")
        yield ShownLine(id="foot")

    @property
    def current(self) -> Row | None:
        """The row under the cursor."""
        return None if self._content.body is not None else self.listing.current

    @property
    def listing(self) -> Listing:
        return self.query_one(Listing)

    @property
    def after(self) -> str:
        """The place at which the next page of a long list begins, or ""."""
        return self._content.after

    @property
    def has_jumped(self) -> bool:
        """Whether the cursor has just come to another row because its own row has left."""
        return not self.chosen_some and self.listing.has_jumped

    @property
    def chosen_some(self) -> bool:
        return self._all or bool(self._marked)

    def begin(self, page: Page) -> None:
        """Shows an empty page until its content comes."""
        self._marked, self._all, self._content = set(), False, Content()
        question = words((page.question, STRONG), "  ", (page.hint, QUIET))
        self.query_one("#question", ShownLine).show(question)
        self.listing.show((), (), ())
        self.show(Content())

    def show(self, content: Content, wanted: str = "") -> None:
        """Shows the content of a page. ``wanted`` is what was searched for."""
        self._content = content
        empty = f"Nothing here has {wanted!r} in it." if wanted else content.empty
        with self.app.batch_update():
            nothing = [words((empty, QUIET))] if empty and not content.rows else ()
            self._lines("#head", content.head)
            self._lines("#foot", nothing or content.foot)
            self._show_middle(content)

    def choose(self, key: str | None) -> None:
        """Selects a row, or ends its selection; None: all rows of the filter."""
        if key is None:
            self._all = not self._all
        else:
            self._all = False
            self._marked ^= {key}
        self.show(self._content)

    def selection(self, wanted: str) -> Selection | None:
        """The rows that an action means: all, the selected ones, or the one under the cursor. None
        without a row."""
        if self._content.body is not None:
            return Selection(())
        marked = [row.target for row in self._content.rows if row.key in self._marked]
        row = self.listing.current
        targets = marked or ([] if row is None else [row.target])
        return Selection(targets, self._all, wanted) if targets else None

    def focus_content(self) -> None:
        """Lets the keys go to the table, or scroll the text."""
        body = self.query_one("#body")
        (body if self._content.body is not None else self.listing).focus()

    def _show_middle(self, content: Content) -> None:
        listing, body = self.listing, self.query_one("#body")
        listing.display, body.display = content.body is None, content.body is not None
        if content.body is not None:
            self.query_one("#text", ShownLine).show(content.body)
            return
        keys = {row.key for row in content.rows}
        self._marked &= keys
        listing.show(content.columns, content.rows, keys if self._all else self._marked)

    def _lines(self, place: str, lines: Sequence[Text]) -> None:
        shown = self.query_one(place, ShownLine)
        shown.display = bool(lines)
        shown.show(Text("\n", no_wrap=True, overflow="ellipsis").join(lines))
