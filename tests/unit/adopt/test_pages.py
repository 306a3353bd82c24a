"""docs/from-*.md: the word lists are those of the code, "before" is code of the other library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from forkq.adopt.scan import LIBRARIES, places
from forkq.adopt.source import Source, read
from forkq.adopt.words import Words
from tests.support.documents import snippets
from tests.support.words_pages import page_of, with_words

each_library = pytest.mark.parametrize("words", LIBRARIES, ids=lambda words: words.library)


def before(words: Words) -> str:
    """The page's blocks that are written for the other library."""
    return "\n\n".join(snippet.text for snippet in snippets(page_of(words), "py"))


@each_library
def test_the_word_lists_are_those_of_the_code(words: Words) -> None:
    text = page_of(words).read_text()
    assert text == with_words(text, words), "run python -m tests.support.words_pages"
    assert "### Options of the decorator" in text


@each_library
def test_what_stands_before_is_found(words: Words, tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(before(words))
    sources = [each for each in read([tmp_path]) if isinstance(each, Source)]
    assert {place.library for place in places(sources)} == {words.library}


@each_library
def test_what_stands_before_is_code_of_that_library(words: Words, tmp_path: Path) -> None:
    """Imported, so a decorator or an option that the library has not is seen."""
    if importlib.util.find_spec(words.library) is None:
        pytest.skip(f"{words.library} is not installed: pip install {words.library}")
    (tmp_path / "before.py").write_text(before(words))
    command = [sys.executable, "-c", "import before"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
