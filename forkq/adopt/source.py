"""The files of a code base, parsed, and what they tell about it as a whole."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from .words import Words

_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Source(msgspec.Struct, frozen=True):
    """One file that could be parsed."""

    path: Path
    tree: ast.Module


class Skipped(msgspec.Struct, frozen=True):
    """One file that could not be parsed, and why."""

    path: Path
    why: str


def read(paths: Sequence[Path]) -> list[Source | Skipped]:
    """Reads the Python files below these folders, and these files."""
    return [_parsed(file) for path in paths for file in _files(path)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for found in sorted(path.iterdir()):
        if found.name.startswith(".") or found.name in _LEFT_OUT or found.is_symlink():
            continue
        if found.is_dir() or found.suffix == ".py":
            yield from _files(found)


def _parsed(path: Path) -> Source | Skipped:
    try:
        with tokenize.open(path) as file:
            return Source(path, ast.parse(file.read()))
    except SyntaxError as error:
        return Skipped(path, f"line {error.lineno or 1}: {error.msg}")
    except (OSError, ValueError, RecursionError) as error:
        return Skipped(path, str(error) or type(error).__name__)


def imported(tree: ast.Module, packages: frozenset[str]) -> dict[str, str]:
    """The names that the file takes from these packages, local to original; a module is ""."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases = [alias for alias in node.names if _root(alias.name) in packages]
            found.update((alias.asname or _root(alias.name), "") for alias in aliases)
        elif isinstance(node, ast.ImportFrom) and _root(node.module or "") in packages:
            found.update((alias.asname or alias.name, alias.name) for alias in node.names)
    return found


def packages_imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each package that the file imports, or imports from, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((_root(alias.name), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield _root(node.module or ""), node.lineno


def jobs_of(tree: ast.Module, words: Words) -> set[str]:
    """The names of the functions that one of the library's decorators stands on."""
    own = imported(tree, words.packages)
    functions = (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))
    return {
        node.name
        for node in functions
        if any(is_decorator(each, words, own) for each in node.decorator_list)
    }


def is_decorator(node: ast.expr, words: Words, own: Mapping[str, str]) -> bool:
    """Whether a decorator is one of the library's. ``@app.task`` is, wherever the app comes from; a
    bare ``@task`` must be imported from the library, and ``@forkq.job`` is ours."""
    target = node.func if isinstance(node, ast.Call) else node
    if isinstance(target, ast.Name):
        return own.get(target.id) in words.decorators
    if not isinstance(target, ast.Attribute) or target.attr not in words.decorators:
        return False
    return last_name(target.value) != "forkq"


FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def last_name(node: ast.expr) -> str:
    """``task`` of ``app.task(bind=True)``, of ``app.task`` and of ``task``."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _root(module: str) -> str:
    return module.partition(".")[0]
