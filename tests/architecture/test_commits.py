"""The subjects of the latest commits: an area, and what changes, in at most 72 characters."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import pytest

from tests.support.documents import ROOT

LONGEST: Final = 72
FORM: Final = re.compile(r"[\w, /.-]+: \S.*[^.]")
LATEST: Final = 20
# Earlier subjects stay as they are: some are longer.
SINCE: Final = "2026-11-26T16:39:43+00:00"


def problem(subject: str) -> str:
    """What is wrong with it; "" if nothing is."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters"
    return "" if FORM.fullmatch(subject) else "no `area: what changes`"


def test_the_subjects_of_the_latest_commits_are_short_and_name_their_area() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no clone: a release has no commits")
    command = ("git", "log", f"-{LATEST}", f"--since={SINCE}", "--no-merges", "--format=%s")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    subjects = done.stdout.splitlines()
    assert {each: problem(each) for each in subjects if problem(each)} == {}


@pytest.mark.parametrize(
    "subject", ["fetch: keep " + "blocking patterns " * 4, "Fix it", "fetch: it ends with a dot."]
)
def test_a_wrong_subject_is_found(subject: str) -> None:
    assert problem(subject)
