"""The fronts say which Redis each of their questions is about: docs/internals.md."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from forkq import api
from forkq.api import cron
from tests.support.package_source import PACKAGE, modules, nodes, place

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the package

_FRONTS: Final = ("cli", "screens", "top", "web")
_GIVEN: Final = {"server", "where"}
# Where a page learns which one it is about; a command's is `connected` in cli/options.py.
_CHOOSING: Final = {"forkq/screens/facts.py", "forkq/web/visit.py"}


def takes(module: ModuleType) -> dict[str, int]:
    """How many arguments stand before the server of each class and function that takes one."""
    found: dict[str, int] = {}
    for name in module.__all__:
        thing: Any = getattr(module, name)
        parameters = inspect.signature(thing).parameters if callable(thing) else {}
        for number, (given, parameter) in enumerate(parameters.items()):
            if given in _GIVEN and parameter.default is None:
                found[name] = 99 if parameter.kind is parameter.KEYWORD_ONLY else number
    return found


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, ModuleType, str]]:
    """Each call of the API: by the name of its module, or by its own."""
    known: dict[str, tuple[ModuleType, str]] = {}
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                if alias.name == "api" and not node.module:
                    known[name] = (api, "")
                elif (node.module or "").split(".")[0] == "api":
                    known[name] = (cron, "") if alias.name == "cron" else (api, alias.name)
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and known.get(called.id, (api, ""))[1]:
            yield node, *known[called.id]
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            module, own = known.get(called.value.id, (None, ""))
            if module is not None and not own:
                yield node, module, called.attr


def fronts() -> Iterator[tuple[Path, ast.Module]]:
    for path, tree in modules().items():
        if path.relative_to(PACKAGE).parts[0] in _FRONTS:
            yield path, tree


def test_a_page_and_a_command_pass_their_server_on() -> None:
    """Without one, a call is about the default shard, whichever one a person looks at."""
    wanted = {api: takes(api), cron: takes(cron)}
    assert {"Queue", "stats", "find", "job_set", "DeadSet"} <= set(wanted[api])
    assert {"get", "run", "list"} <= set(wanted[cron])
    found, without = 0, []
    for path, tree in fronts():
        for call, module, name in calls(tree):
            if name not in wanted[module]:
                continue
            found += 1
            named = any(keyword.arg in _GIVEN for keyword in call.keywords)
            if not named and len(call.args) <= wanted[module][name]:
                without.append(f"{place(path)}:{call.lineno} {name}")
    assert found > 40
    assert without == []


def test_one_place_of_a_front_chooses_the_server() -> None:
    choosing = {
        place(path)
        for path, tree in fronts()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("api.server", "api.servers")
    }
    assert choosing == _CHOOSING
