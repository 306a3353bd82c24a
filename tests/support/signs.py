"""What texts name: paths, commands, options, variables, classes, headings. And what there is.

A *text* is a place with what stands there. ``prose_of``, ``remarks_of`` and the like take texts out
of a file. Each of ``FINDERS`` takes texts and returns the signs that lead nowhere.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import keyword
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import click

from forkq.cli.main import cli
from forkq.metrics.families import FAMILIES
from tests.support.documents import ROOT, anchors, documents, name_of
from tests.support.package_source import classes, modules, nodes, place

Text: TypeAlias = tuple[str, str]

CHANGELOG: Final = ROOT / "CHANGELOG.md"
# Written by tools, or installed.
_NO_SOURCE: Final = {"__pycache__", "build", "dist", "node_modules", "site"}
_SUFFIXES: Final = "py|lua|md|toml|html|css|js|json|sh|yaml|yml|service|c"
_PATH: Final = re.compile(rf"(?<![\w/.{{<*-])((?:[\w.-]+/)*[\w-]+\.(?:{_SUFFIXES}))\b(?!\()")
_FOLDER: Final = re.compile(r"`((?:[\w.-]+/)+)`")
_DECISION: Final = re.compile(r"\bdecisions?[/ ](\d{3})\b")
_HEADING: Final = re.compile(r'([\w/]+\.md), "([^"]+)"')
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_NAME: Final = re.compile(r"(?<!`)(`{1,2})([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`)]*\))?\1(?!`)")
_CLASS: Final = re.compile(r"(?<![\w`./-])[A-Z][a-z]+(?:[A-Z][a-z0-9]+)+\b(?!s\b)")
_LINE: Final = re.compile(r"`forkq ([a-z][^`]*)`")
_COMMAND: Final = re.compile(r"[a-z][a-z-]*(?: [a-z][a-z-]*)*")
_OPTION: Final = re.compile(r"`(--[a-z][\w-]+)")
_OPTION_IN_LINE: Final = re.compile(r"(?<![\w-])(--[a-z][\w-]+)")
_TARGET: Final = re.compile(r"`make ([a-z][a-z-]*)`")
_VARIABLE: Final = re.compile(r"\bFORKQ_[A-Z][A-Z_]*[A-Z]\b(?![*<{])")
_FENCED: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMENT: Final = re.compile(r"(?:^ *|  )# (.+)")  # as ruff formats them
_ADDRESS: Final = re.compile(r"https?://\S+")

# The fields of a syntax tree that are names.
_NAMES: Final = ("arg", "asname", "attr", "id", "module", "name")

# Files of users, and of other programs.
_FOREIGN_PATHS: Final = {
    "-/run/credentials/forkq.service",
    "./app/jobs.py",
    "asgi.py",
    "shop.py",
    "sidekiq.yml",
}
# What other programs and libraries call their things, and what stands for a name.
_FOREIGN_NAMES: Final = {
    *(
        "CLASS",
        "Clean",
        "FLASK_FORKQ__forkq__workers",
        "IDENTITY",
        "MailTest",
        "NAME_total",
        "OUTCOME",
        "YYYYMMDD",
    ),
    # Python and its libraries
    *("BackgroundTasks", "FastAPI", "NumPy", "PendingRollbackError", "ProtectProc", "QueueHandler"),
    *("QueuePool", "SubprocessError", "ValueErrors", "a2wsgi", "ASGIMiddleware", "basicConfig"),
    *("begin_nested", "dogstatsd", "DogStatsd", "getswitchinterval", "handlers", "isroutine"),
    *("pool_timeout", "qualname", "read_response", "send_packed_command", "teardown_appcontext"),
    *("set_invalidation_push_handler", "wrap_for_formatter"),
    # Django
    *("CONN_MAX_AGE", "DummyBackend", "ImmediateBackend", "aenqueue", "call_command"),
    *("captureOnCommitCallbacks", "django_capture_on_commit_callbacks", "setUpTestData"),
    *("ALLOWED_HOSTS", "LOGGING", "LOGIN_URL", "TransactionTestCase", "csrf_exempt", "is_staff"),
    *("async_to_sync", "csrf_token", "require_POST", "sync_to_async", "DATABASES"),
    # Celery, Dramatiq, Sidekiq
    *("IterableJob", "LimitFetch", "MainProcess", "QueueSemaphore", "celery_worker"),
    *("dramatiq_queue_prefetch", "fetch_class", "heartbeat_period", "poll_range"),
    # monitoring
    *("Bearer", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "OpenMetrics", "OpenTelemetry"),
    *("datadog", "histogram_quantile", "increase", "traceparent", "tracestate"),
    # Redis, shells, services, browsers
    *(
        "ASK",
        "CLUSTERDOWN",
        "MIGRATE",
        "MOVED",
        "TRYAGAIN",
        "DUMP",
        "FAILOVER",
        "GitHub",
        "JavaScript",
        "ElastiCache",
        "PgBouncer",
        "RESTORE",
        "RUBYLIB",
        "activating",
    ),
    *("SIDEKIQ_PATH", "mv", "ps", "sleeping", "sleeps", "stop_grace_period", "text_anchor"),
    "zsh_source",
    # arguments of a user's jobs
    *("api_key", "card_number"),
}
# What users write by mistake.
_FOREIGN_VARIABLES: Final = {"FORKQ_LOG"}
# Options of other programs, outside of the pages that lead from one of them to forkq.
_FOREIGN_OPTIONS: Final = {"--max-prefetch"}
# Pages about another library, whose names and options they have.
_ABOUT_OTHERS: Final = "docs/from-"


def prose_of(name: str, text: str) -> list[Text]:
    """A document without its fenced blocks."""
    return [(name, _FENCED.sub("", text))]


def remarks_of(name: str, source: str, tree: ast.Module | None = None) -> list[Text]:
    """The docstrings and comments of a Python file."""
    tree = tree or ast.parse(source)
    found = [(f"{name}:{each.lineno}", str(each.value)) for each in docstrings(tree)]
    comments = map(_COMMENT.search, source.splitlines())
    found += [(f"{name}:{line}", each[1]) for line, each in enumerate(comments, 1) if each]
    return found


def lua_remarks_of(name: str, source: str) -> list[Text]:
    """The comments of a Lua file, as one text: a sentence goes over several lines."""
    return [(name, "\n".join(re.findall(r"--+ ?(.*)", source)))]


def strings_of(name: str, tree: ast.Module) -> Iterator[Text]:
    """The strings of a Python file, but its docstrings."""
    ignored = {id(docstring) for docstring in docstrings(tree)}
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and id(node) not in ignored:
            value = node.value
            if isinstance(value, (str, bytes)):
                text = value if isinstance(value, str) else value.decode("latin-1")
                yield f"{name}:{node.lineno}", text


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in nodes(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            statement = node.body[0]
            assert isinstance(statement, ast.Expr)
            assert isinstance(statement.value, ast.Constant)
            yield statement.value


@cache
def files() -> list[Path]:
    """All files of the project."""
    found = []
    for folder, names, inside in os.walk(ROOT):
        names[:] = [name for name in names if name not in _NO_SOURCE and _is_ours(name)]
        found += [Path(folder, name) for name in inside]
    return found


def _is_ours(folder: str) -> bool:
    return not folder.startswith(".") or folder == ".github"


@cache
def prose() -> list[Text]:
    """The documents. Releases that are over (CHANGELOG.md) may name what they had."""
    texts = (prose_of(name_of(path), path.read_text()) for path in documents() if path != CHANGELOG)
    return [text for found in texts for text in found]


@cache
def remarks() -> list[Text]:
    """The docstrings and comments of the package, of its scripts for Redis, too."""
    found: list[Text] = []
    for path, tree in modules().items():
        found += remarks_of(place(path), path.read_text(), tree)
    for path in files():
        if path.suffix == ".lua":
            found += lua_remarks_of(place(path), path.read_text())
    return found


@cache
def strings() -> list[Text]:
    """The strings of the package: help texts, log lines, errors."""
    return [text for path, tree in modules().items() for text in strings_of(place(path), tree)]


@cache
def settings() -> list[Text]:
    """Files that name others: of the project's tools, and those that users copy."""
    found = (path for path in files() if path.suffix == ".toml" or path.name == "Makefile")
    return [(place(path), path.read_text()) for path in found]


