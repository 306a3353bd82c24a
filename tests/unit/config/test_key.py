"""A key of forkq.toml is declared once: everything that knows of keys reads that declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from msgspec import Meta

from forkq.cli import options
from forkq.config import flags
from forkq.config.check import Checker
from forkq.config.flags import misspelt_variables, read_options
from forkq.config.schema import Key, base_of, key_of, keys_of
from forkq.config.settings import ConfigProblems, Origin, Setting
from tests.support import configuration_page


@dataclass(frozen=True, kw_only=True)
class Paint:
    """A table with made-up keys, as a feature would declare its own."""

    colour: Annotated[
        Literal["red", "blue"], Key("What it is painted with.", ("FORKQ_COLOUR",), "--colour")
    ] = "red"
    coats: Annotated[int, Meta(ge=1, le=9), Key("How many coats it gets.", per_capsule=True)] = 2
    dried: bool = False  # a field, and no key


TABLE = keys_of(Paint)
TABLES = {"paint": TABLE}


def checked(document: dict[str, Any]) -> list[str]:
    problems = ConfigProblems()
    Checker(Path("forkq.toml"), TABLES, problems).table(TABLES, document)
    return problems


def test_only_a_field_with_a_key_is_one() -> None:
    assert list(TABLE) == ["colour", "coats"]
    assert [key_of(hint).initial for hint in TABLE.values()] == ["red", 2]


@pytest.mark.parametrize(
    ("given", "environ", "origin"),
    [
        ({"colour": "blue"}, {"FORKQ_COLOUR": "red"}, Origin("flag", "--colour")),
        ({}, {"FORKQ_COLOUR": "blue"}, Origin("variable", "FORKQ_COLOUR")),
    ],
)
def test_flag_and_variable_set_it(
    given: dict[str, str], environ: dict[str, str], origin: Origin
) -> None:
    found = read_options(TABLE, given, environ, ConfigProblems())
    assert found == {"colour": Setting("blue", origin)}


def test_an_error_says_what_it_may_be_and_which_key_is_meant() -> None:
    assert checked({"paint": {"colour": "blue", "coats": 3}}) == []
    nearest = "unknown key, the nearest valid one is paint.colour (valid here: colour, coats)"
    assert checked({"paint": {"coats": 0, "color": "red"}}) == [
        "forkq.toml: paint.coats: expected a whole number from 1 to 9, found the whole number 0",
        f"forkq.toml: paint.color: {nearest}",
    ]


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "KEYS", {"paint.colour": key_of(TABLE["colour"])})
    assert list(misspelt_variables({"FORKQ_COLOR": "red"}, ())) == [
        "FORKQ_COLOR: no such variable, the nearest one is FORKQ_COLOUR"
    ]


def test_the_page_has_a_line_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration_page, "TABLES", TABLES)
    lines = configuration_page.page().splitlines()
    expected = 'one of "red", "blue" | `"red"` | `FORKQ_COLOUR` | `--colour`'
    assert lines[-2:] == [
        f"| `colour` | {expected} | What it is painted with. |",
        "| `coats` | a whole number from 1 to 9 | `2` |  |  | How many coats it gets. |",
    ]


def test_a_command_has_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    key, seen = key_of(TABLE["colour"]), list[Any]()
    monkeypatch.setattr(options, "KEYS", {"paint.colour": key})
    monkeypatch.setattr(options, "TYPES", {"paint.colour": base_of(TABLE["colour"])})
    flag: Callable[..., Any] = options.flag_of("paint.colour", about="The paint [{default}].")

    @click.command()
    @flag
    def paint(colour: str | None) -> None:
        seen.append(colour)

    assert "--colour [red|blue]  The paint [red]." in CliRunner().invoke(paint, ["--help"]).output
    assert CliRunner().invoke(paint, ["--colour", "green"]).exit_code == 2
    assert CliRunner().invoke(paint, ["--colour", "blue"]).exit_code == 0
    assert seen == ["blue"]
