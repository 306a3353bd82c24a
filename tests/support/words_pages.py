"""Writes the word lists of docs/from-*.md, from the words that `forkq adopt` knows.

``python -m tests.support.words_pages`` writes them; tests/unit/adopt/test_pages.py compares them
with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from forkq.adopt.scan import LIBRARIES
from forkq.adopt.words import Words
from tests.support.documents import ROOT

_LIST: Final = re.compile(r"(<!-- words[^\n]*-->\n).*(<!-- end of words -->)", re.DOTALL)
_TITLES: Final = (
    ("decorators", "Decorators"),
    ("options", "Options of the decorator"),
    ("calls", "Calls"),
    ("job_calls", "Calls on a decorated function"),
    ("keywords", "Keywords of these calls"),
    ("owned", "Calls on an object"),
    ("results", "On what a push returns, and on a job that was fetched"),
    ("bound", "On the first argument of a bound task"),
    ("names", "Imported names: classes, functions, signals, errors"),
    ("settings", "Settings"),
)


def page_of(words: Words) -> Path:
    """The document for this library."""
    return ROOT / "docs" / f"from-{words.library}.md"


def with_words(text: str, words: Words) -> str:
    """The page's text with the lists as they should be."""
    lists = "\n\n".join(_lists(words))
    return _LIST.sub(lambda found: f"{found[1]}\n{lists}\n\n{found[2]}", text)


def _lists(words: Words) -> Iterator[str]:
    for name, title in _TITLES:
        rows: Mapping[str, str] = getattr(words, name)
        if rows:
            lines = (f"| `{word}` | {_linked(text)} |" for word, text in rows.items())
            yield "\n".join(
                (f"### {title}", "", f"| {words.library} | forkq |", "|---|---|", *lines)
            )


def _linked(sentence: str) -> str:
    """A cell, in which a bar would end it, also in code."""
    return re.sub(r"docs/([a-z-]+\.md)", r"[\1](\1)", sentence).replace("|", r"\|")


if __name__ == "__main__":
    for each in LIBRARIES:
        page = page_of(each)
        page.write_text(with_words(page.read_text(), each))
