"""The status file: a disk that is full costs the news, and nothing else."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkq.master.status import StatusFile
from tests.redis.crew import Log


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        yield patch


def test_a_full_disk_leaves_no_half_written_file(
    tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    """It is told once; when there is room again the file is written."""
    log = Log()
    status = StatusFile(tmp_path / "forkq.status.json", {"tag": ""}, log)
    status.write("running", [], ready=True)
    status._next = 0.0
    status.write("quiet", [], ready=True)
    assert list(tmp_path.iterdir()) == []
    assert log.events() == ["cannot write the status file"]
    full_disk.undo()
    status._next = 0.0
    status.write("quiet", [], ready=True)
    assert json.loads((tmp_path / "forkq.status.json").read_text())["state"] == "quiet"
    assert len(list(tmp_path.iterdir())) == 1
