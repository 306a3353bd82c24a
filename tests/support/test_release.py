"""What a release changes, and what it refuses."""

from __future__ import annotations

from datetime import date

import pytest

from tests.support.documents import ROOT
from tests.support.release import CannotRelease, checked_version, with_release, with_version

DAY = date(2026, 12, 1)


def test_the_version_is_set_where_it_stands() -> None:
    text = (ROOT / "forkq" / "version.py").read_text()
    changed = with_version(text, "0.2.0")
    assert '__version__ = "0.2.0"' in changed
    assert changed.splitlines()[:-1] == text.splitlines()[:-1]
    with pytest.raises(CannotRelease, match="no line"):
        with_version("", "0.2.0")


def test_the_changelog_gets_a_dated_section_below_an_empty_one() -> None:
    text = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A.\n\n## 0.1.0 - 2026-01-01\n\n- B.\n"
    changed = with_release(text, "0.2.0", DAY)
    assert "## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n### Added\n\n- A.\n" in changed
    with pytest.raises(CannotRelease, match="nothing under"):
        with_release(changed, "0.3.0", DAY)
    with pytest.raises(CannotRelease, match=r"a section 0\.2\.0 already"):
        with_release(changed, "0.2.0", DAY)


def test_the_changelog_of_this_checkout_can_be_released() -> None:
    changed = with_release((ROOT / "CHANGELOG.md").read_text(), "99.0.0", DAY)
    assert changed.count("## 99.0.0 - 2026-12-01\n") == 1


@pytest.mark.parametrize("text", ["", "1", "v1.2.3", "1.2", "1.2.3-beta", "1.2.3 "])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(CannotRelease, match="is no version"):
        checked_version(text)
    assert checked_version("0.2.0rc1") == "0.2.0rc1"
