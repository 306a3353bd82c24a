"""Who leads: one processor waits for Redis on behalf of all, the others wait for the lead.

Handing the lead on costs a thread switch, which is more than a tiny job takes. So a leader whose
jobs are tiny keeps the lead while it performs them, and comes back to it. One follower watches: if
the leader does not come back within a millisecond, its job was not tiny, and the follower takes the
lead from it (docs/decisions/003-leader-follower.md has the figures).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from ...wire.lease import UnitOfWork

# A job is tiny if it takes less than a thread switch or any I/O would: keeping the lead then loses
# nothing that other processors could have done meanwhile.
_TINY: Final = 50e-6
_STREAK: Final = 32
# Python itself lets a busy thread run for 5 ms before another one gets a turn.
_PATIENCE: Final = 1e-3

_Place: TypeAlias = "deque[bool]"


class Hand:
    """What one processor holds: the units that it took last, and perhaps the lead.

    An app can raise an exception in any thread at any bytecode (``PyThreadState_SetAsyncExc``). So
    what moves into or out of a hand moves in a single call into C, and the hand always tells who
    holds what, even when its thread has died. ``lead`` holds the token of the lead, ``kept`` holds
    it while its holder is away and others may take it, since ``left``.
    """

    __slots__ = ("kept", "lead", "left", "units")

    def __init__(self) -> None:
        self.units: deque[UnitOfWork] = deque()
        self.lead: _Place = deque()
        self.kept: _Place = deque()
        self.left = 0.0


class FetchTurn:
    """One token: free, in the hand of the leader, or kept for a leader that is away and open to a
    take-over. Whoever has it leads."""

    def __init__(self) -> None:
        self._free: SimpleQueue[bool] = SimpleQueue()
        self._free.put(True)
        self._next_in_line = threading.RLock()
        self._absent: Hand | None = None
        self._watched = False
        self._tiny_jobs = 0

    def regain(self, hand: Hand) -> bool:
        """Takes the lead back, if this processor left with it. False if it had none, or lost it."""
        return bool(hand.kept) and _moved(hand.kept, hand.lead)

    def wait(self, hand: Hand) -> None:
        """Waits for the lead. The first in line watches over an absent leader."""
        with self._next_in_line:
            while not self._got(hand, self._glance()):
                if self._take_over(hand):
                    break
            self._watched = False

    def leave(self, hand: Hand, *, keep: bool) -> None:
        """The leader goes to perform a job (``keep``: the lead may wait for it), or ends."""
        if keep and self._is_watched() and self._tiny_jobs >= _STREAK:
            hand.left = time.monotonic()
            self._absent = hand
            _moved(hand.lead, hand.kept)
            # Only now look again: either we see here that nobody watches any more, or the one who
            # stopped watching sees in _glance that we are away.
            if self._is_watched() or not _moved(hand.kept, hand.lead):
                return
        self.free(hand)

    def free(self, hand: Hand) -> None:
        """Gives the lead away, if ``hand`` has it: its processor ends, or is dead."""
        if hand.kept:
            self._put_back(hand.kept)
        if hand.lead:
            self._put_back(hand.lead)

    def fail(self, hand: Hand) -> None:
        """An exception ends the wait of this thread: whatever it held is free for the others."""
        with suppress(RuntimeError):  # it is not ours
            self._next_in_line.release()
        self.free(hand)

    def performed(self, seconds: float) -> None:
        """A job took this long. Counted without a lock: a miss does no harm."""
        self._tiny_jobs = self._tiny_jobs + 1 if seconds < _TINY else 0

    def calm(self) -> None:
        """There is nothing to do: the watcher may sleep, too."""
        self._tiny_jobs = 0

    def _got(self, hand: Hand, seconds: float | None) -> bool:
        try:
            hand.lead.extend(map(self._free.get, (True,), (seconds,)))
        except Empty:
            return False
        return True

    def _put_back(self, place: _Place) -> None:
        with suppress(IndexError):  # another one took it over just now
            any(map(self._free.put, map(deque.pop, (place,))))

    def _is_watched(self) -> bool:
        return self._watched

    def _glance(self) -> float | None:
        """How long the watcher may sleep before it looks for the leader; None: until woken."""
        self._watched = self._tiny_jobs >= _STREAK
        absent = self._absent
        away = absent is not None and bool(absent.kept)
        return _PATIENCE if self._watched or away else None

    def _take_over(self, hand: Hand) -> bool:
        """Takes the lead from a leader that has been away too long."""
        absent = self._absent
        if absent is None or time.monotonic() - absent.left <= _PATIENCE:
            return False
        if not _moved(absent.kept, hand.lead):
            return False
        self._tiny_jobs = 0
        return True


def _moved(source: _Place, target: _Place) -> bool:
    """Whether the token was in ``source``. In one call: no exception can strike in the midst."""
    try:
        target.extend(map(deque.pop, (source,)))
    except IndexError:
        return False
    return True
