"""The layers of docs/internals.md hold: what import-linter checks, and what it cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "forkq"
# Written as a user's app is, so they may say `import forkq`.
APPS = {PACKAGE / "demo", PACKAGE / "contrib"}
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_the_public_package(path: Path) -> None:
    """Inside, imports are relative and name a module: the package's `__init__` stays on top."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        inner = [name for name in names if name.split(".")[0] == "forkq"]
        assert not inner, f"{path.relative_to(ROOT)}:{node.lineno} imports {inner[0]}"
