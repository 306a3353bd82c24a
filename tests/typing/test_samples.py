"""The parameters of `perform` reach the callers: one sample must pass mypy and pyright, in the
other both must find each call that does not fit."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forkq.wire.options import OPTIONS
from tests.support.api_tasks import TASKS
from tests.support.documents import ROOT, name_of, runnable, snippets
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
    sample, marks = sample_that_does_not_fit(tmp_path)
    assert len(marks) == 43
    assert errors(sample, cache) == marks


def sample_that_does_not_fit(folder: Path) -> tuple[Path, list[tuple[int, str]]]:
    """A copy of the sample in ``folder``, and what it says of its lines."""
    text = (HERE / "does_not_fit.py.txt").read_text()
    sample = folder / "does_not_fit.py"
    sample.write_text(text)
    marks = [
        (number, match[1])
        for number, line in enumerate(text.splitlines(), 1)
        if (match := EXPECTED.search(line)) and not line.startswith("`")
    ]
    return sample, marks


@pytest.mark.xdist_group("mypy")
def test_pyright_finds_the_same_lines_and_no_others(tmp_path: Path) -> None:
    beside = str(Path(sys.executable).parent)
    names = ("basedpyright", "pyright")
    found = [
        where
        for name in names
        for path in (beside, None)
        if (where := shutil.which(name, path=path))
    ]
    if not found:
        pytest.skip("neither basedpyright nor pyright is installed: pip install basedpyright")
    sample, marks = sample_that_does_not_fit(tmp_path)
    shutil.copy(HERE / "fits.py", tmp_path)
    settings = {
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
        "extraPaths": [str(CHECKOUT)],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"include": ["."], **settings}))
    command = [found[0], "--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in json.loads(run.stdout)["generalDiagnostics"]
    }
    assert lines == {(sample.name, number) for number, _ in marks}


def test_no_document_sets_a_key_of_the_app_by_its_name() -> None:
    """``J.set(tenant=7)`` is refused by both checkers: it is ``J.set({"tenant": 7})``."""
    seen, wrong = 0, []
    for document in runnable():
        for snippet in snippets(document, "python"):
            for call in ast.walk(ast.parse(snippet.text)):
                if not (isinstance(call, ast.Attribute) and call.attr.startswith("perform_")):
                    continue
                made = call.value
                if isinstance(made, ast.Call) and getattr(made.func, "attr", "") == "set":
                    seen += 1
                    names = {word.arg for word in made.keywords}
                    wrong += [f"{name_of(document)}: {name}" for name in names - OPTIONS.keys()]
    assert seen > 5
    assert wrong == []
