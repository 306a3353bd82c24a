"""Finds the places of a code base that use another library."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from .celery_words import CELERY
from .dramatiq_words import DRAMATIQ
from .rq_words import RQ
from .source import Source, imported, is_decorator, jobs_of, last_name, packages_imported
from .words import Words

LIBRARIES: Final = (CELERY, RQ, DRAMATIQ)
# What is imported from a library and is a module itself, with words of its own.
MODULES: Final = frozenset({"signals", "schedules", "result", "exceptions", "canvas", "models"})
# The calls that push, whose result is asked later.
PUSHES: Final = frozenset(
    {"delay", "apply_async", "send_task", "send", "send_with_options"}
    | {"enqueue", "enqueue_call", "enqueue_in", "enqueue_at"}
)
# Packages without a list of words: each import leads to a section of one page.
OTHERS: Final[Mapping[str, str]] = {
    "huey": "huey",
    "taskiq": "taskiq",
    "saq": "saq-and-arq",
    "arq": "saq-and-arq",
    "apscheduler": "apscheduler",
    "django_apscheduler": "apscheduler",
    "django_rq": "django-rq",
    "django_celery_beat": "django-celery-beat",
}
_WIDTH: Final = 76
_DOCS: Final = "https://github.com/forkq/forkq/blob/main/docs/"


class ToMigrate(msgspec.Struct, frozen=True, order=True):
    """One place to change: where, what is there, and a sentence for each word of it."""

    file: str
    line: int
    library: str
    what: str
    instead: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The place for --json."""
        return {
            **msgspec.structs.asdict(self),
            "instead": [_with_addresses(each) for each in self.instead],
        }

    def __str__(self) -> str:
        lines = (f"    {_with_addresses(sentence)}" for sentence in self.instead)
        return "\n".join((f"{self.file}:{self.line}  {self.what}  ({self.library})", *lines))


def _with_addresses(sentence: str) -> str:
    """Gives each document its address: a reader may have no checkout of forkq."""
    return re.sub(r"\bdocs/(?=[a-z-]+\.md)", _DOCS, sentence)


def places(sources: Sequence[Source]) -> list[ToMigrate]:
    """Every place, in order. A library counts if at least one file imports it."""
    found: set[ToMigrate] = set()
    jobs = {words.library: _jobs(sources, words) for words in LIBRARIES}
    for words in LIBRARIES:
        others = {name for key, names in jobs.items() if key != words.library for name in names}
        own = jobs[words.library]
        for source in sources if _used(sources, words) else ():
            scan = _Scan(source, words, own, others - own)
            scan.visit(source.tree)
            found |= scan.found
    for source in sources:
        found |= _imports_of_others(source)
    return sorted(found)


def _imports_of_others(source: Source) -> set[ToMigrate]:
    """The imports of libraries without a list of words."""
    return {
        ToMigrate(
            str(source.path), line, package, f"import of {package}",
            (f"see docs/from-others.md#{OTHERS[package]}",),
        )
        for package, line in packages_imported(source.tree)
        if package in OTHERS
    }  # fmt: skip


def _used(sources: Sequence[Source], words: Words) -> bool:
    return any(imported(source.tree, words.packages) for source in sources)


def _jobs(sources: Sequence[Source], words: Words) -> set[str]:
    """The names of the jobs in all files. A decorator such as ``job`` counts only in a file that
    imports its library, since forkq has one of that name; Celery's ``@app.task`` counts everywhere,
    since another module may have the app."""
    return (
        {
            name
            for source in sources
            if words is CELERY or imported(source.tree, words.packages)
            for name in jobs_of(source.tree, words)
        }
        if _used(sources, words)
        else set()
    )


