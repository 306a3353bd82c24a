"""The parameters of `perform` reach the callers: one sample must pass mypy, one must fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.api_tasks import TASKS
from tests.support.documents import ROOT, snippets
from tests.support.tree import CHECKOUT

HERE = Path(__file__).parent
EXPECTED = re.compile(r"# E: ([\w-]+)")
REPORTED = re.compile(r"^(.+?):(\d+): error: .* \[([\w-]+)\]$")


def mypy(cache: Path, *samples: Path) -> str:
    """What mypy --strict prints of these files."""
    settings = ("--strict", "--python-version=3.10", "--config-file=", "--no-error-summary")
    where = (f"--cache-dir={cache}", "--follow-imports=silent", "--hide-error-context")
    # A process of its own: mypy leaves its cache open, and locked for the next run.
    command = [sys.executable, "-m", "mypy", *settings, *where, *map(str, samples)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not run.stderr
    return run.stdout


def errors(sample: Path, cache: Path) -> list[tuple[int, str]]:
    """(line, code) of every error that mypy --strict finds in `sample`; none may be elsewhere."""
    printed = mypy(cache, sample)
    lines = [line for line in printed.splitlines() if ": note: " not in line]
    found = [REPORTED.match(line) for line in lines]
    assert all(found), printed
    assert {Path(match[1]).name for match in found if match} <= {sample.name}, printed
    return [(int(match[2]), match[3]) for match in found if match]


@pytest.fixture
def cache(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Path:
    """mypy's cache, kept between runs; and forkq is found in this checkout."""
    monkeypatch.setenv("MYPYPATH", str(CHECKOUT))
    monkeypatch.chdir(CHECKOUT)
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("mypy")


@pytest.mark.xdist_group("mypy")
def test_calls_that_fit_pass_strict_checking(cache: Path) -> None:
    assert errors(HERE / "fits.py", cache) == []


@pytest.mark.xdist_group("mypy")
def test_the_snippets_of_the_readme_and_the_tour_pass_strict_checking(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as a module; the first one is the jobs.py that others import."""
    monkeypatch.setenv("MYPYPATH", f"{CHECKOUT}{os.pathsep}{tmp_path}")
    files = [tmp_path / "jobs.py"]
    documents = (ROOT / "README.md", ROOT / "docs" / "tour.md")
    found = [each for document in documents for each in snippets(document, "python")]
    for number, snippet in enumerate(found):
        files += [tmp_path / f"snippet_{number}.py"] * bool(number)
        files[-1].write_text(snippet.text)
    assert len(files) >= 4
    assert mypy(cache, *files) == ""


@pytest.mark.xdist_group("mypy")
def test_the_examples_of_the_api_page_pass_strict_checking(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYPYPATH", f"{CHECKOUT}{os.pathsep}{tmp_path}")
    files = [tmp_path / "jobs.py", *(tmp_path / f"task_{n}.py" for n in range(1, len(TASKS)))]
    for file, task in zip(files, TASKS, strict=True):
        file.write_text(task.example)
    assert mypy(cache, *files) == ""


@pytest.mark.xdist_group("mypy")
def test_each_call_that_does_not_fit_is_found_in_its_line(cache: Path, tmp_path: Path) -> None:
    text = (HERE / "does_not_fit.py.txt").read_text()
    sample = tmp_path / "does_not_fit.py"
    sample.write_text(text)
    marks = [
        (number, match[1])
        for number, line in enumerate(text.splitlines(), 1)
        if (match := EXPECTED.search(line)) and not line.startswith("`")
    ]
    assert len(marks) == 33
    assert errors(sample, cache) == marks
