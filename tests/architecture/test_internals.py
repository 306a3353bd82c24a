"""The code and lists in docs/internals.md and CONTRIBUTING.md are those of the source."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest

from forkq.child.heartbeat import tasks
from forkq.runtime.pipe import Fact, Order
from tests.support.documents import ROOT, Snippet, snippets
from tests.support.package_source import PACKAGE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
    assert any("_fetch.fetcher.done(unit)" in excerpt.text for excerpt in excerpts())


def test_the_orders_and_facts_are_those_of_the_pipe() -> None:
    found = re.search(
        r"\*\*orders\*\* .*?\((`.*?`)\);.*?\*\*facts\*\* .*?\((`.*?`)\)\.",
        INTERNALS.read_text(),
        re.DOTALL,
    )
    assert found is not None
    for listed, messages in zip(found.groups(), (Order, Fact), strict=True):
        names = set(re.findall(r"`(\w+)", listed))
        assert names == {message.__name__ for message in get_args(messages)}


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


def test_the_order_of_the_rooms_is_the_one_that_is_checked() -> None:
    line = re.search(r"^`(errors, .*)`$", INTERNALS.read_text(), re.MULTILINE)
    assert line is not None
    shown = [set(part.split(", ")) for part in line[1].split(" < ")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    checked = [set(layer.split(" : ")) for layer in reversed(layers) if layer != "__main__"]
    named = [{"root modules"} if "job" in layer else layer for layer in checked]
    assert shown == [{room for room in layer if room[0] != "("} - {"version"} for layer in named]


def test_the_folders_of_the_tests_are_listed() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")} - {"support"}
    listed = re.findall(r"^\| `tests/(\w+)/` \|", CONTRIBUTING.read_text(), re.MULTILINE)
    assert set(listed) == folders
