"""Signs lead somewhere: what a text names is there.

The texts are the documents, and the docstrings and comments of the package and of its scripts for
Redis; of strings, what they say of commands and options. tests/architecture/test_documents.py looks
at links and at commands in fenced blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.support.documents import documents, name_of
from tests.support.signs import (
    CHANGELOG,
    FINDERS,
    Text,
    lost_commands,
    lost_headings,
    lost_names,
    lost_options,
    lost_paths,
    lost_variables,
    lua_remarks_of,
    prose,
    prose_of,
    remarks,
    remarks_of,
    settings,
    strings,
)

# One worker parses the package for all tests that look at its source.
pytestmark = pytest.mark.xdist_group("source")

# By kind of text: what takes a sign out of a file of that kind.
KINDS: Final[dict[str, Callable[[str], list[Text]]]] = {
    "README": lambda sign: prose_of("README.md", f"# forkq\n\nSee {sign} for more.\n"),
    "document": lambda sign: prose_of(
        "docs/jobs.md", f"| word | page |\n|---|---|\n| a | {sign} |\n"
    ),
    "docstring": lambda sign: remarks_of(
        "forkq/job.py", f'def job():\n    """Makes {sign}, a job."""\n'
    ),
    "comment": lambda sign: remarks_of(
        "forkq/job.py", f"SIZE = 4\n\n# So many: see {sign}.\nMOST = 5\n"
    ),
    "comment behind code": lambda sign: remarks_of("forkq/job.py", f"SIZE = 4  # see {sign}\n"),
    "script for Redis": lambda sign: lua_remarks_of("a.lua", f"-- Drops {sign}.\nreturn 1\n"),
}
# Signs that lead nowhere. The variable is put together, since a variable of a test counts as read.
WRONG: Final = {
    "path": "child/fetch/lookahaed.py",
    "path in backticks": "`lookahaed.py`",
    "folder": "`forkq/childs/`",
    "decision": "docs/decisions/999",
    "heading": 'docs/wire.md, "Of no such thing"',
    "class": "`LeaseExchanger`",
    "class in plain text": "the LeaseExchanger",
    "method": "`Fetcher.take_of`",
    "method of another class": "`Fetcher.take_surplus`",
    "command": "`forkq pauze mail`",
    "command of a group": "`forkq queues pauze`",
    "option": "`--conkurrency`",
    "option of a command": "`forkq start --conkurrency 5`",
    "option of another command": "`forkq status --concurrency 5`",
    "target of make": "`make tset`",
    "key of forkq.toml": "`boot_timeoutt`",
    "variable": "FORKQ_" + "NOWHERE",
}
RIGHT: Final = {
    "path": "child/fetch/plan.py",
    "folder": "`forkq/child/`",
    "decision": "docs/decisions/016",
    "heading": 'docs/wire.md, "Retry"',
    "class": "`Fetcher`",
    "class in plain text": "the LeaseWatch",
    "method": "`Leases.take_surplus`",
    "command": "`forkq pause mail`",
    "option": "`forkq start --concurrency 5`",
    "target of make": "`make test`",
    "variable": "FORKQ_REDIS",
}


def test_a_wrong_sign_is_found_in_each_kind_of_text() -> None:
    texts = {(kind, sign): KINDS[kind](WRONG[sign]) for kind in KINDS for sign in WRONG}
    assert [pair for pair in texts if not lost_in(texts[pair])] == []


def test_a_right_sign_is_left_alone() -> None:
    texts = {(kind, sign): KINDS[kind](RIGHT[sign]) for kind in KINDS for sign in RIGHT}
    assert [pair for pair in texts if lost_in(texts[pair])] == []


def lost_in(texts: list[Text]) -> set[str]:
    return {found for finder in FINDERS for found in finder(texts)}


def test_paths_exist() -> None:
    assert lost_paths([*prose(), *remarks(), *settings()]) == set()


def test_headings_exist() -> None:
    assert lost_headings([*prose(), *remarks()]) == set()


def test_names_of_code_exist() -> None:
    assert lost_names([*prose(), *remarks()]) == set()


def test_commands_exist() -> None:
    assert lost_commands([*prose(), *remarks(), *strings()]) == set()


def test_options_exist() -> None:
    assert lost_options([*prose(), *remarks(), *strings()]) == set()


def test_variables_are_read_by_something() -> None:
    """Also in fenced blocks."""
    whole = [(name_of(path), path.read_text()) for path in documents() if path != CHANGELOG]
    assert lost_variables([*whole, *remarks()]) == set()
