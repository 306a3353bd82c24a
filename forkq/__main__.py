"""``python -m forkq``, and the console script: the command line.

A password in ``--redis`` is readable by every user of the machine (ps). So it goes out of the
process's title first, before the command line is even imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading

from setproctitle import setproctitle

from .wire.redis_url import redacted_url


def main() -> None:
    """Runs the command of ``sys.argv``. Exits."""
    hide_passwords()
    gc.disable()  # imports make next to no garbage; cli/main.py ends this
    try:
        importlib.import_module(".cli.main", __package__).main()
    except SystemExit as end:
        _leave_threads(int(end.code or 0))
        gc.freeze()  # else Python looks through all that is loaded before it exits
        raise


def _leave_threads(code: int) -> None:
    """Exits at once if the app has started threads, in a preload that was refused for them: Python
    would wait until they end."""
    if any(
        not each.daemon for each in threading.enumerate() if each is not threading.main_thread()
    ):
        os._exit(code)


def hide_passwords() -> None:
    """Rewrites the title of this process, if an argument has a password in it."""
    shown = [_redacted(argument) for argument in sys.argv[1:]]
    if shown != sys.argv[1:]:
        setproctitle(" ".join(("forkq", *shown)))


def _redacted(argument: str) -> str:
    """``--redis=URL`` or the URL alone."""
    flag, equals, url = argument.partition("=")
    if flag == "--redis" and equals:
        return f"{flag}={redacted_url(url)}"
    return redacted_url(argument) if "://" in argument else argument


if __name__ == "__main__":
    main()
