"""Is anything wrong? The worst facts, in words, for the line on top of every page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """``says`` is a sentence; ``path`` is the page that shows more. ``urgent``: a person must act
    now; else it may come to that."""

    says: str
    path: str = "/"
    urgent: bool = True


def problems() -> list[Problem]:
    """The worst first. Raises ServerUnavailable."""
    return []
