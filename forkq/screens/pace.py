"""How often a screen looks, if looking may take only a share of the time."""

from __future__ import annotations

from typing import Final

_SHARE: Final = 0.1  # of the time may go into looking


class Pace:
    """The pace of looks, which are at least ``least`` seconds apart."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._took = 0.0

    def pause_after(self, took: float) -> float:
        """Seconds until the next look, after one that took ``took`` seconds. A single long one was
        held up, by Redis or by this machine, and asks for no long pause; two in a row are slow."""
        usual, self._took = min(took, self._took), took
        return max(self._least, usual / _SHARE)
