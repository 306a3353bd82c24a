"""A program that only pushes jobs pays for nothing of the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVER_SIDE = {
    "click",
    "forkq.child",
    "forkq.cli",
    "forkq.clock",
    "forkq.master",
    "psutil",
    "redis",
    "setproctitle",
    "structlog",
}


def test_import_forkq_loads_no_server_module() -> None:
    program = "import sys, forkq; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert not SERVER_SIDE & set(run.stdout.split())
