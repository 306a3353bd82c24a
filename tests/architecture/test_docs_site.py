"""`make check` refuses a broken link of the docs site, and a public name without its text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from forkq import testing
from tests.support import api_page
from tests.support.documents import ROOT

PAGE = """\
# Here

[page](nothing.md) [file](../nothing.txt) [heading](#nothing) [folder](nothing/)
[good](#here) [README](../README.md#good) [examples](../examples)
"""


def test_a_broken_link_is_refused_and_a_link_out_of_docs_leads_to_github(tmp_path: Path) -> None:
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `make check` installs it")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(PAGE)
    (tmp_path / "README.md").touch()
    (tmp_path / "examples").mkdir()
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    hook = Path("tests", "support", "docs_site.py")
    (tmp_path / hook).parent.mkdir(parents=True)
    shutil.copy(ROOT / hook, tmp_path / hook)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("WARNING")) == (1, 4), done.stderr
    for broken in ("'nothing.md'", "'../nothing.txt'", "'#nothing'", "'nothing/'"):
        assert broken in done.stderr
    html = (tmp_path / "site" / "index.html").read_text()
    assert "https://github.com/forkq/forkq/blob/main/README.md#good" in html
    assert "https://github.com/forkq/forkq/tree/main/examples" in html
    assert 'src="http' not in html


def test_a_public_name_without_a_docstring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing.drain, "__doc__", None)
    with pytest.raises(api_page.Undocumented, match=r"testing\.drain is public and has no doc"):
        api_page.page()


def test_a_public_name_that_is_not_on_the_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "__all__", [*testing.__all__, "replay"])
    with pytest.raises(api_page.Undocumented, match=r"testing\.replay"):
        api_page.page()
