"""Writes docs/api.md from the docstrings of the public API.

``python -m tests.support.api_page`` writes the page. With ``--check`` it compares the page with the
code, for `make check`; tests/architecture/test_api_page.py does so, too. Both refuse a public name
that has no docstring or no place on the page. Signatures are taken from the source text, so that
every Python version writes the same page.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

import forkq
from forkq import api, cursors, errors, middleware, registry, testing
from forkq.api import aio
from forkq.cron.entry import Entry
from forkq.cron.schedule import Schedule
from forkq.current_job import CurrentJob
from forkq.push import Pusher
from forkq.store.find_job import Found
from forkq.wire import prepared
from forkq.wire.lease import Progress
from tests.support.api_tasks import TASKS, Task
from tests.support.documents import ROOT
from tests.support.option_table import table, types_of

PAGE: Final = ROOT / "docs" / "api.md"

_HEAD: Final = """\
# The Python API

By task: what to write, then what each name means. Most examples import the first one as `jobs`.
What is not on this page may change without notice.

Made by `python -m tests.support.api_page` from the docstrings and tests/support/api_tasks.py."""

# Names for the annotations of an app's own hooks, handlers and middleware.
_TYPES: Final = {
    "Payload": "a job as it stands in Redis",
    "JobContext": "what `current_job()` returns",
    "NextCall": "the second argument of a middleware",
    "RetryIn": "the hook `retry_in`",
    "Exhausted": "the hook `retries_exhausted`",
    "DeathHandler": "what `on_death` takes",
    "DuplicateHandler": "what `on_duplicate` takes",
    "ErrorHandler": "what `on_error` takes",
    "ErrorContext": "the second argument of an error handler",
    "Event": "what `on` takes",
}
# They stand elsewhere on the page, under the name of their module, or need no text.
_OTHERS: Final = (
    *_TYPES,
    "AroundMiddleware",
    "Middleware",
    "Queue",
    "__version__",
    "api",
    "cursors",
    "is_alive",
    "middleware",
)
# The texts of modules that say what holds for all of a task.
_MODULES: Final[dict[str, tuple[ModuleType, ...]]] = {
    "Wrap pushes and runs": (middleware,),
    "Work item by item": (cursors,),
    "Choose the Redis that is asked": (api,),
    "Change periodic jobs at run time": (api.cron,),
    "Ask from asyncio": (aio,),
    "Test code that pushes": (testing,),
}

# Types that public functions return, and that have no public name.
_RETURNED: Final[dict[str, type]] = {
    "CurrentJob": CurrentJob,
    "Progress": Progress,
    "Found": Found,
    "Entry": Entry,
    "Schedule": Schedule,
}
# Job has its push methods through descriptors, which carry the types of ``perform``.
_MEMBERS_FROM: Final[dict[type, type]] = {forkq.Job: Pusher}
# For forkq alone; an app gets an Entry, its Schedule and a RecordedJob, and makes none.
_INTERNAL: Final = frozenset(
    (
        *("make", "parse", "encode", "decode", "due", "restarts", "change", "run", "of", "stamped"),
        *("payload", "push_later", "push_args", "apush_args"),
        "setUpClass",  # for unittest
    )
)
_WIDTH: Final = 100
# How a function takes the options of a job.
_OPTIONS: Final = "options: Unpack[JobOptions]"


class Undocumented(Exception):
    """A public name has no docstring, or no place on the page; the text says what to do."""


def page() -> str:
    """The text of docs/api.md. Raises Undocumented."""
    _refuse_names_without_task()
    parts = [_HEAD, _contents()]
    for task in TASKS:
        parts += _section(task)
    parts += ["## Types", "Names for annotations.", "\n".join(_type_items())]
    parts += ["## Errors", _markdown(errors.__doc__), "\n\n".join(_error_items())]
    return "\n\n".join(part for part in parts if part) + "\n"


def _refuse_names_without_task() -> None:
    placed = {name for task in TASKS for name in task.names}
    public = [name for name in forkq.__all__ if not hasattr(errors, name)]
    dotted = [f"forkq.{name}" for name in public if name not in _OTHERS]
    dotted += [f"forkq.api.{name}" for name in api.__all__ if name != "cron"]
    dotted += [f"forkq.api.cron.{name}" for name in api.cron.__all__]
    dotted += [f"forkq.testing.{name}" for name in testing.__all__]
    if left := [name for name in dotted if name not in placed]:
        raise Undocumented(f"give these a task in tests/support/api_tasks.py: {', '.join(left)}")


def _contents() -> str:
    """A link to each task."""
    titles = [*(task.title for task in TASKS), "Types", "Errors"]
    return "\n".join(f"- [{title}](#{_anchor(title)})" for title in titles)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _section(task: Task) -> Iterator[str]:
    yield f"## {task.title}"
    for module in _MODULES.get(task.title, ()):
        yield _markdown(module.__doc__)
    yield _code(task.example.splitlines())
    for name in task.names:
        yield from _described(name, _thing(name))


def _thing(name: str) -> Any:
    """What a dotted name means."""
    if name in _RETURNED:
        return _RETURNED[name]
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def _described(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    if isinstance(thing, type) or inspect.isroutine(thing):
        _refuse_without(inspect.getdoc(thing), name)
    if isinstance(thing, type):
        yield _code(_class_source(thing))
        yield _markdown(inspect.getdoc(thing))
        yield "\n\n".join(_member_items(thing))
    elif inspect.isroutine(thing):
        node = _function(thing)
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        yield _code([f"{kind} {_signature(node, _WIDTH)}: ..."])
        yield _markdown(inspect.getdoc(thing))
        if _takes_options(node.args):
            yield table()
    elif callable(thing):  # an object that is called as a function, and has more
        call = type(thing).__call__
        last = name.rpartition(".")[2]
        yield _code([f"def {_signature(_function(call), _WIDTH)}: ...".replace("__call__", last)])
        yield _markdown(inspect.getdoc(call))
        yield "\n\n".join(_member_items(type(thing)))
    else:
        yield _markdown(_constant_doc(name))


def _constant_doc(name: str) -> str | None:
    """The text of the string under the assignment, in the module that defines the constant."""
    constant = name.rpartition(".")[2]
    sources = map(inspect.getsource, (registry, prepared))
    body = [node for source in sources for node in ast.parse(source).body]
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign) and _source(node.target) == constant:
            assert isinstance(following, ast.Expr)
            return str(ast.literal_eval(following.value))
    return None


def _class_source(kind: type) -> list[str]:
    """A class as its user sees it: the fields of a dataclass, or the parameters of ``__init__``."""
    name, body = kind.__name__, _class(kind).body
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        fields = (_source(node) for node in body if isinstance(node, ast.AnnAssign))
        return [f"class {name}:", *(f"    {field}" for field in fields)]
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and kind is not CurrentJob:
            parameters = _signature(node, _WIDTH).removeprefix("__init__").removesuffix(" -> None")
            parameters = parameters.removesuffix("()")
            return [f"class {name}{parameters}: ..."]
    return [f"class {name}: ..."]


def _member_items(kind: type) -> Iterator[str]:
    """A list item for each public method and property."""
    sources = [kind, *([_MEMBERS_FROM[kind]] if kind in _MEMBERS_FROM else [])]
    for node in (node for source in sources for node in _class(source).body):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith(
            "_"
        ):
            continue
        text = ast.get_docstring(node)
        if node.name in _INTERNAL or _has_its_text_elsewhere(node):
            continue
        _refuse_without(text, f"{kind.__name__}.{node.name}")
        attribute = inspect.getattr_static(kind, node.name)
        if isinstance(attribute, property):
            settable = " (may be set)" if attribute.fset is not None else ""
            yield _item(f"{node.name}: {_result(node)}", settable, text)
        else:
            awaited = "async " * isinstance(node, ast.AsyncFunctionDef)
            yield _item(f"{awaited}{_signature(node)}", "", text)


def _has_its_text_elsewhere(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A property's setter has it at the getter, an overload at the last definition."""
    marks = {_source(mark).rpartition(".")[2] for mark in node.decorator_list}
    return bool(marks & {"setter", "overload"})


