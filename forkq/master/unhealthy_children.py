"""What becomes of a child that stays silent (``watchdog``) or cut off from Redis
(``redis_contact``): first another child takes its slot, and much later it is killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..config.config import Config
from ..store.crash_record import ProcessDeath
from .child_handle import ChildHandle
from .children import Children
from .removal import Removals
from .replacement import Replacements

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class UnhealthyChildren:
    """The times are ``replace_silent_after`` and ``kill_silent_after``; 0 is never. A child that
    holds the interpreter in C code works, perhaps: killed, its jobs would run a second time."""

    def __init__(
        self,
        children: Children,
        replacements: Replacements,
        removals: Removals,
        config: Config,
        log: FilteringBoundLogger,
    ) -> None:
        self._children = children
        self._replacements = replacements
        self._removals = removals
        self._replace_after = config.replace_silent_after
        self._kill_after = config.kill_silent_after
        self._log = log

    def check(self) -> None:
        """Takes the step that is due for each of them."""
        for child in list(self._children):
            seconds = _unhealthy_for(child)
            if self._kill_after and seconds >= self._kill_after:
                why = f"{_trouble(child)} for {seconds:.0f} s"
                self._removals.begin(child, ProcessDeath(reason=why), why)
            elif self._replace_after and seconds >= self._replace_after:
                self._replace(child, seconds)

    def _replace(self, child: ChildHandle, seconds: float) -> None:
        """A slot has one child more at most: if the next one is silent as well, each job that hangs
        would cost one more process."""
        others = [other for other in self._children if other.slot is child.slot]
        if any(_unhealthy_for(other) for other in others if other is not child):
            return
        if self._replacements.begin(child, _trouble(child)):
            self._log.warning(
                "replacing an unhealthy child; it ends when its jobs have",
                child=child.name,
                pid=child.pid,
                why=f"{_trouble(child)} for {seconds:.0f} s",
            )


def _unhealthy_for(child: ChildHandle) -> float:
    """In seconds; 0 for a child that is well."""
    if child.silent_since is not None:
        return time.monotonic() - child.silent_since
    return child.cut_off_for


def _trouble(child: ChildHandle) -> str:
    return "silent" if child.silent_since is not None else "without an answer of redis"
