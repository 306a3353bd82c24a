"""Python imports this when it starts, if this folder is in PYTHONPATH: tests/conftest.py puts it
there, for all that a test starts.

redis-py imports the SDK of OpenTelemetry if that is installed, and structlog imports rich. The
tests of other things need both packages here, a user's machine seldom has them, and forkq uses
neither through these two libraries. Without them a process of forkq starts in two thirds of the
time. Every other module that asks for one of the packages gets it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, ModuleType

# A package, and who does not get it. A child's loop is asyncio's, unless a test wants uvloop's.
UNSEEN = {"opentelemetry": "redis", "rich": "structlog", "uvloop": "forkq"}
WITH_UVLOOP = "FORKQ_TEST_WITH_UVLOOP"


class _Unseen:
    """The first of Python's finders. It finds nothing."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises ImportError if the importing module is of the library that does not get it."""
        package = name.partition(".")[0]
        if package == "uvloop" and WITH_UVLOOP in os.environ:
            return
        if package in UNSEEN and _importer(sys._getframe()) == UNSEEN[package]:
            raise ModuleNotFoundError(f"{name} is hidden from {UNSEEN[package]}", name=name)


def _importer(frame: FrameType | None) -> str:
    """The package of the module that imports; between it and the finder stands importlib alone."""
    while frame and (frame.f_code is _FIND or "importlib" in frame.f_code.co_filename):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] if frame else ""


_FIND = _Unseen.find_spec.__code__
sys.meta_path.insert(0, _Unseen)
