"""The layers of docs/internals.md hold: what import-linter checks, and what it cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "forkq"
# Written as a user's app is, so they may say `import forkq`.
APPS = {PACKAGE / "demo", PACKAGE / "contrib"}
REDIS_LIBRARIES = {"redis", "hiredis"}
REDIS_PY = PACKAGE / "store" / "redis_py.py"
FETCH = PACKAGE / "child" / "fetch"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not APPS & set(path.parents)]


def test_import_contracts_are_kept() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
    ]
    run = subprocess.run(
        [*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The absolute imports of a file: line number and module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_the_public_package(path: Path) -> None:
    """Inside, imports are relative and name a module: the package's `__init__` stays on top."""
    for line, name in imported(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        assert name.split(".")[0] != "forkq", where


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_module_and_the_fetch_import_the_redis_library(path: Path) -> None:
    """A new redis-py may change what forkq calls: that stands in one place."""
    if path == REDIS_PY or FETCH in path.parents:
        return
    for line, name in imported(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        assert name.split(".")[0] not in REDIS_LIBRARIES, f"{where}; import store/connection.py"