def lost_paths(texts: Iterable[Text]) -> set[str]:
    """Files and folders, by their path or its end; decisions, by their number."""
    known, folders = _known_paths()
    found = set()
    for where, text in texts:
        plain = _ADDRESS.sub("", text)
        paths = {path for path in _PATH.findall(plain) if path.lstrip("./") not in known}
        found |= {f"{where}: {path}" for path in paths - _FOREIGN_PATHS}
        found |= {f"{where}: {path}" for path in _FOLDER.findall(plain) if path not in folders}
        decisions = (f"decisions/{number}" for number in _DECISION.findall(plain))
        found |= {f"{where}: {each}" for each in decisions if each not in folders}
    return found


@cache
def _known_paths() -> tuple[set[str], set[str]]:
    """Each path and each end of one; and each part of one that is a folder, with a slash."""
    places = [path.relative_to(ROOT).parts for path in files()]
    ends = {"/".join(parts[start:]) for parts in places for start in range(len(parts))}
    folders = {
        "/".join(parts[start:end]) + "/"
        for parts in places
        for end in range(1, len(parts))
        for start in range(end)
    }
    numbers = {f"decisions/{path.name[:3]}" for path in (ROOT / "docs" / "decisions").iterdir()}
    return ends, folders | numbers


def lost_headings(texts: Iterable[Text]) -> set[str]:
    """The heading in quotes after the path of a document: `docs/wire.md, "Retry"`."""
    found = set()
    for where, text in texts:
        for path, title in _HEADING.findall(re.sub(r"\s+", " ", text)):
            document = ROOT / path
            anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            if not document.exists() or anchor not in anchors(document):
                found.add(f'{where}: {path}, "{title}"')
    return found


