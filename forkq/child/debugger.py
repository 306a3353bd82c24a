"""A debugger in a job, with ``forkq start --foreground``: ``breakpoint()`` opens pdb's prompt on
the terminal, no log line is written into it, and no time limit ends the job meanwhile."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from ..wire.payload import Payload
from .interrupt import InterruptRegion
from .job_run import JobRun
from .time_limits import TimeLimits


class NoTimeLimits(TimeLimits):
    """Ends no job: a person may look at it for as long as they like."""

    def watch(self, region: InterruptRegion, run: JobRun, job: Payload) -> None:
        """Notes nothing."""


def install() -> None:
    """Makes ``breakpoint()`` open pdb on the terminal, unless the environment names another
    debugger."""
    if not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _break


def _break(*_: Any, **__: Any) -> None:
    # No child needs pdb until then.
    importlib.import_module(".pdb_prompt", __package__).Debugger().set_trace(sys._getframe(1))
