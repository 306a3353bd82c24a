"""The status file: on a full disk it is not written, and the master goes on."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkq.config.load import load
from forkq.master.status_file import StatusFile
from tests.support.recorded_log import RecordedLog


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """No file may grow, as on a disk that is full, until the returned function is called."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def make_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    yield make_room
    make_room()


def test_a_full_disk_leaves_no_half_written_file(
    tmp_path: Path, full_disk: Callable[[], None]
) -> None:
    """It is logged once. When there is room again, the file is written."""
    log = RecordedLog()
    flags = {"pidfile": str(tmp_path / "forkq.pid")}
    settings = load(None, flags, {}, tmp_path)
    status = StatusFile(settings, log)
    status.write("running", [], ready=True, missing=[])
    status._next_write = 0.0
    status.write("quiet", [], ready=True, missing=[])
    assert list(tmp_path.iterdir()) == []
    assert log.events() == ["cannot write the status file"]
    full_disk()
    status._next_write = 0.0
    status.write("quiet", [], ready=True, missing=[])
    assert json.loads(settings.status_file.read_text())["state"] == "quiet"
    assert list(tmp_path.iterdir()) == [settings.status_file]
