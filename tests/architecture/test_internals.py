"""The code that docs/internals.md shows is the code as it stands."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.documents import ROOT, Snippet, snippets

INTERNALS = ROOT / "docs" / "internals.md"


def excerpts() -> list[Snippet]:
    """The blocks that show functions of forkq."""
    found = snippets(INTERNALS, "python")
    return [snippet for snippet in found if snippet.text.startswith("def ")]


def place(snippet: Snippet) -> str:
    return snippet.place


def files_with(code: str) -> list[Path]:
    """The modules of forkq that contain ``code``, as functions or as methods."""
    as_methods = textwrap.indent(code.replace("\n\n\n", "\n\n"), "    ")  # as ruff formats methods
    return [
        path
        for path in sorted((ROOT / "forkq").rglob("*.py"))
        if f"\n{code}" in (text := path.read_text()) or f"\n{as_methods}" in text
    ]


@pytest.mark.parametrize("excerpt", excerpts(), ids=place)
def test_each_function_stands_in_the_source_as_it_is_shown(
    excerpt: Snippet, request: pytest.FixtureRequest
) -> None:
    assert files_with(excerpt.text), f"{excerpt.place} is in no module of forkq"


def test_the_way_of_a_job_is_shown() -> None:
    assert any("_fetcher.acknowledge(unit)" in excerpt.text for excerpt in excerpts())
