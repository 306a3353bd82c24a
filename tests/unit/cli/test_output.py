"""Tables: cut to the terminal's width where there is one, and whole for files and programs."""

from __future__ import annotations

import json
import sys

import pytest

from forkq.cli.output import as_json, echo, table

ROWS = [("shop.jobs.refresh", "x" * 60, "a" * 24), ("b", "y" * 90, "b" * 24)]
TITLES = ("NAME", "NOTE", "JID")


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None) -> list[str]:
    """The table on a terminal of so many columns; None: on none."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    return table(TITLES, ROWS, whole=("NAME", "JID")).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_table_fits_the_terminal_and_what_one_copies_stays_whole(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    lines = shown(monkeypatch, columns)
    assert max(map(len, lines)) == columns
    for line, (name, _, jid) in zip(lines[1:], ROWS, strict=True):
        assert line.startswith(name)
        assert line.endswith(jid)
        assert "…" in line


def test_a_wide_terminal_and_a_pipe_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (200, None):
        lines = shown(monkeypatch, columns)
        for line, row in zip(lines[1:], ROWS, strict=True):
            assert line.split() == list(row)


HOSTILE = "Job\x1b[2J\x9b31m\u202e\r\x00\x7f"


def test_nothing_that_controls_a_terminal_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    echo(table(TITLES, [(HOSTILE, HOSTILE, HOSTILE)]))
    echo(as_json({HOSTILE: [HOSTILE]}))
    echo(f"{HOSTILE} is paused", err=True)
    said = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err)


def test_json_says_the_same_as_before_its_escapes() -> None:
    value = {HOSTILE: [HOSTILE, "caf\u00e9", "\U000e0001", 1.5, None]}
    assert json.loads(as_json(value)) == value


def test_names_of_100_000_characters_are_cut_in_a_pipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    cells = table(TITLES, [("n" * 100_000, "note", "j" * 100_000)])
    assert max(map(len, cells.splitlines())) < 500
