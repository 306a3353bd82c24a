"""Arguments and names in the words of every screen."""

from __future__ import annotations

import json
from typing import Any, Final

from ..wire.printable import cut, printable

_LONGEST_ARGS: Final = 200


def arguments(args: Any, longest: int = _LONGEST_ARGS) -> str:
    """Arguments as JSON, cut. ``JobEntry.args`` has masked its secrets."""
    try:
        text = json.dumps(args, ensure_ascii=False, default=str)
    except RecursionError:
        text = "(nested too deeply to be shown)"
    return printable(cut(text, longest))


def name(text: object) -> str:
    """A job's class, a queue's name, or other text of Redis: printable, and not too long."""
    return printable(cut(str(text)))
