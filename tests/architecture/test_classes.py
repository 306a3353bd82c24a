"""Classes that one reader can hold in mind: CONTRIBUTING.md states the limits.

What is above a limit is listed here with its present number. A number may only fall: the tests
also fail when it is less than the one that is listed, so that the list follows.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.support.package_source import classes, modules, nodes, place

pytestmark = pytest.mark.xdist_group("source")  # one worker parses the package

MOST_METHODS: Final = 12
MOST_FIELDS: Final = 15


@dataclass(frozen=True, slots=True)
class Size:
    """How many public methods (properties count) and fields a class has; 0: within the limit."""

    methods: int = 0
    fields: int = 0


# With the reason why each one is, or still is, above a limit.
LARGE: Final[dict[str, Size]] = {
    # Lists of names: one method for each key.
    "forkq/wire/keys.py:Keys": Size(methods=69),
    "forkq/wire/feature_keys.py:FeatureKeys": Size(methods=22),
    # Records: each field is a value that a document names, or that is sent or received.
    "forkq/api/processes.py:Process": Size(fields=20),
    "forkq/api/features/batches.py:BatchReport": Size(fields=16),
    "forkq/wire/options.py:JobOptions": Size(fields=26),
    "forkq/registry.py:JobSpec": Size(fields=18),
    "forkq/child/fetch/channel.py:Exchange": Size(fields=17),
    "forkq/master/handover.py:ChildRecord": Size(fields=18),
    # The only owner of what is leased: a method for each step on the way of a unit.
    "forkq/child/fetch/leases.py:Leases": Size(methods=13),
    "forkq/config/config.py:Config": Size(fields=38),
    # The public API: what a caller may ask of a job, a queue, a set.
    "forkq/push.py:Pusher": Size(methods=13),
    "forkq/api/entry.py:JobEntry": Size(methods=30),
    "forkq/api/queue.py:Queue": Size(methods=20),
    # A framework or a template calls each method by its name.
    "forkq/top/app.py:Top": Size(methods=25, fields=17),
    "forkq/web/visit.py:Visit": Size(methods=20),
    # The roots of the processes: a field for each part that they drive.
    "forkq/child/main.py:Child": Size(fields=19),
    "forkq/clock/main.py:Clock": Size(fields=25),
    # One connection, whose replies are counted in one place: each method is a way to ask over it.
    "forkq/store/connection.py:RedisConnection": Size(methods=22),
    # Its socket, for threads and for event loops.
    "forkq/store/redis_py.py:RawConnection": Size(methods=14),
}

# Pairs of classes that hold each other: neither can be read, made or tested without the other.
CIRCLES: Final = {
    ("JobRun", "TimedJob"),
    ("Outage", "Reach"),
}

Key: TypeAlias = "tuple[Path, str]"


def test_no_class_is_large() -> None:
    found = {f"{place(path)}:{node.name}": size_of(node) for path, node in classes()}
    assert len(found) > 300
    assert {name: size for name, size in found.items() if size != Size()} == LARGE


def test_a_class_name_is_used_once() -> None:
    """Also one that a file keeps for itself: a traceback and a search show its name."""
    count = Counter(node.name for _, node in classes())
    assert [name for name, number in count.items() if number > 1] == []


def test_no_two_classes_hold_each_other() -> None:
    defined = {(path, node.name) for path, node in classes()}
    known = {path: classes_known_in(path, defined) for path in modules()}
    held = {(path, node.name): set(held_by(node, known[path])) for path, node in classes()}
    pairs = {
        (one[1], other[1])
        for one, others in held.items()
        for other in others
        if one[1] < other[1] and one in held.get(other, ())
    }
    assert pairs == CIRCLES


def size_of(node: ast.ClassDef) -> Size:
    """What is above the limits."""
    functions = [each for each in node.body if isinstance(each, Function)]
    methods = {each.name for each in functions if not each.name.startswith("_")}
    fields = {field for field, _ in declared(node)}
    fields |= {
        each.attr
        for function in functions
        for each in ast.walk(function)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and of_self(each)
    }
    return Size(
        len(methods) if len(methods) > MOST_METHODS else 0,
        len(fields) if len(fields) > MOST_FIELDS else 0,
    )


def declared(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The fields that the body of a class declares, with their types."""
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if not {"ClassVar", "Final"} & names_of(each.annotation):
            yield each.target.id, each.annotation


def held_by(node: ast.ClassDef, known: dict[str, Key]) -> Iterator[Key]:
    """The classes of the package that an instance of this one is tied to once it is made: those of
    its fields and of the parameters of ``__init__``, and those that it makes and gives
    itself to. A ``Callable`` that takes one is no hold. ``known``: what names mean in the module.
    """
    types = [annotation for _, annotation in declared(node)]
    names: set[str] = set()
    for function in (each for each in node.body if isinstance(each, Function)):
        if function.name == "__init__":
            arguments = [*function.args.args, *function.args.kwonlyargs]
            types += [each.annotation for each in arguments if each.annotation is not None]
        for each in ast.walk(function):
            if isinstance(each, ast.AnnAssign) and of_self(each.target):
                types.append(each.annotation)
            elif isinstance(each, ast.Assign) and any(map(of_self, each.targets)):
                names |= made_by(each.value)
            elif isinstance(each, ast.Call) and is_given_self(each):
                names |= made_by(each)
    names |= {name for annotation in types for name in names_of(annotation)}
    yield from (known[name] for name in names if name in known and name != node.name)


def classes_known_in(path: Path, defined: set[Key]) -> dict[str, Key]:
    """The classes of the package that a module defines or imports, by their name there."""
    found: dict[str, Key] = {name: (file, name) for file, name in defined if file == path}
    for node in nodes(modules()[path]):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                key = (folder.with_suffix(".py"), alias.name)
                if key in defined:
                    found[alias.asname or alias.name] = key
    return found


def names_of(annotation: ast.expr) -> set[str]:
    """The names in a type, also in one that is written as a string."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in NO_HOLD:
        return set()
    if isinstance(annotation, ast.Name):
        return {annotation.id}
    parts = [each for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr)]
    return {name for part in parts for name in names_of(part)}


def made_by(value: ast.expr) -> set[str]:
    """The class that a call makes, if it makes one."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return {value.func.id}
    return set()


def is_given_self(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(each, ast.Name) and each.id == "self" for each in given)


def of_self(target: ast.expr) -> bool:
    """Whether it is a field: ``self.x``."""
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    )


Function: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# What is within these types is not held.
NO_HOLD: Final = ("Annotated", "Callable", "Literal", "type")
