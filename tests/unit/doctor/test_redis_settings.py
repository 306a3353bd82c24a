"""What `forkq doctor` says of the host of Redis. This process stands for the server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from forkq.doctor.redis_settings import huge_pages, overcommit
from forkq.doctor.server import ExaminedServer
from tests.unit.doctor.test_server import server


def here() -> ExaminedServer:
    """The INFO of a server that is this process."""
    age = time.time() - psutil.Process().create_time()
    return server(process_id=str(os.getpid()), uptime_in_seconds=str(int(age)))


@pytest.mark.parametrize(
    ("setting", "status", "level"),
    [
        ("always [madvise] never", "THP_enabled:\t1", "ok"),
        ("[always] madvise never", "THP_enabled:\t1", "warn"),
        ("[always] madvise never", "THP_enabled:\t0", "ok"),  # disable-thp, the default of Redis
        ("[always] madvise never", "an older kernel", "warn"),
    ],
)
def test_huge_pages(tmp_path: Path, setting: str, status: str, level: str) -> None:
    (tmp_path / "enabled").write_text(f"{setting}\n")
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "status").write_text(f"Name:\tredis\n{status}\n")
    found = huge_pages(here(), tmp_path / "enabled", tmp_path)
    assert found.level == level
    assert level == "ok" or "madvise" in found.remedy


@pytest.mark.parametrize(("mode", "level"), [("0", "warn"), ("1", "ok"), ("2", "warn")])
def test_overcommit(tmp_path: Path, mode: str, level: str) -> None:
    (tmp_path / "mode").write_text(f"{mode}\n")
    found = overcommit(here(), tmp_path / "mode")
    assert (found.level, found.what) == (level, f"vm.overcommit_memory is {mode}")
    assert level == "ok" or "vm.overcommit_memory=1" in found.remedy


@pytest.mark.parametrize(
    "info",
    [
        {"process_id": str(os.getpid()), "uptime_in_seconds": "900000000"},  # another's pid there
        {"process_id": "0", "uptime_in_seconds": "1"},
        {},
    ],
)
def test_a_server_elsewhere_is_not_judged_by_this_host(info: dict[str, str]) -> None:
    missing = Path("/nonexistent")
    for found in (huge_pages(server(**info), missing), overcommit(server(**info), missing)):
        assert found.level == "ok"
        assert "not on this host" in found.what
