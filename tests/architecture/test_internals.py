"""The code and lists in docs/internals.md and CONTRIBUTING.md are those of the source."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from forkq.child.heartbeat import tasks
from tests.support import internals_page
from tests.support.documents import ROOT, Snippet, snippets
from tests.support.package_source import PACKAGE

INTERNALS = ROOT / "docs" / "internals.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


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
    assert any(
        "ends.done(run.unit)  # sent with the next fetch" in excerpt.text for excerpt in excerpts()
    )


def test_the_lists_are_made_of_the_source() -> None:
    assert internals_page.page() == INTERNALS.read_text(), (
        "stale: run python -m tests.support.internals_page"
    )


def test_the_tasks_of_the_heartbeat_are_those_of_its_file() -> None:
    bases = (tasks.HeartbeatTask, tasks.OptionalTask)
    found = {
        name
        for name, value in vars(tasks).items()
        if isinstance(value, type) and issubclass(value, bases) and value not in bases
    }
    table = INTERNALS.read_text().split("\n| task | when | what it does |\n")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == found


def test_the_rooms_are_the_folders_of_the_package() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `forkq/(\w+)/` \|", INTERNALS.read_text(), re.MULTILINE)) == rooms


def test_the_folders_of_the_tests_are_listed() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")} - {"support"}
    listed = re.findall(r"^\| `tests/(\w+)/` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    assert set(listed) == folders
