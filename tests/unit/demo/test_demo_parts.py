"""The demo's parts that need no processes: which files it takes, and how it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.demo.inputs import choose
from examples.demo.journal import Progress
from examples.demo.screen import Screen
from forkq import ForkqError
from tests.support.demo_app import jobs, plan


def _payload(jid: str, **more: Any) -> dict[str, Any]:
    return {"jid": jid, "class": "Totals", "args": ["a.csv", f"totals/{jid}.json"], **more}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where children work, and write the journal."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_huge_folder_is_taken_in_part_and_the_demo_says_so(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number:03}.csv").write_text("a\n1\n")
    inputs = choose(tmp_path)
    assert len(inputs.tables) == 40
    assert inputs.remarks[0] == f"Left out {tmp_path}/040.csv: there are enough"
    assert inputs.remarks[-1] == "Left out 17 more files"


def test_subfolders_count_but_hidden_ones_and_earlier_results_do_not(tmp_path: Path) -> None:
    for folder in ("album", ".cache", "demo-results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("a,b\n1,2\n")
    assert choose(tmp_path).tables == [tmp_path / "album" / "a.csv"]


def test_unusable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text("a\n1\n")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    remarks = " ".join(choose(tmp_path).remarks)
    assert "empty.csv: it is empty" in remarks
    assert "No such file or directory" in remarks
    assert "gone.png" in remarks


def test_a_folder_of_unusable_files_is_an_error_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ForkqError, match=r"(?s)no file there.*empty\.csv: it is empty"):
        choose(tmp_path)


def test_files_of_one_name_do_not_share_a_result(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sales.csv").write_text("a\n1\n")
    work = plan(choose(tmp_path), tmp_path / "torn.jpg")
    results = [row[1] for row in work.rows["Totals"]]
    assert results == ["totals/a/sales.csv.json", "totals/b/sales.csv.json"]


def test_the_journal_is_read_in_whole_lines(folder: Path) -> None:
    path = folder / "journal.jsonl"
    progress = Progress(path)
    assert progress.read() == []
    jobs.write_event("began", _payload("a"))
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    assert [event["result"] for event in progress.read()] == ["totals/a.json"]
    path.write_bytes(line + line)
    assert len(progress.read()) == 1
    assert progress.read() == []


def test_progress_knows_what_runs_and_what_runs_again(folder: Path) -> None:
    progress = Progress(folder / "journal.jsonl")
    jobs.write_event("began", _payload("a"))
    jobs.write_event("began", _payload("b"))
    jobs.write_event("done", _payload("a"))
    progress.read()
    [running] = progress.running.values()
    assert running == {"b": "totals/b.json"}
    again = _payload("b", forkq={"crashes": [{"at": 1.9}]})
    jobs.write_event("began", again)
    jobs.write_event("done", again)
    progress.read()
    assert progress.recovered.keys() == {"b"}
    assert progress.ended("Totals") == 2


def test_control_codes_in_a_name_do_not_reach_the_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Screen().say("died: \x1b[31mred\r.jpg")
    assert capsys.readouterr().out == "died: ?[31mred?.jpg\n"


def test_a_bad_input_folder_is_named(tmp_path: Path) -> None:
    """The demo prints that, as tests/process/test_demo.py shows."""
    (tmp_path / "a file").write_text("no folder")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("missing", "there is no such folder"),
        ("a file", "it is not a folder"),
        ("empty", "no file there that the demo can use"),
    ):
        with pytest.raises(ForkqError) as error:
            choose(tmp_path / name)
        assert str(error.value).startswith(f"FORKQ_DEMO_INPUT={tmp_path / name}: {message}")
