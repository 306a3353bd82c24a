"""Imports the user's app: its modules register its jobs when they are imported."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from ..errors import CannotBoot, ForkqError, ServerUnavailable, led_to
from .app_frames import app_traceback, place_in_app

# They say that the code or the configuration is wrong.
_MISTAKES: Final = (ImportError, SyntaxError, NameError, ForkqError)
# They say that something is away or short; another error may have been raised because of them.
_PASSING: Final = (OSError, MemoryError, ServerUnavailable)


def load_app(targets: Iterable[str]) -> None:
    """Imports each target: ``app.jobs``, ``app.jobs:attribute`` or ``./app/jobs.py``.

    Puts the working directory on the import path. Raises CannotBoot if a target does not exist,
    with the folders that were searched, or if forkq refuses what it defines, such as a job. Another
    error in the app's own code passes through.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for target in targets:
        name, _, attribute = target.partition(":")
        module = _load(target, name)
        if attribute and not hasattr(module, attribute):
            raise CannotBoot(f"cannot load the app {target!r}: {name} has no {attribute!r}")


def import_app(app: Sequence[str]) -> None:
    """Imports the app into the process of a command. Raises CannotBoot."""
    with app_errors(app, "imported"):
        load_app(app)


@contextmanager
def app_errors(app: Sequence[str], when: str) -> Iterator[None]:
    """Makes what the import of ``app`` raises in its block a CannotBoot."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ForkqError as error:
        raise CannotBoot(str(error)) from None
    except BaseException as error:  # noqa: BLE001 - SystemExit too: it would look like a clean end
        raise CannotBoot(
            f"the app {', '.join(app)} failed while it was {when}:\n{app_traceback(error)}"
        ) from None


def is_lasting(error: BaseException) -> bool:
    """Whether a boot that failed with ``error`` fails again until a person changes the app or the
    configuration. If that is not known, the answer is False: to give up a host costs more than to
    try again."""
    chain = list(led_to(error))
    if any(isinstance(link, _PASSING) for link in chain):
        return False
    raised = next((link for link in chain if not isinstance(link, CannotBoot)), error)
    return isinstance(raised, _MISTAKES)


def _load(target: str, name: str) -> ModuleType:
    """The module of ``target``. Raises CannotBoot, which names the target."""
    try:
        return _load_file(Path(name)) if _is_path(name) else _load_module(name)
    except CannotBoot:
        raise
    except ForkqError as error:
        place = place_in_app(error)
        raise CannotBoot(f"cannot load the app {target!r}: {error}{place}") from None


def _is_path(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CannotBoot(
                f"cannot load the app {name!r}: there is no module {error.name!r} "
                f"(looked in {Path.cwd()} and the Python path)"
            ) from None
        raise


def _load_file(path: Path) -> ModuleType:
    """Imports a file. One below the working directory gets the name that an ``import`` would give
    it. Then its jobs have the same names in the process that pushes them."""
    if not path.is_file():
        raise CannotBoot(f"cannot load the app {str(path)!r}: no such file in {Path.cwd()}")
    full = path.resolve()
    parts = Path(os.path.relpath(full)).with_suffix("").parts
    if ".." not in parts and all(part.isidentifier() for part in parts):
        return _load_module(".".join(parts))
    if full.stem in sys.modules:
        return sys.modules[full.stem]
    spec = importlib.util.spec_from_file_location(full.stem, full)
    if spec is None or spec.loader is None:
        raise CannotBoot(f"cannot load the app {str(path)!r}: it is not a Python file")
    module = sys.modules[full.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
