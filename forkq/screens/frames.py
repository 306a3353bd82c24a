"""The lines of a job's backtrace: the app's own first, those of forkq and of Sidekiq folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

_LIBRARY: Final = re.compile(
    r"/site-packages/|/dist-packages/|/lib/python3|<frozen |/gems/|/lib/ruby/"
)
_FORKQ: Final = re.compile(r"/forkq/(child|runtime|middleware|registry|job|contrib|testing)\b")
MOST: Final = 200


class Frames(msgspec.Struct, frozen=True):
    """The lines of the app and all others, the innermost first in both."""

    own: tuple[str, ...]
    others: tuple[str, ...]


def split(lines: Sequence[str]) -> Frames:
    """Divides the lines of ``JobEntry.backtrace``."""
    shown = lines[:MOST]
    own = tuple(line for line in shown if not (_LIBRARY.search(line) or _FORKQ.search(line)))
    return Frames(own, tuple(line for line in shown if line not in own))
