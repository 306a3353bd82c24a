"""``python -m forkq.contrib.django``: the commands of forkq, configured by the settings of Django.

``manage.py forkq start`` executes it. ``manage.py`` has imported the whole project before any
command runs; a master must not hold that (docs/internals.md), nor fork from it.
"""

from __future__ import annotations

import os
import runpy
import sys

from .command import PATH_VARIABLE
from .configuration import provide


def main() -> None:
    """Runs the command of ``sys.argv``. Exits."""
    folders = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
    missing = [folder for folder in folders if folder and folder not in sys.path]
    sys.path[:0] = missing
    provide()
    runpy.run_module("forkq", run_name="__main__")


if __name__ == "__main__":
    main()
