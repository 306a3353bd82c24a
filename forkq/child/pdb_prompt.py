"""The debugger that ``breakpoint()`` opens in a job. Imported when that happens."""

from __future__ import annotations

import pdb
from types import FrameType, TracebackType

from ..runtime import prompt


class Debugger(pdb.Pdb):
    """A pdb that notes when its prompt is open."""

    def interaction(self, frame: FrameType | None, tb: TracebackType | None) -> None:
        with prompt.opened():
            super().interaction(frame, tb)
