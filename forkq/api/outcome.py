"""What an action on many jobs has done, or is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action on many jobs has done so far; at its end, what it did in all.

    ``total`` jobs were there when it began, and ``seen`` of them have been looked at. ``matched``
    of those passed the filter: ``done`` were acted on, ``gone`` had already left (another person,
    or a clock, was faster), ``refused`` could not be acted on because their payload is no job that
    can run. A dry run only counts ``matched``.

    ``undo`` is the token for ``undo``, if the deleted jobs can be put back; else "". If Redis is
    lost meanwhile, ServerUnavailable has the Outcome so far, with the token.
    """

    total: int = 0
    seen: int = 0
    matched: int = 0
    done: int = 0
    gone: int = 0
    refused: int = 0
    undo: str = ""


# Called after each batch with what was done so far.
OnProgress: TypeAlias = "Callable[[Outcome], object]"
