"""The options of a job as a table of Markdown, from the rows of ``JobOptions``.

``python -m tests.support.option_table`` writes it into docs/jobs.md; docs/api.md has it, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from forkq.wire.options import JobOptions, rows_of
from tests.support.documents import ROOT

PAGE: Final = ROOT / "docs" / "jobs.md"
_BLOCK: Final = re.compile(r"(<!-- Made by [^>]*option_table[^>]*-->\n)\n.*?\n\n(?=[^|\n])", re.S)


def table(options: type = JobOptions) -> str:
    """A line for each option."""
    types = types_of(options)
    lines = [
        f"| `{name}` | {_cell(types[name])} | {row.default} | {row.about} |"
        for name, row in rows_of(options).items()
    ]
    return "\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *lines])


def types_of(options: type = JobOptions) -> dict[str, str]:
    """The type of each option as its declaration has it: ``bool | int``."""
    return {name: _text(hint) for name, hint in get_type_hints(options).items()}


def _text(hint: Any) -> str:
    """The text of a type, the same on each Python: their own texts of unions differ."""
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_text(each) for each in get_args(hint))
    if get_origin(hint) is Sequence:
        return f"Sequence[{_text(get_args(hint)[0])}]"
    if hint is NoneType:
        return "None"
    text = hint.__name__ if type(hint) is type else str(hint)
    return re.sub(r"[\w.]+\.(\w)", r"\1", text).replace("'", '"')


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def page() -> str:
    """The text of docs/jobs.md, with the table as it must be."""
    text, blocks = _BLOCK.subn(lambda found: f"{found[1]}\n{table()}\n\n", PAGE.read_text())
    assert blocks == 1, f"{PAGE} has {blocks} places for the table"
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
