"""The lists of docs/internals.md that the source has already: they are made, not written.

``python -m tests.support.internals_page`` writes them into the page, each behind its mark.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable
from typing import Final, get_args

from forkq.features.ways import WAYS, Way
from forkq.runtime.pipe import Fact, Order
from tests.support.documents import ROOT
from tests.support.package_source import PACKAGE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE: Final = ROOT / "docs" / "internals.md"


def messages() -> str:
    """The orders and the facts of the pipes, by what their docstrings say first."""
    return table(
        ("message", "kind", "what it says"),
        [
            *((f"`{order.__name__}`", "order", _said(order)) for order in get_args(Order)),
            *((f"`{fact.__name__}`", "fact", _said(fact)) for fact in get_args(Fact)),
        ],
    )


def _said(message: type) -> str:
    text = " ".join((message.__doc__ or "").split())
    sentence = re.split(r"(?<=[a-z)])\. ", text.split(": ", 1)[1])[0].rstrip(".")
    return sentence.replace("``", "`")


def files_of_fetch() -> str:
    """The files of the room in which one child fetches, by what each says of itself first."""
    rows = []
    for path in sorted((PACKAGE / "child" / "fetch").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py":
            rows.append((f"`{path.name}`", " ".join(text.split("\n\n")[0].split()).rstrip(".")))
    return table(("file of `child/fetch/`", "what it is"), rows)


def order_of_rooms() -> str:
    """Which room may import which, as import-linter checks it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    named = ["root modules" if "job" in layer.split(" : ") else layer for layer in layers]
    shown = [", ".join(filter(_is_told, layer.split(" : "))) for layer in reversed(named)]
    return f"`{' < '.join(filter(None, shown))}`"


def _is_told(room: str) -> bool:
    """Not the program itself, its version, nor a room that is still to come."""
    return room[0] != "(" and room not in {"__main__", "version"}


def ways_out() -> str:
    """Every way out of a job, and what becomes of what each feature has noted."""
    _, _, *features, _ = Way._fields
    rows = (
        (
            way.name,
            ", ".join(way.by),
            "yes" if way.ends else "no",
            *map(way.__getattribute__, features),
        )
        for way in WAYS
    )
    return table(("way", "who decides", "an end", *features), rows)


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [list(titles), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---")


LISTS: Final[dict[str, Callable[[], str]]] = {
    "messages": messages,
    "files of fetch": files_of_fetch,
    "order of rooms": order_of_rooms,
    "ways out": ways_out,
}


END: Final = "<!-- end -->"


def page() -> str:
    """The text of docs/internals.md, with the lists as they must be."""
    text = PAGE.read_text()
    for name, make in LISTS.items():
        mark = f"<!-- Made by tests.support.internals_page: {name} -->"
        before, found, rest = text.partition(f"{mark}\n")
        _, end, after = rest.partition(END)
        assert found, f"{PAGE.name} has no place for {name}"
        assert end, f"{PAGE.name} has no end of {name}"
        text = f"{before}{mark}\n\n{make()}\n\n{END}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
