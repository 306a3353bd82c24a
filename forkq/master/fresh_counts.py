"""The counts of all children as of now, for ``forkq status`` and ``forkq stats``.

A child reports by itself what has changed since its last Beat, once a second. A job tells no other
process of its end: that would cost each job a system call. A command that shows counts sends the
master SIGURG instead, which programs ignore that do not know it.
"""

from __future__ import annotations

import time

from ..runtime.pipe import Report
from .child_handle import ChildHandle
from .children import Children


class FreshCounts:
    """Asks the children, and knows whether they have answered."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._asked: list[ChildHandle] = []
        self._asked_at = self._reported_at = 0.0

    def ask(self) -> None:
        """Asks each child that runs jobs and knows the order."""
        self._asked_at = time.monotonic()
        self._asked = [child for child in self._children if child.reports]
        for child in self._asked:
            child.send(Report(self._asked_at))

    @property
    def reported_at(self) -> float:
        """When the counts were last asked for (monotonic) that have arrived from every child, or
        from all but those that have ended meanwhile; 0 before."""
        if all(self._has_answered(child) for child in self._asked):
            self._reported_at, self._asked = self._asked_at, []
        return self._reported_at

    def _has_answered(self, child: ChildHandle) -> bool:
        return child.reported_at >= self._asked_at or child.pid not in self._children.by_pid
