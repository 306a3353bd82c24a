"""Sizes that keep a file and a function readable: CONTRIBUTING.md states them."""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from tests.support.package_source import PACKAGE, modules, nodes, place

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the package

LONGEST_FILE = 500
LONGEST_FUNCTION = 40
MOST_FILES = 25

# Rooms with more files, Lua apart. A number may only fall: the test also fails when a room has
# fewer than it is listed with, so that the list follows.
LARGE_ROOMS: Final = {
    "forkq/runtime": 26,
}


def python_functions() -> Iterator[tuple[str, int]]:
    """(place, lines) of every function of the package, docstring included."""
    for path, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None
                yield f"{place(path)}:{node.name}", node.end_lineno - node.lineno + 1


def lua_functions() -> Iterator[tuple[str, int]]:
    """(place, lines) of every function that starts at the margin: its `end` stands there, too."""
    for path in sorted(PACKAGE.rglob("*.lua")):
        begun: tuple[str, int] | None = None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"(?:local )?function ([\w.]+)|local (\w+) = function", line):
                assert begun is None, f"{place(path)}:{number} begins inside of {begun}"
                begun = match[1] or match[2], number
            if begun is not None and re.match(r"end\b", line):
                yield f"{place(path)}:{begun[0]}", number - begun[1] + 1
                begun = None
            elif begun is not None and re.search(r"\bend$", line) and number == begun[1]:
                yield f"{place(path)}:{begun[0]}", 1
                begun = None
        assert begun is None, f"{place(path)}: {begun} does not end"


def test_no_file_is_long() -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]
    assert len(sources) > 100
    lines = {place(path): len(path.read_text().splitlines()) for path in sources}
    assert {place: count for place, count in lines.items() if count > LONGEST_FILE} == {}


def test_no_room_has_many_files() -> None:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".lua")
    files = (path for path in files if path.name != "py.typed")  # there is nothing to read in it
    count = Counter(place(path.parent) for path in files if path.parent.name != "__pycache__")
    assert {room: number for room, number in count.items() if number > MOST_FILES} == LARGE_ROOMS


def test_no_function_is_long_and_most_are_short() -> None:
    found = [*python_functions(), *lua_functions()]
    assert len(found) > 1000
    assert [one for one in found if one[1] > LONGEST_FUNCTION] == []
    lengths = [lines for _, lines in found]
    assert statistics.median(lengths) <= 6
    assert statistics.quantiles(lengths, n=10)[8] <= 14


def test_lua_functions_are_found() -> None:
    """Else the limit would hold because nothing is measured."""
    assert len(list(lua_functions())) >= 10
