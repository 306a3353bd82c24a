"""A debugger in a job, with ``forkq start --foreground``: ``breakpoint()`` opens pdb's prompt on
the terminal, no log line is written into it, and no time limit ends the job meanwhile."""

from __future__ import annotations

import os
import pdb
import sys
from types import FrameType, TracebackType
from typing import Any

from ..runtime import prompt
from ..wire.payload import Payload
from .interrupt import InterruptRegion
from .job_run import JobRun
from .time_limits import TimeLimits


class NoTimeLimits(TimeLimits):
    """Ends no job: a person may look at it for as long as they like."""

    def begin(self, region: InterruptRegion, run: JobRun, job: Payload) -> None:
        """Notes nothing."""


class _Debugger(pdb.Pdb):
    """pdb that tells when its prompt is open."""

    def interaction(self, frame: FrameType | None, tb: TracebackType | None) -> None:
        with prompt.opened():
            super().interaction(frame, tb)


def install() -> None:
    """Makes ``breakpoint()`` open it, unless the environment names another debugger."""
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _break


def _break(*_: Any, **__: Any) -> None:
    _Debugger().set_trace(sys._getframe(1))
