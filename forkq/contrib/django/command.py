"""How ``manage.py forkq`` runs forkq's commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from ...cli.main import main
from .configuration import require_settings

# The import path of manage.py, for the program that it executes.
PATH_VARIABLE: Final = "_FORKQ_PATH"
# Options of manage.py itself, which has obeyed them already; each has a value.
_OF_DJANGO: Final = ("--settings", "--pythonpath")


def run(arguments: Sequence[str]) -> NoReturn:
    """Runs one command of forkq, and exits."""
    arguments = without_django_options(arguments)
    if arguments[:1] == ["start"]:
        _execute(arguments)
    main(arguments)
    raise AssertionError("main exits")


def without_django_options(arguments: Sequence[str]) -> list[str]:
    """The arguments without Django's own options, as forkq takes them."""
    left: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in _OF_DJANGO:
            next(rest, None)
        elif not argument.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            left.append(argument)
    return left


def _execute(arguments: Sequence[str]) -> NoReturn:
    """Becomes a master without the project: a rolling restart executes the same again."""
    require_settings()
    environ = {**os.environ, PATH_VARIABLE: os.pathsep.join(filter(None, sys.path))}
    program = [sys.executable, *_flags_of_interpreter(), "-m", "forkq.contrib.django"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*program, *arguments], environ)  # noqa: S606


def _flags_of_interpreter() -> list[str]:
    """The flags of Python before the program: ``-W error`` in ``python -W error manage.py forkq
    start``."""
    flags = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]
    return flags[:-1] if flags[-1:] == ["-m"] else flags
