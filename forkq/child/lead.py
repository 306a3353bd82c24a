"""Who leads: one processor waits for Redis on behalf of all, the others wait for the lead.

Handing the lead on costs a thread switch, which is more than a tiny job takes. So a leader whose
jobs are tiny keeps the lead while it performs them, and comes back to it. One follower watches: if
the leader does not come back within a millisecond, its job was not tiny, and the follower takes the
lead from it (docs/decisions/003-leader-follower.md has the figures).
"""

from __future__ import annotations

import threading
import time
from typing import Final

# A job is tiny if it takes less than a thread switch or any I/O would: keeping the lead then loses
# nothing that other processors could have done meanwhile.
_TINY: Final = 50e-6
_STREAK: Final = 32
# Python itself lets a busy thread run for 5 ms before another one gets a turn.
_PATIENCE: Final = 1e-3


class Lead:
    """A lock that its holder may keep while away, and that another may then take over.

    ``_away`` maps the thread of an absent leader to when it left; whoever pops that entry has the
    lead. Popping is atomic, so there is never more than one leader.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_in_line = threading.Lock()
        self._away: dict[int, float] = {}
        self._watched = False
        self._tiny_jobs = 0

    def regain(self) -> bool:
        """Takes the lead back, if this thread left with it. False if it had none, or lost it."""
        return self._away.pop(threading.get_ident(), None) is not None

    def wait(self) -> None:
        """Waits for the lead. The first in line watches over an absent leader."""
        with self._next_in_line:
            while not self._lock.acquire(timeout=self._glance()):
                if self._take_over():
                    break
            self._watched = False

    def leave(self, *, keep: bool) -> None:
        """The leader goes to perform a job (``keep``: the lead may wait for it), or ends."""
        if keep and self._is_watched() and self._tiny_jobs >= _STREAK:
            me = threading.get_ident()
            self._away[me] = time.monotonic()
            # Only now look again: either we see here that nobody watches any more, or the one who
            # stopped watching sees in _glance that we are away.
            if self._is_watched() or self._away.pop(me, None) is None:
                return
        self._lock.release()

    def performed(self, seconds: float) -> None:
        """A job took this long. Counted without a lock: a miss does no harm."""
        self._tiny_jobs = self._tiny_jobs + 1 if seconds < _TINY else 0

    def calm(self) -> None:
        """There is nothing to do: the watcher may sleep, too."""
        self._tiny_jobs = 0

    def _is_watched(self) -> bool:
        return self._watched

    def _glance(self) -> float:
        """How long the watcher may sleep before it looks for the leader; -1: until it is woken."""
        self._watched = self._tiny_jobs >= _STREAK
        return _PATIENCE if self._watched or self._away else -1

    def _take_over(self) -> bool:
        """Takes the lead from a leader that has been away too long."""
        for leader, left in list(self._away.items()):
            late = time.monotonic() - left > _PATIENCE
            if late and self._away.pop(leader, None) is not None:
                self._tiny_jobs = 0
                return True
        return False