def _refuse_without(text: str | None, name: str) -> None:
    if not text:
        raise Undocumented(f"{name} is public and has no docstring: write one")


def _type_items() -> Iterator[str]:
    for name, what in _TYPES.items():
        value = getattr(forkq, name)
        text = value.__name__ if isinstance(value, type) else str(value).replace("typing.", "")
        yield f"- `forkq.{name}`, {what}: `{text}`"


def _error_items() -> Iterator[str]:
    """A list item for each error, in the order of the source."""
    for kind in vars(errors).values():
        is_error = isinstance(kind, type) and issubclass(kind, BaseException)
        if is_error and kind.__module__ == errors.__name__:
            bases = ", ".join(base.__name__ for base in kind.__bases__)
            code = getattr(kind, "exit_code", None)
            exit_code = "" if code is None else f", exit code {code}"
            yield _item(kind.__name__, f" ({bases}{exit_code})", inspect.getdoc(kind))


def _item(code: str, note: str, text: str | None) -> str:
    return textwrap.indent(f"- `{code}`{note}\n\n{_markdown(text)}", "  ").removeprefix("  ")


def _code(lines: Sequence[str]) -> str:
    return "\n".join(("```py", *lines, "```"))


def _markdown(docstring: str | None) -> str:
    """A docstring as Markdown."""
    assert docstring
    return inspect.cleandoc(docstring).replace("``", "`")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, width: int = 0) -> str:
    """Name, parameters without ``self``, and result; one parameter a line beyond ``width``, and
    there each option of a job by its name."""
    parameters = _parameters(node.args)
    if width and _takes_options(node.args):
        options = (f"{name}: {kind} = ..." for name, kind in types_of().items())
        parameters = [*parameters[:-1], *options]
    result = f" -> {_result(node)}"
    line = f"{node.name}({', '.join(parameters)}){result}"
    if not width or len(line) <= width:
        return line
    return "\n".join((f"{node.name}(", *(f"    {one}," for one in parameters), f"){result}"))