class _Scan(ast.NodeVisitor):
    """The scan of one file for the words of one library."""

    def __init__(self, source: Source, words: Words, jobs: set[str], others: set[str]) -> None:
        self.found: set[ToMigrate] = set()
        self._file = str(source.path)
        self._words = words
        self._jobs = jobs
        self._others = others
        self._imported = imported(source.tree, words.packages)
        self._bound = ""
        self._results: set[str] = set()
        self._is_configuration = words is CELERY and "celeryconfig" in source.path.name

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self._bound
        for decorator in node.decorator_list:
            self._decorator(decorator, node)
        self.generic_visit(node)
        self._bound = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 (the name that ast calls)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            self._method(node, node.func)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node, self._imported.get(node.id, ""))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if owner is not None and owner == self._bound:
            self._add(node, self._sentences(self._words.bound, [node.attr]))
        elif self._is_module(node.value):
            self._name(node, node.attr)
        elif self._is_result(node.value):
            self._add(node, self._sentences(self._words.results, [node.attr]))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._setting(node, target)
            if isinstance(target, ast.Name) and self._makes_result(node.value):
                self._results.add(target.id)
        self.generic_visit(node)

    def _is_module(self, node: ast.expr) -> bool:
        """Whether it is the library or a module of it: ``celery``, ``celery.signals``, or
        ``signals`` after ``from celery import signals``."""
        if isinstance(node, ast.Attribute):
            return node.attr.islower() and self._is_module(node.value)
        original = self._imported.get(node.id) if isinstance(node, ast.Name) else None
        return original == "" or (original is not None and original in MODULES)

    def _is_result(self, node: ast.expr) -> bool:
        """Whether it is what a push has returned."""
        return (isinstance(node, ast.Name) and node.id in self._results) or self._makes_result(node)

    def _makes_result(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        if not isinstance(node.func, ast.Attribute):
            return self._imported.get(last_name(node), "") in self._words.makers
        name, owner = node.func.attr, last_name(node.func.value)
        if name in self._words.makers or (owner in self._jobs and name in PUSHES):
            return True
        return name in PUSHES and name in self._words.calls and owner not in self._others

    def _decorator(
        self, decorator: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        if function.name not in self._jobs or not is_decorator(
            decorator, self._words, self._imported
        ):
            return
        keywords = _keywords(decorator)
        sentences = [self._sentence(decorator), *self._options(keywords)]
        self._add(decorator, sentences, "@")
        if "bind" in keywords and function.args.args:
            self._bound = function.args.args[0].arg

    def _sentence(self, decorator: ast.expr) -> str:
        name = last_name(decorator)
        return self._words.decorators[self._imported.get(name, "") or name]

    def _options(self, keywords: Iterable[str]) -> list[str]:
        none = "forkq has no such option: see docs/jobs.md for those that there are"
        return [f"{each}: {self._words.options.get(each, none)}" for each in keywords]

    def _method(self, node: ast.Call, method: ast.Attribute) -> None:
        owner = last_name(method.value)
        sentence = self._words.calls.get(method.attr) if owner not in self._others else None
        if sentence is None and owner in self._jobs:
            sentence = self._words.job_calls.get(method.attr)
        if sentence is None:
            sentence = self._words.owned.get(f"{owner}.{method.attr}")
        if sentence is not None:
            keywords = self._sentences(self._words.keywords, _keywords(node))
            self._add(node, [sentence, *keywords])
        elif owner == "conf" and method.attr == "update":
            self._add(node, self._sentences(self._words.settings, _keywords(node)))

    def _name(self, node: ast.expr, name: str) -> None:
        self._add(node, self._sentences(self._words.names, [name]))

    def _setting(self, node: ast.Assign, target: ast.expr) -> None:
        name = last_name(target).lower()
        if isinstance(target, ast.Name):
            prefix = "" if self._is_configuration else self._words.setting_prefix
            if not name.startswith(prefix) or (not self._is_configuration and target.id == name):
                return
            name = name.removeprefix(prefix)
        elif not isinstance(target, ast.Attribute) or last_name(target.value) != "conf":
            return
        self._add(node, self._sentences(self._words.settings, [name]))

    def _sentences(self, words: Mapping[str, str], names: Iterable[str]) -> list[str]:
        return [f"{name}: {words[name]}" for name in names if name in words]

    def _add(self, node: ast.expr | ast.stmt, sentences: Sequence[str], sign: str = "") -> None:
        if sentences:
            what = sign + " ".join(ast.unparse(node).split())
            short = what if len(what) <= _WIDTH else f"{what[: _WIDTH - 3]}..."
            place = ToMigrate(self._file, node.lineno, self._words.library, short, tuple(sentences))
            self.found.add(place)


def _keywords(node: ast.expr) -> list[str]:
    given = node.keywords if isinstance(node, ast.Call) else ()
    return [each.arg for each in given if each.arg is not None]