def lost_names(texts: Iterable[Text]) -> set[str]:
    """Names in backticks, each part of ``Class.method``; and a class's name in plain text.

    A name is there if the code has it, or if one of its texts has it as a word.
    """
    known = words() | _FOREIGN_NAMES
    found = set()
    for where, text in texts:
        if where.startswith(_ABOUT_OTHERS):
            continue
        for _, name in _NAME.findall(text):
            if not set(name.split(".")) <= known or _is_no_member(name):
                found.add(f"{where}: {name}")
        found |= {f"{where}: {name}" for name in _CLASS.findall(text) if name not in known}
    return found


def _is_no_member(name: str) -> bool:
    """Whether the class in it, one of forkq's, lacks the attribute behind it."""
    parts = name.split(".")
    pairs = itertools.pairwise(parts)
    return any(owner in members() and each not in _all_of(owner) for owner, each in pairs)


@cache
def members() -> dict[str, tuple[set[str], list[str]]]:
    """The attributes of each class of the package, and its bases."""
    return {node.name: (set(_attributes(node)), _bases(node)) for _, node in classes()}


def _bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def _attributes(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _all_of(owner: str) -> set[str]:
    if owner not in members():
        return set(dir(getattr(builtins, owner, object)))
    own, bases = members()[owner]
    return own.union(*map(_all_of, bases))


@cache
def words() -> set[str]:
    """All names in the code, in its strings and in its data, in the documents' examples, and of
    files, folders and Python."""
    found = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names}
    for tree in modules().values():
        for node in nodes(tree):
            names = (value for field, value in ast.iter_fields(node) if field in _NAMES)
            found.update(part for name in names if name for part in name.split("."))
    for path in (ROOT / "tests").rglob("*.py"):
        found.update(re.findall(r"(?:def|class) (\w+)", path.read_text()))
    for _, text in strings():
        found.update(_WORD.findall(text))
    for path in files():
        found.update(_WORD.findall(path.stem), path.name.split("."))
        if path.suffix in {".lua", ".html", ".js", ".css"} and "forkq" in path.parts:
            found.update(_WORD.findall(re.sub(r"--.*", "", path.read_text())))
    found.update(family.query_name for family in FAMILIES)
    found.update(folder for path in files() for folder in path.relative_to(ROOT).parts)
    for document in documents():
        for block in _FENCED.findall(document.read_text()):
            found.update(_WORD.findall(block))
    return found


def lost_commands(texts: Iterable[Text]) -> set[str]:
    """`forkq ...` in backticks: each word that is a command, and each option."""
    found = set()
    for where, text in texts:
        for line in _LINE.findall(text):
            command = re.split(r" \\?\| ", re.sub(r"\s+", " ", line))[0]
            if problem := _problem_of(command):
                found.add(f"{where}: forkq {line}: {problem}")
        targets = (name for name in _TARGET.findall(text) if name not in _targets())
        found |= {f"{where}: make {name}" for name in targets}
    return found


def _problem_of(line: str) -> str:
    """What of a command line there is not; "" if all of it is there."""
    words_of_line = _COMMAND.match(line)
    command: click.Command | None = cli
    for word in words_of_line[0].split() if words_of_line else ():
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
        if command is None:
            return word
    lost = set(_OPTION_IN_LINE.findall(line)) - options_below(command or cli)
    return ", ".join(sorted(lost))


@cache
def _targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def lost_options(texts: Iterable[Text]) -> set[str]:
    known = options_below(cli) | _FOREIGN_OPTIONS
    return {
        f"{where}: {option}"
        for where, text in texts
        if not where.startswith(_ABOUT_OTHERS)
        for option in _OPTION.findall(text)
        if option not in known
    }


def options_below(command: click.Command) -> set[str]:
    """The options of a command and of all commands below it."""
    found = {"--help", "--version"}
    for parameter in command.params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                found |= options_below(below)
    return found


def lost_variables(texts: Iterable[Text]) -> set[str]:
    """Variables that nothing reads: neither the code, a test, make nor a script."""
    known = _known_variables() | _FOREIGN_VARIABLES
    return {
        f"{where}: {variable}"
        for where, text in texts
        for variable in _VARIABLE.findall(text)
        if variable not in known
    }


@cache
def _known_variables() -> set[str]:
    scripts = [path for path in files() if path.suffix in {".c", ".sh"} or path.name == "Makefile"]
    tests = (ROOT / "tests").rglob("*.py")
    probe = [path for path in (ROOT / "forkq-probe",) if path.exists()]
    readers = [path.read_text() for path in (*scripts, *probe, *tests)]
    texts = (*readers, *(text for _, text in strings()))
    return {variable for text in texts for variable in _VARIABLE.findall(text)}


FINDERS: Final[tuple[Callable[[Iterable[Text]], set[str]], ...]] = (
    lost_paths,
    lost_headings,
    lost_names,
    lost_commands,
    lost_options,
    lost_variables,
)
