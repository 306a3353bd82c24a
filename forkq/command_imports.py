"""Ctrl-C while a command of forkq is imported, or ends: the process dies of it, without a word.

Python would print a traceback of the import that it has interrupted, or crash in an extension that
it was loading. ``forkq/__init__.py`` imports this module before all others: what is imported there
takes most of a short command's time.
"""

from __future__ import annotations

# The part of `signal` that is in C: the rest of it needs `enum`, half of a millisecond of imports.
import _signal  # type: ignore[import-not-found]
import sys
from itertools import pairwise


def die_of_interrupt() -> None:
    """From now on Ctrl-C ends this process at once, as it ends a program without Python: a shell
    shows 130. A process that ignores Ctrl-C goes on to do so."""
    if _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def raise_interrupt() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as an app and a command expect."""
    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _is_command() -> bool:
    """Whether this program is a command of forkq, and no app that pushes jobs."""
    program: str = getattr(sys, "argv", [""])[0]
    if program == "-m":  # Python still looks for the module that stands behind it
        words = pairwise(sys.orig_argv)
        return any(flag == "-m" and name.partition(".")[0] == "forkq" for flag, name in words)
    return program.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") == "forkq"


if _is_command():
    try:  # noqa: SIM105 - contextlib would be imported first
        die_of_interrupt()
    except ValueError:
        pass  # a thread imports forkq: this is no program of forkq's own
