"""Changed code without a restart: the master replaces every child when it gets USR1, which
``forkq start --reload`` sends it after each save.

The master has not imported the app, so a new child loads the code that is there now. It takes the
slot when it is ready; the old one then ends with its last job. A new child that cannot boot changes
nothing but the log. This takes as long as one import; the rolling restart first watches a canary.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import code_watch
from .children import Children
from .replacement import Replacements
from .slot import Slot

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class Reload:
    """``request`` is called at USR1, ``advance`` in each turn of the master's loop."""

    def __init__(
        self, children: Children, replacements: Replacements, log: FilteringBoundLogger
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._log = log
        self._changed_at = 0.0  # monotonic
        self._waiting: set[Slot] = set()

    def request(self) -> None:
        """The code has changed: every child that was forked before now is replaced once."""
        self._log.info("reload: the code has changed; each child is replaced")
        self._changed_at = time.monotonic()
        self._waiting = {slot for slot in self._children.slots if slot.capsule is not None}
        for slot in self._waiting:
            slot.boot_failures = 0  # the next failure is another one, and is logged

    def advance(self, *, quiet: bool) -> None:
        """Begins what can be begun. A replacement that is under way may have the older code, and a
        child that boots is replaced when it is ready."""
        if code_watch.keep_running():
            self._log.warning(
                "reload: the process that watched the code has ended; another one does"
            )
        for slot in list(self._waiting) if not quiet else ():
            child = slot.child
            if child is None:
                slot.due = 0.0
                self._waiting.discard(slot)
            elif child.born >= self._changed_at:
                self._waiting.discard(slot)
            elif child.was_ready and slot not in self._replacements:
                self._replacements.end_pauses()  # of a failure of the older code
                self._replacements.begin(child, "reload")
                self._waiting.discard(slot)
