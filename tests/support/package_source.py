"""The source of the package, parsed once for all tests that look at it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.documents import ROOT

PACKAGE = ROOT / "forkq"


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the package, by its file."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a module: to walk through the whole package takes longer than to parse it."""
    return list(ast.walk(tree))


@cache
def classes() -> list[tuple[Path, ast.ClassDef]]:
    """Every class of the package, with its file."""
    found = ((path, node) for path, tree in modules().items() for node in nodes(tree))
    return [(path, node) for path, node in found if isinstance(node, ast.ClassDef)]


def place(path: Path) -> str:
    """As the project names it: "forkq/job.py"."""
    return path.relative_to(ROOT).as_posix()
