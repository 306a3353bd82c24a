"""docs/testing.md is a project that passes as printed: each block is the file that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import ROOT, snippets

PAGE = ROOT / "docs" / "testing.md"

pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    for snippet in snippets(PAGE, "python", "ini"):
        named = re.match(r"# (\w+\.(?:py|ini))\n", snippet.text)
        assert named is not None, f"{snippet.place} does not say which file it is"
        path = Path(pytester.path / named[1])
        assert not path.exists(), f"{snippet.place}: there are two blocks for {named[1]}"
        path.write_text(snippet.text)
    return pytester


def test_every_test_of_the_page_passes(project: pytest.Pytester) -> None:
    (project.path / "pytest.ini").write_text("[pytest]\n")  # the page shows what is no default
    result = project.runpytest_subprocess("-p", "no:xdist", "-rA")
    shown = "\n".join(each.text for each in snippets(PAGE, "python"))
    result.assert_outcomes(passed=len(re.findall(r"^ *(?:async )?def test_", shown, re.MULTILINE)))


def test_the_setting_of_the_page_records_the_pushes_of_all_tests(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_setting="""
        from forkq.testing import recorded
        from jobs import sign_up

        def test_setting():
            sign_up(7, "a.png")
            assert len(recorded()) == 3
        """
    )
    result = project.runpytest_inprocess("-p", "no:xdist", "test_setting.py")
    result.assert_outcomes(passed=1)


def test_the_complaint_is_the_one_that_is_printed(project: pytest.Pytester) -> None:
    (printed,) = [each.text for each in snippets(PAGE, "") if "no such job" in each.text]
    project.makepyfile(
        test_complaint="""
        from jobs import Thumbnail, welcome

        def test_complaint(forkq_jobs):
            welcome.perform_async(7)
            Thumbnail.perform_async("a.png", 200)
            try:
                forkq_jobs.enqueued(Thumbnail, args=["a.png", 300], queue="images")
            except AssertionError as error:
                print(error)
        """
    )
    result = project.runpytest_inprocess("-p", "no:xdist", "-s", "test_complaint.py")
    assert without_jids(printed) in without_jids(str(result.stdout))


def without_jids(text: str) -> str:
    return re.sub("jid=[0-9a-f]{24}", "jid=...", text)
