"""Signs lead somewhere: a path, name, command, option or variable that a text names is there.

The texts are the documents, and the docstrings and comments of the package. Releases that are over
(CHANGELOG.md) may name what they had. tests/architecture/test_documents.py looks at links and at
commands in fenced blocks.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import click

from forkq.cli.main import cli
from tests.support.documents import ROOT, documents, name_of
from tests.support.package_source import modules, place

CHANGELOG: Final = ROOT / "CHANGELOG.md"
# Written by tools, or installed.
NO_SOURCE: Final = {"__pycache__", "build", "dist", "node_modules", "site"}
SUFFIXES: Final = "py|lua|md|toml|html|css|js|json|sh|yaml|yml|service|c"
PATH: Final = re.compile(rf"(?<![\w/.{{<*-])((?:[\w.-]+/)*[\w-]+\.(?:{SUFFIXES}))\b(?!\()")
WORD: Final = re.compile(r"[A-Za-z_]\w*")
NAME: Final = re.compile(r"(?<!`)(`{1,2})([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`)]*\))?\1(?!`)")
COMMAND: Final = re.compile(r"`forkq ([a-z][a-z-]*(?: [a-z][a-z-]*)*)")
OPTION: Final = re.compile(r"`(--[a-z][\w-]+)")
VARIABLE: Final = re.compile(r"\bFORKQ_[A-Z][A-Z_]*[A-Z]\b(?![*<{])")
FENCED: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMENT: Final = re.compile(r"(?:^ *|  )# (.+)")  # as ruff formats them
ADDRESS: Final = re.compile(r"https?://\S+")

# The fields of a syntax tree that are names.
NAMES: Final = ("arg", "asname", "attr", "id", "module", "name")

# Files of users, and of other programs.
FOREIGN_PATHS: Final = {
    "-/run/credentials/forkq.service",
    "./app/jobs.py",
    "asgi.py",
    "shop.py",
    "sidekiq.yml",
}
# Names of other libraries and of Redis, in texts about what forkq does with them; and placeholders.
FOREIGN_NAMES: Final = {
    "CLASS",
    "FastAPI",
    "NAME_total",
    "OUTCOME",
    "QueueHandler",
    "YYYYMMDD",
    "basicConfig",
    "call_command",
    "captureOnCommitCallbacks",
    "datadog",
    "handlers",
    "increase",
    "isroutine",
    "read_response",
    "send_packed_command",
    "setUpTestData",
    "set_invalidation_push_handler",
    "sleeping",
    "text_anchor",
    "traceparent",
    "wrap_for_formatter",
}
# What users write by mistake.
FOREIGN_VARIABLES: Final = {"FORKQ_LOG"}
# Options of other programs, outside of the pages that lead from one of them to forkq.
FOREIGN_OPTIONS: Final = {"--max-prefetch"}
# Documents about what forkq is made of. Others name the classes of apps and of other libraries.
ABOUT_THE_CODE: Final = ("CONTRIBUTING.md", "docs/internals.md", "docs/decisions/")


def test_paths_exist() -> None:
    places = [path.relative_to(ROOT).parts for path in files()]
    known = {"/".join(parts[start:]) for parts in places for start in range(len(parts))}
    found = {
        f"{where}: {path}"
        for where, text in [*prose(), *remarks(), *settings()]
        for path in PATH.findall(ADDRESS.sub("", text))
        if path not in FOREIGN_PATHS and path.lstrip("./") not in known
    }
    assert found == set()


def test_names_of_code_exist() -> None:
    """Of ``Class.method`` each part: as a name in the code, or as a word in one of its texts."""
    about = [text for text in prose() if text[0].startswith(ABOUT_THE_CODE)]
    found = {
        f"{where}: {name}"
        for where, text in [*about, *remarks()]
        for _, name in NAME.findall(text)
        if not set(name.split(".")) <= words() | FOREIGN_NAMES
    }
    assert found == set()


def test_commands_exist() -> None:
    found = {
        f"{where}: forkq {line}"
        for where, text in [*prose(), *remarks(), *strings()]
        for line in COMMAND.findall(text)
        if not is_command(line.split())
    }
    assert found == set()


def test_options_exist() -> None:
    known = options_below(cli) | FOREIGN_OPTIONS
    texts = [text for text in prose() if not text[0].startswith("docs/from-")]
    found = {
        f"{where}: {option}"
        for where, text in [*texts, *remarks(), *strings()]
        for option in OPTION.findall(text)
        if option not in known
    }
    assert found == set()


def test_variables_are_read_by_something() -> None:
    """By the code, a test, make or a script; a remark about a variable reads nothing."""
    scripts = [path for path in files() if path.suffix in {".c", ".sh"} or path.name == "Makefile"]
    readers = [path.read_text() for path in [*scripts, ROOT / "forkq-probe"] if path.exists()]
    tests = [path.read_text() for path in sorted((ROOT / "tests").rglob("*.py"))]
    known = FOREIGN_VARIABLES | {
        variable
        for text in [*readers, *tests, *(text for _, text in strings())]
        for variable in VARIABLE.findall(text)
    }
    whole = [(name_of(path), path.read_text()) for path in documents() if path != CHANGELOG]
    found = {
        f"{where}: {variable}"
        for where, text in [*whole, *remarks()]
        for variable in VARIABLE.findall(text)
        if variable not in known
    }
    assert found == set()


@cache
def files() -> list[Path]:
    """All files of the project."""
    found = []
    for folder, names, inside in os.walk(ROOT):
        names[:] = [name for name in names if name not in NO_SOURCE and is_ours(name)]
        found += [Path(folder, name) for name in inside]
    return found


def is_ours(folder: str) -> bool:
    return not folder.startswith(".") or folder == ".github"


def prose() -> Iterator[tuple[str, str]]:
    """The text of each document, without its fenced blocks."""
    for path in documents():
        if path != CHANGELOG:
            yield name_of(path), FENCED.sub("", path.read_text())


@cache
def remarks() -> list[tuple[str, str]]:
    """The docstrings and comments of the package."""
    found: list[tuple[str, str]] = []
    for path, tree in modules().items():
        at = place(path)
        found += [(f"{at}:{each.lineno}", str(each.value)) for each in docstrings(tree)]
        comments = map(COMMENT.search, path.read_text().splitlines())
        found += [(f"{at}:{line}", each[1]) for line, each in enumerate(comments, 1) if each]
    return found


@cache
def strings() -> list[tuple[str, str]]:
    """The strings of the package's code."""
    found = []
    for path, tree in modules().items():
        ignored = {id(docstring) for docstring in docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in ignored:
                value = node.value
                if isinstance(value, (str, bytes)):
                    text = value if isinstance(value, str) else value.decode("latin-1")
                    found.append((f"{place(path)}:{node.lineno}", text))
    return found


def settings() -> Iterator[tuple[str, str]]:
    """Files that name others: of the project's tools, and those that users copy."""
    for path in files():
        if path.suffix in {".lua", ".toml"} or path.name == "Makefile":
            yield place(path), path.read_text()


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            assert isinstance(statement.value, ast.Constant)
            yield statement.value


@cache
def words() -> set[str]:
    """All names in the code, in its strings and in its data, and of files, folders and Python."""
    found = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
    for tree in modules().values():
        for node in ast.walk(tree):
            names = (value for field, value in ast.iter_fields(node) if field in NAMES)
            found.update(part for name in names if name for part in name.split("."))
    for path in (ROOT / "tests").rglob("*.py"):
        found.update(re.findall(r"def (\w+)", path.read_text()))
    for _, text in strings():
        found.update(WORD.findall(text))
    for path in files():
        found.update(WORD.findall(path.stem), path.name.split("."))
        if path.suffix in {".lua", ".html", ".js", ".css"} and "forkq" in path.parts:
            found.update(WORD.findall(re.sub(r"--.*", "", path.read_text())))
    found.update(folder for path in files() for folder in path.relative_to(ROOT).parts)
    return found


def is_command(line: list[str]) -> bool:
    """Whether its first words are a command, up to its arguments."""
    command: click.Command | None = cli
    for word in line:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command is not None


def options_below(command: click.Command) -> set[str]:
    """Those of a command and of all below it."""
    found = {"--help", "--version"}
    for parameter in command.params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                found |= options_below(below)
    return found
