"""Tables as values, and how a command, `forkq top` and the web UI render a cell."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from forkq.api import FailureGroup, QueueState, RunningJob
from forkq.cli.output import cell_text, printed
from forkq.screens.failures import PARTS, parts
from forkq.screens.queues import LIMITS, of_states
from forkq.screens.running import RUNNING, of_jobs
from forkq.screens.table import (
    COMMAND,
    LIVE,
    Cell,
    Column,
    Empty,
    Moment,
    Phrase,
    Share,
    Sheet,
    Trend,
    note,
    tag,
)
from forkq.top.cells import drawn
from forkq.values import replace


class Fruit(NamedTuple):
    name: str
    number: int


SHEET: Sheet[Fruit] = Sheet(
    "Fruit",
    (
        Column("name", "Fruit", lambda one: (Phrase(one.name), tag("ripe")), whole=True),
        Column("number", "How many", lambda one: (Phrase(f"{one.number}"),), brief="N"),
        Column("hint", "Hint", lambda _: (), on=LIVE),
        Column("grade", "Grade", lambda _: (), on=COMMAND, fact=lambda one: one.number * 2),
    ),
    lambda one: one.name,
    Empty("No fruit.", "It grows.", "there is no fruit"),
    facts=lambda one: one._asdict(),
    words=lambda one: (one.name,),
    order=lambda one: -one.number,
)
FRUIT = [Fruit("pear", 2), Fruit("apple", 7), Fruit("Pineapple", 9)]


def test_a_person_searches_in_its_words_and_sees_what_matters_first() -> None:
    assert [one.name for one in SHEET.chosen(FRUIT, "APPLE")] == ["Pineapple", "apple"]
    assert [one.name for one in SHEET.chosen(FRUIT)] == ["Pineapple", "apple", "pear"]


def test_a_command_prints_its_columns_in_the_order_given() -> None:
    lines = printed(SHEET, FRUIT[:2]).splitlines()
    assert [line.split() for line in lines] == [
        ["FRUIT", "N", "GRADE"], ["pear", "2", "-"], ["apple", "7", "-"]
    ]  # fmt: skip
    assert printed(SHEET, []) == "there is no fruit"


def test_a_command_cuts_no_column_that_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "12")
    notes: Column[Fruit] = Column("note", "Note", lambda _: (Phrase("n" * 40),))
    sheet = replace(SHEET, columns=(SHEET.columns[0], notes))
    assert printed(sheet, FRUIT[2:]).splitlines() == ["FRUIT      …", "Pineapple  …"]


def test_a_table_that_is_cut_says_so_and_which_command_lists_all() -> None:
    assert SHEET.table("top", FRUIT).cut == ""
    assert SHEET.table("top", FRUIT, 2000).cut == "3 of 2,003 shown."
    sheet = replace(SHEET, command="forkq fruit")
    assert sheet.table("web", FRUIT, 1).cut == "3 of 4 shown; `forkq fruit` lists all."


def test_a_count_of_a_part_of_the_failures_says_so() -> None:
    group = FailureGroup("Mail", "SMTPError", "", 14, 14, 0, None, None, ())
    for is_sample, text in ((False, "14"), (True, "at least 14")):
        [line] = parts(group, is_sample=is_sample)
        assert drawn(PARTS.row(PARTS.columns, line).cells["count"]).plain == text


def test_a_program_gets_one_object_with_the_facts_of_columns() -> None:
    assert SHEET.as_object(FRUIT[0]) == {"name": "pear", "number": 2, "grade": 4}


@pytest.mark.parametrize(
    ("cell", "command", "terminal"),
    [
        ((), "-", "-"),
        ((Phrase("a"), note("b"), tag("c")), "a", "a b c"),
        ((Moment(None),), "-", "-"),
        ((Moment(5.0, "in May"),), "in May", "in May"),
        ((Share(1, 2, "half"), Phrase("1 of 2")), "1 of 2", "████░░░░ 1 of 2"),
        ((Phrase("1 of 2"), Share(1, 2, "half", is_said=True)), "1 of 2", "1 of 2"),
        ((Trend([1, 1, 2, 2], "it grows"),), "", f"{'▄▄██':>24}"),
    ],
)
def test_each_place_shows_a_cell_in_its_way(cell: Cell, command: str, terminal: str) -> None:
    assert cell_text(cell) == command
    assert drawn(cell).plain == terminal


def test_a_trend_of_many_values_fits_its_bars() -> None:
    assert drawn((Trend([1.0] * 12 + [3.0] * 12, "it grows"),), is_wide=False).plain == (
        "▃▃▃▃▃▃██████"
    )


def test_the_process_of_a_running_job_is_a_name_that_commands_take() -> None:
    job = RunningJob("j", "Mail", "mail", "web-1.example.org:4711:3f6c", "t", 0.0, 1.0)
    [line] = of_jobs([job])
    row = RUNNING.row(RUNNING.columns, line)
    assert cell_text(row.cells["process"]) == "web-1.example.org:4711"


def test_the_jobs_of_a_queue_that_run_in_sidekiq_count_for_no_limit() -> None:
    [line] = of_states([
        QueueState(
            "mail", 0, 3, False, limit=2, process_limit=None, rate=None, burst=None, tokens=None,
            blocking=False, changed=(), in_sidekiq=2,
        )
    ])  # fmt: skip
    cell = LIMITS.row(LIMITS.columns, line).cells["busy"]
    assert drawn(cell).plain == "3 in all, 1 of 2"
