"""``python -m forkq``, and the console script: the command line.

A password in ``--redis`` is readable by every user of the machine (ps). So it goes out of the
process's title first, before the command line is even imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import threading

from .command_imports import die_of_interrupt
from .runtime.passwords import hide_passwords


def main() -> None:
    """Runs the command of ``sys.argv``. Exits."""
    die_of_interrupt()
    hide_passwords()
    gc.disable()  # imports make next to no garbage; cli/main.py ends this
    try:
        importlib.import_module(".cli.main", __package__).main()
    except SystemExit as end:
        _leave_threads(end.code if isinstance(end.code, int) else int(end.code is not None))
        gc.freeze()  # else Python looks through all that is loaded before it exits
        raise
    finally:
        die_of_interrupt()  # Python's end has no word for it, either


def _leave_threads(code: int) -> None:
    """Exits at once if the app has started threads, in a preload that was refused for them: Python
    would wait until they end."""
    if any(
        not each.daemon for each in threading.enumerate() if each is not threading.main_thread()
    ):
        os._exit(code)


if __name__ == "__main__":
    main()
