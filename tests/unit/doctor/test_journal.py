"""journald's rate limit against what forkq writes: of the unit, and of journald itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from forkq.doctor.finding import examine
from forkq.doctor.journal import journal


def unit(folder: Path, *lines: str) -> Path:
    file = folder / "forkq.service"
    file.write_text("\n".join(["[Unit]", "LogRateLimitBurst=9", "[Service]", *lines, ""]))
    return file


@pytest.mark.parametrize(
    ("lines", "level", "kept"),
    [
        ([], "warn", "10,000 lines in 30 s"),
        (["LogRateLimitIntervalSec=0"], "warn", "10,000 lines in 30 s"),  # systemd ignores it
        (["LogRateLimitIntervalSec=0", "LogRateLimitBurst=0"], "warn", "10,000 lines in 30 s"),
        (["LogRateLimitBurst=1000000"], "ok", "1,000,000 lines in 30 s"),
        (["LogRateLimitIntervalSec=1s", "LogRateLimitBurst=1000000"], "ok", "lines in 1 s"),
        (["LogRateLimitIntervalSec=1min", "LogRateLimitBurst=1000"], "warn", "in 60 s"),
        (["StandardOutput=append:/var/log/forkq.log"], "ok", "not go to the journal"),
        (["StandardError=file:/var/log/forkq.log"], "ok", "not go to the journal"),
        (["StandardOutput=null", "StandardError=journal"], "warn", "10,000 lines in 30 s"),
    ],
)
def test_the_limit_of_a_unit(tmp_path: Path, lines: list[str], level: str, kept: str) -> None:
    found = journal(unit(tmp_path, *lines), {}, root=tmp_path)
    assert (found.level, found.checked) == (level, True)
    assert kept in found.what
    assert level == "ok" or "LogRateLimitBurst=1000000" in found.remedy


def test_the_limit_of_journald_holds_where_the_unit_has_none(tmp_path: Path) -> None:
    file = unit(tmp_path)
    for folder, name, line in (
        ("usr/lib", "journald.conf", "RateLimitBurst=1"),
        ("etc", "journald.conf", "RateLimitBurst=2\n#RateLimitIntervalSec=9"),
        ("usr/lib", "journald.conf.d/b.conf", "RateLimitBurst=4"),
        ("etc", "journald.conf.d/a.conf", "RateLimitBurst=3"),
    ):
        path = tmp_path / folder / "systemd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[Journal]\n{line}\n")
    assert "keeps 4 lines in 30 s" in journal(file, {}, root=tmp_path).what
    (path.parent / "c.conf").write_text("[Journal]\nRateLimitIntervalSec=0\n")
    found = journal(file, {}, root=tmp_path)
    assert (found.level, "every line" in found.what) == ("ok", True)


def test_without_systemd_there_is_no_limit(tmp_path: Path) -> None:
    assert journal(None, {}).level == "ok"


def test_a_limit_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    file = unit(tmp_path, "LogRateLimitBurst=many")
    found = examine("journal", lambda: journal(file, {}, root=tmp_path))
    assert (found.level, found.checked) == ("warn", False)
