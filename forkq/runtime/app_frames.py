"""Tracebacks for people who look for a fault in their own code: forkq's frames are left out."""

from __future__ import annotations

import importlib
import os
import re
import traceback
from pathlib import Path
from typing import Final

from ..errors import ForkqError, Shutdown
from ..wire.printable import traceback_of

_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
_STDLIB: Final = f"{Path(os.__file__).parent}{os.sep}"
_IMPORT: Final = ("<frozen importlib", f"{Path(importlib.__file__).parent}{os.sep}")
_FOLDED: Final = (*_IMPORT, _PACKAGE)
_NO_FRAMES: Final = re.compile(r"^Traceback \(most recent call last\):\n(?=\S)", re.MULTILINE)


def is_own(file: str) -> bool:
    """Whether a frame of ``file`` is forkq's."""
    return file.startswith(_PACKAGE)


def is_apps(file: str) -> bool:
    """Whether a frame of ``file`` is the app's, or of a library that it has installed."""
    if file.startswith("<frozen") or is_own(file):
        return False
    return not file.startswith(_STDLIB) or "site-packages" in file


def app_traceback(error: BaseException) -> str:
    """The traceback of ``error`` without the frames of forkq and of Python's import. An error of
    forkq's in which no frame is the app's is its message alone; any other is a fault in forkq, and
    keeps all frames."""
    try:
        found = traceback.TracebackException(type(error), error, error.__traceback__)
        files = [one.filename for one in found.stack]
        if isinstance(error, SyntaxError) and error.filename:  # no frame is of that file
            files.append(error.filename)
        if isinstance(error, ForkqError) or any(map(is_apps, files)):
            _fold(found)
        return _NO_FRAMES.sub("", "".join(found.format())).rstrip()
    except Shutdown:
        raise
    except BaseException:  # noqa: BLE001 - errors that Python's formatter cannot show
        return traceback_of(error)


def place_in_app(error: BaseException) -> str:
    """`` (FILE, line N)``: the line of the app that led to ``error``. "" if there is none, or if
    the error says it itself."""
    if isinstance(error, SyntaxError):
        return ""
    frames = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(frames):
        if is_apps(frame.f_code.co_filename):
            return f" ({frame.f_code.co_filename}, line {line})"
    return ""


def _fold(found: traceback.TracebackException) -> None:
    """Leaves forkq's frames out of ``error``, and out of the errors that led to it."""
    pending: list[traceback.TracebackException | None] = [found]
    while pending:
        one = pending.pop()
        if one is None:
            continue
        one.stack[:] = folded(one.stack)
        pending += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def folded(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames of ``stack``, without those of forkq and of Python's import."""
    return [frame for frame in stack if not frame.filename.startswith(_FOLDED)]
