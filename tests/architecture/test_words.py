"""The words of docstrings, comments and documents: a sentence stands alone and names its actor."""

from __future__ import annotations

import ast
import re
from typing import Final

import pytest

from tests.support.package_source import modules, nodes, place
from tests.support.signs import prose, remarks

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the package

# How a sentence begins that is one only beside another: "Those of its class", "As ``url``, there".
LEANS: Final = re.compile(
    r"(?:A second|Also|As|Both|Its|Itself|Like|Nothing|Of|On|Such as|That of|The same|These|Those|"
    r"With|Without)\b"
)
HIDES: Final = re.compile(r"\b(?:anybody|nobody|somebody|whatever|whoever)\b", re.IGNORECASE)


def test_a_docstring_stands_alone() -> None:
    found = [
        f"{place(path)}:{node.lineno}: {text[:60]}"
        for path, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and LEANS.match(text)
    ]
    assert found == []


def test_a_sentence_names_its_actor() -> None:
    found = [
        f"{where}: {word}" for where, text in [*prose(), *remarks()] for word in HIDES.findall(text)
    ]
    assert found == []


def test_what_leans_or_hides_is_found() -> None:
    leaning = ("That of its class.", "As ``url``, there.", "With their rules.", "Those of the app.")
    assert [text for text in leaning if not LEANS.match(text)] == []
    assert LEANS.match("Assumes that Redis answers.") is None
    assert HIDES.findall("Whoever asks, nobody answers.") == ["Whoever", "nobody"]
