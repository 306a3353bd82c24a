"""The screen: one page at a time, the same six questions as in the web UI."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.filter import LineFilter, Monochrome, NoColor
from textual.message import Message
from textual.widgets import DataTable, Footer, Input

from ..screens.plans import ActionDone, Plan
from .acting import Acting, Failed, Outcome
from .cells import BAD, STRONG, WARN, AsciiOnly, words
from .content import Content, Left, Look, Page, Selection
from .keys import ACTS, KEYS, NEXT_SHARD, QUIT, UNDO, help_text
from .line import ShownLine
from .modals import Help, Question
from .page_view import PageView
from .pages import PAGES, TABS, page_of
from .shards import ShardWatchers
from .status import ProblemLines, TabChosen, Tabs
from .watcher import PageFailed, Seen

_TICK: Final = 0.5  # seconds
_SAID: Final = 60.0  # seconds that a message stays
_THEME: Final = "ansi-dark"  # the colours of the terminal itself


class Answer(Message):
    """A message from a thread: what the watcher has seen, or a step of an action."""

    def __init__(self, found: Seen | PageFailed | Outcome) -> None:
        super().__init__()
        self.found = found


class Top(App[None]):
    """The app of the screens. It shows ``server``: the address of Redis, without its password; or
    the shard of ``shards`` that is looked at."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = KEYS

    def __init__(self, server: str, *, ascii_only: bool = False, shards: Sequence[str] = ("",)):
        super().__init__()
        self.theme = _THEME
        self._own_filters: list[LineFilter] = [NoColor()] if self.no_color else []
        if ascii_only:
            self._own_filters.append(AsciiOnly())
        self._tabs = Tabs(TABS, server)
        self._problems = ProblemLines()
        self.view = PageView()
        self._message = ShownLine(id="message")
        self._search = Input(id="search", placeholder="text", compact=True)
        self.watcher = ShardWatchers(shards, self.hear)
        self.acting = Acting(self, self.watcher)
        self._pages: list[Page] = [PAGES[0]()]
        self._left: list[Left] = []  # of each page but the last one, how it was left
        self._seen: Seen | None = None
        self._wanted = self._place = ""
        self._leaving = self._going = False  # g was pressed: a letter names a page
        self._said_until = 0.0

    def compose(self) -> ComposeResult:
        yield self._tabs
        yield self._problems
        yield self.view
        yield self._message
        yield self._search
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.exit, None, 128 + number)
        self._begin()
        self.set_interval(_TICK, self._show_state)

    def on_unmount(self) -> None:
        self.watcher.end()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters of lines, without the one for shades of grey: with a terminal's own colours
        they would be black on black."""
        found = super().get_line_filters()
        return [one for one in found if not isinstance(one, Monochrome)] + self._own_filters

    @property
    def page(self) -> Page:
        """The page that is looked at; Escape returns to the pages below it."""
        return self._pages[-1]

    # From page to page

    def action_page(self, number: str) -> None:
        self._go(page_of(number=number))

    def on_tab_chosen(self, chosen: TabChosen) -> None:
        if chosen.number == NEXT_SHARD:
            self.action_shard()
        self._go(page_of(number=chosen.number))

    def action_shard(self) -> None:
        self.watcher.choose_next()
        self._go(type(self._pages[0]))

    def action_go_to(self) -> None:
        self._going = True
        self.say(
            words(
                *(part for page in PAGES for part in ((page.letter, STRONG), f" {page.name()}  "))
            )
        )

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        row = self.view.current
        opened = None if row is None else self.page.open(row.target)
        if row is not None and opened is not None:
            self._left.append(Left(self._wanted, self._place, row.key))
            self._pages.append(opened)
            self._begin()

    def action_leave(self) -> None:
        """Goes back one step: it leaves the search, the selection or the place in a list, then the
        page before."""
        stays = self._wanted or self._place or self.view.chosen_some or self._search.display
        if stays or not self._left:
            self._begin()
        else:
            self._return()

    def _return(self) -> None:
        """Returns to the page before, as it was left."""
        self._pages.pop()
        left = self._left.pop()
        self._begin(left.wanted, left.place)
        self.view.listing.aim(left.key)

    def _go(self, kind: type[Page] | None) -> None:
        if kind is not None:
            self._pages, self._left = [kind()], []
            self._begin()

    def _begin(self, wanted: str = "", place: str = "") -> None:
        """Shows the page from its start and without a filter, or from a ``place`` and with one."""
        self._wanted, self._place = wanted, place
        self._going, self._seen = False, None
        self._search.display = False
        self.view.begin(self.page)
        self.view.focus_content()
        self._look()
        self._show_state()
        self.refresh_bindings()

    def _look(self) -> None:
        width = self.size.width
        look = Look(self.watcher.observer, self.view.current, self._wanted, self._place, width)
        self.watcher.look(self.page, look)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        if self._seen is not None:
            self._look()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        if self._seen is not None:
            self.view.show(self._seen.content, self._wanted)
        self._show_state()
        self._look()

    # Searching, and long lists

    def action_search(self) -> None:
        self._search.display = True
        self._search.value = self._wanted
        self._search.focus()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._begin(self._search.value.strip())

    def action_further(self) -> None:
        if self.view.after:
            self._place = self.view.after
            self.view.listing.first()
            self._look()

    # Actions

    def action_select(self) -> None:
        row = self.view.current
        if row is not None:
            self.view.choose(row.key)
            self.view.listing.action_cursor_down()

    def action_everything(self) -> None:
        self.view.choose(None)

    def action_letter(self, letter: str) -> None:
        """Obeys a letter: after g it names a page, else what is done with the row."""
        going, self._going = self._going, False
        if going:
            self.say(Text())
            self._go(page_of(letter=letter))
        elif letter == QUIT:
            self._quit()
        elif letter == UNDO:
            self.acting.undo()
        else:
            self._act(ACTS[letter][0])

    def _act(self, name: str) -> None:
        is_whole, act = self.page.acts_on_whole, self.page.acts().get(name)
        selection = Selection(()) if is_whole else self.view.selection(self._wanted)
        if act is None or selection is None:
            return
        if self.view.has_jumped and not is_whole:
            self.say(words(("The row has just left, and this is another: look again.", WARN)))
            return
        self.acting.begin(lambda server: act(server, selection))

    def ask(self, plan: Plan, answered: Callable[[bool | None], None]) -> None:
        """Asks the person, before what cannot be taken back, or concerns many jobs."""
        self.push_screen(Question(plan), answered)

    def _acted(self) -> None:
        self._leaving = False
        self.refresh_bindings()
        if self.page.ends and self._left:
            self._return()
        self._look()

    # What the threads have found

    def hear(self, found: Seen | PageFailed | Outcome) -> None:
        """Hears of the outcome of a step, in a thread."""
        self.post_message(Answer(found))

    def on_answer(self, answer: Answer) -> None:
        with suppress(NoMatches):  # the screen is being taken down
            self._take(answer.found)

    def _take(self, found: Seen | PageFailed | Outcome) -> None:
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Plan | ActionDone | Failed):
            self.acting.take(found)
            if isinstance(found, ActionDone):
                self._acted()
        elif found.page is self.page:
            self._show(found)

    def _show(self, found: Seen | PageFailed) -> None:
        if isinstance(found, PageFailed):
            self.view.show(Content(empty=found.says))
            return
        self._seen = found
        self.view.show(found.content, self._wanted)
        self._show_state()

    def _show_state(self) -> None:
        """Shows the state of the connection, also while nothing comes from Redis."""
        if time.monotonic() > self._said_until and not self.acting.busy:
            self.say(Text())
        away = self.watcher.away
        with suppress(NoMatches):  # the screen is being taken down
            self._tabs.show(self.page.number)
            self._tabs.show_live(away, self.watcher.shard)
            if self._seen is not None or away is not None:
                found, well = (self._seen.problems, self._seen.well) if self._seen else ((), "")
                self._problems.show(found, well, away, most=4 if self.page.path == "/" else 1)

    def say(self, text: Text) -> None:
        """Says what was done, or was not, in the line above the keys, for a while."""
        self._said_until = time.monotonic() + _SAID
        self._message.show(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether an action is shown: only the keys that do something here are."""
        if action == "letter" and not self._going:
            [letter] = parameters
            if letter == UNDO:
                return self.acting.can_undo
            return letter == QUIT or ACTS.get(str(letter), ("",))[0] in self.page.acts()
        shown = {
            "select": self.page.many, "everything": self.page.many, "further": self.page.many,
            "search": self.page.searches,
            "shard": len(self.watcher.names) > 1,
        }  # fmt: skip
        return shown.get(action, True)

    def action_help(self) -> None:
        self.push_screen(Help(help_text(self.page.acts(), PAGES)))

    def _quit(self) -> None:
        """Ends the program. A first q does not cut an action off."""
        if self.acting.busy and not self._leaving:
            self._leaving = True
            self.say(words(("An action goes on. q again leaves it half done.", BAD)))
            return
        self.exit()
