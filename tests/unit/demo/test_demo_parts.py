"""The demo's parts that need no processes: which files it takes, and how it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.demo import journal
from forkq.demo.books import Account
from forkq.demo.inputs import choose
from forkq.demo.journal import Event, Journal
from forkq.demo.plan import make_plan
from forkq.demo.screen import Plain
from forkq.demo.tally import Tally
from forkq.errors import ForkqError


def _event(what: journal.What, jid: str, at: float, pid: int = 1, crashed: float = 0.0) -> Event:
    return Event(what, at, jid, "Thumbnail", f"{jid}.jpg", pid, crashed=crashed)


def test_a_huge_folder_is_taken_in_part_and_that_is_said(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:03}.txt").write_text("word")
    inputs = choose(tmp_path)
    assert len(inputs.texts) == 20
    assert inputs.remarks == ("takes 20 of 60 texts, so that it ends soon",)


def test_subfolders_count_but_hidden_ones_and_earlier_results_do_not(tmp_path: Path) -> None:
    for folder in ("album", ".cache", "demo-results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("a,b\n1,2\n")
    assert choose(tmp_path).tables == (tmp_path / "album" / "a.csv",)


def test_unusable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("word")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    remarks = " ".join(choose(tmp_path).remarks)
    assert "empty.txt: it is empty" in remarks
    assert "gone.png: No such file or directory" in remarks


def test_a_folder_of_unusable_files_is_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ForkqError, match=r"(?s)no file there.*empty\.txt: it is empty"):
        choose(tmp_path)


def test_files_of_one_name_do_not_share_a_result(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text("word")
    plan = make_plan(choose(tmp_path), tmp_path / "torn.jpg")
    assert [result for _, result in plan.words] == ["words/notes.json", "words/notes-2.json"]


def test_the_journal_reads_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / journal.NAME
    reader = Journal(path)
    assert reader.news() == []
    journal.append(path, "began", {"jid": "j", "class": "Words", "args": ["a.txt", "words/a.json"]})
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    assert [event.label for event in reader.news()] == ["words/a.json"]
    path.write_bytes(line + line)
    assert len(reader.news()) == 1
    assert reader.news() == []


def test_the_tally_knows_what_runs_and_what_runs_again() -> None:
    tally = Tally()
    tally.feed([_event("began", "a", 1.0), _event("began", "b", 1.1), _event("done", "a", 1.5)])
    assert tally.running == {1: {"b": "b.jpg"}}
    tally.keep_living([2])
    tally.feed([_event("began", "b", 2.0, pid=2, crashed=1.9), _event("done", "b", 2.2, pid=2)])
    assert tally.again == {"b": 2.0}
    assert tally.ended_of("Thumbnail") == 2


def test_an_account_with_a_job_lost_or_waiting_does_not_balance() -> None:
    assert Account(done=frozenset("ab"), dead={"c": "why"}).balanced
    assert not Account(done=frozenset("a"), lost=frozenset("b")).balanced
    assert not Account(done=frozenset("a"), waiting=frozenset("b")).balanced


def test_control_codes_in_a_name_do_not_reach_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Plain().say("died: \x1b[31mred\r.jpg")
    assert capsys.readouterr().out == "died: ?[31mred?.jpg\n"