def _parameters(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    shown = [_with_default(*pair) for pair in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        shown.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg is not None:
        shown.append(f"*{_source(arguments.vararg)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown += [_with_default(*pair) for pair in named]
    if arguments.kwarg is not None:
        shown.append(f"**{_source(arguments.kwarg)}")
    return [one for one in shown if one not in ("self", "cls")]


def _takes_options(arguments: ast.arguments) -> bool:
    return arguments.kwarg is not None and _source(arguments.kwarg) == _OPTIONS


def _with_default(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return _source(argument)
    equals = " = " if argument.annotation is not None else "="
    return f"{_source(argument)}{equals}{_source(default)}"


def _result(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    assert node.returns is not None
    return _source(node.returns)


def _source(node: ast.AST) -> str:
    """As the formatter writes it, with double quotes."""
    return re.sub(r"'([^'\"\\\\]*)'", r'"\1"', ast.unparse(node))


def _class(kind: type) -> ast.ClassDef:
    node = _parsed(kind)
    assert isinstance(node, ast.ClassDef)
    return node


def _function(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = _parsed(function)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


def _parsed(thing: Any) -> ast.stmt:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    return node


def _main(arguments: Sequence[str]) -> str | None:
    """What is wrong, or None."""
    try:
        text = page()
    except Undocumented as wrong:
        return str(wrong)
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        return "docs/api.md does not show the code: run `python -m tests.support.api_page`"
    return None


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
