"""A program that only pushes jobs pays for nothing of the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVER_SIDE = {
    "click",
    "forkq.api",
    "forkq.child",
    "forkq.cli",
    "forkq.clock",
    "forkq.config",
    "forkq.cron",
    "forkq.limits",
    "forkq.master",
    "forkq.runtime",
    "forkq.store.connection",
    "hiredis",
    "psutil",
    "redis",
    "setproctitle",
    "structlog",
}
MOST_MODULES = 30


def modules_after(program: str) -> set[str]:
    """What is imported once a fresh interpreter has run ``program``."""
    source = f"import sys\n{program}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_import_forkq_loads_no_server_module() -> None:
    assert not SERVER_SIDE & modules_after("import forkq")


def test_import_forkq_loads_few_modules_of_its_own() -> None:
    own = {name for name in modules_after("import forkq") if name.split(".")[0] == "forkq"}
    assert len(own) <= MOST_MODULES, sorted(own)


def test_a_job_class_loads_no_config() -> None:
    program = "import forkq\nclass J(forkq.Job):\n    def perform(self): ..."
    assert not SERVER_SIDE & modules_after(program)


def test_a_client_with_a_url_loads_no_config() -> None:
    assert not SERVER_SIDE & modules_after('import forkq\nforkq.Client("redis://localhost/0")')


def test_the_configuration_is_loaded_with_the_first_address() -> None:
    program = 'import forkq\nforkq.configure("redis://localhost/0", environ={})'
    assert "forkq.config.config" in modules_after(program)


def test_the_server_does_not_load_the_management_api() -> None:
    loaded = modules_after("import forkq.cli.start, forkq.master.spawn")
    assert "forkq.master.spawn" in loaded
    assert "forkq.api" not in loaded
