"""Tables: cut to the terminal's width where there is one, and whole for files and programs."""

from __future__ import annotations

import sys

import pytest

from forkq.cli.tables import table

ROWS = [("shop.jobs.refresh", "x" * 60, "a" * 24), ("b", "y" * 90, "b" * 24)]
TITLES = ("NAME", "NOTE", "JID")


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None) -> list[str]:
    """The table on a terminal of so many columns; None: on none."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    return table(TITLES, ROWS).splitlines()


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
