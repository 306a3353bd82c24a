"""The layers of docs/internals.md hold: what import-linter checks, and what it cannot see."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.package_source import PACKAGE, modules, nodes

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the package
# Written as a user's app is, so it may say `import forkq`.
APPS = PACKAGE / "contrib"
REDIS_LIBRARIES = {"redis", "hiredis"}
REDIS_PY = PACKAGE / "store" / "redis_py.py"
FETCH = PACKAGE / "child" / "fetch"
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if APPS not in path.parents]


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


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """The absolute imports of a file: line number and module."""
    found = []
    for node in nodes(modules()[path]):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.lineno, node.module or ""))
    return found


def importing(names: set[str], paths: list[Path]) -> list[str]:
    """Each line of these files that imports one of these packages, or a module of it."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in imported(path)
        if name.split(".")[0] in names
    ]


# All files in one test each: four hundred tests of a millisecond took their workers four seconds.
def test_no_module_imports_the_public_package() -> None:
    """Inside, imports are relative and name a module: the package's `__init__` stays on top."""
    assert importing({"forkq"}, list(APPS.rglob("*.py"))) != []
    assert importing({"forkq"}, MODULES) == []


def test_one_module_and_the_fetch_import_the_redis_library() -> None:
    """A new redis-py may change what forkq calls: that stands in one place, store/redis_py.py."""
    may = [path for path in MODULES if path == REDIS_PY or FETCH in path.parents]
    assert importing(REDIS_LIBRARIES, may) != []
    assert importing(REDIS_LIBRARIES, [path for path in MODULES if path not in may]) == []
