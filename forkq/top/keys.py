"""The keys: numbers for the pages, and the letters of the web UI for actions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from rich.text import Text
from textual.binding import Binding, BindingType

from .cells import QUIET, STRONG, words
from .content import Page

ACTS: Final[dict[str, tuple[str, str]]] = {
    "r": ("retry", "Retry"), "d": ("delete", "Delete"), "K": ("kill", "Kill"),
    "c": ("cancel", "Cancel"), "p": ("pause", "Pause/resume"), "C": ("clear", "Clear"),
    "n": ("run", "Run now"), "t": ("stacks", "Stacks"), "Q": ("quiet", "Quiet"),
    "S": ("stop", "Stop"), "F": ("free", "Free"),
}  # fmt: skip

QUIT: Final = "q"  # after g, it is the page of the queues
UNDO: Final = "u"  # after g, it is the page of the locks
NEXT_SHARD: Final = "]"
_PAGES_ONLY: Final = "hbfsmw"

KEYS: Final[list[BindingType]] = [
    *(Binding(key, f"letter('{key}')", says) for key, (_, says) in ACTS.items()),
    *(Binding(key, f"letter('{key}')", show=False) for key in _PAGES_ONLY),
    Binding("x", "select", "Select"),
    Binding("a", "everything", "All"),
    Binding("greater_than_sign", "further", "More", key_display=">"),
    Binding("slash", "search", "Search", key_display="/"),
    Binding(UNDO, f"letter('{UNDO}')", "Undo"),
    Binding("right_square_bracket", "shard", "Shard", key_display=NEXT_SHARD),
    Binding("escape", "leave", "Back", show=False),
    Binding("g", "go_to", "Go to", show=False),
    *(Binding(str(number), f"page('{number}')", show=False) for number in range(1, 7)),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding(QUIT, f"letter('{QUIT}')", "Quit"),
    Binding("ctrl+c", "quit", show=False, priority=True),
]

_MOVING: Final = (
    ("1 ... 6", "the questions"),
    ("g", "and a letter: a page, as in the web UI"),
    ("j k", "next and previous row, also with the arrows"),
    ("Enter", "look into the row: its jobs, its error, its arguments"),
    ("Escape", "back"),
    ("/", "search"),
    ("x  a", "select the row; all that the search finds"),
    (">", "the next rows of a long list"),
    (NEXT_SHARD, "the next shard, if there are shards"),
    ("u", "undo what was done last"),
    ("q", "quit"),
)


def help_text(acts: Collection[str], pages: Iterable[type[Page]]) -> Text:
    """The text about all keys; those that act on this page come first."""
    here = [(key, says) for key, (act, says) in ACTS.items() if act in acts]
    places = [(f"g {page.letter}", f"{page.title}: {page.question}") for page in pages]
    parts = (("Here", here), ("Everywhere", _MOVING), ("Pages", places))
    lines = [line for title, keys in parts if keys for line in _part(title, keys)]
    return Text("\n").join(lines)


def _part(title: str, keys: Iterable[tuple[str, str]]) -> list[Text]:
    lines = [words((f"  {key:9}", STRONG), (says, QUIET)) for key, says in keys]
    return [words((title, STRONG)), *lines, words("")]
