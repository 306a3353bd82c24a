"""An RLock whose ``with`` was struck before its block began.

From Python 3.14 on, an exception that another thread raises can be delivered between the call that
takes the lock and the block. Nothing would give the lock back.
"""

from __future__ import annotations

from contextlib import suppress
from threading import RLock


def release_all(lock: RLock) -> None:
    """Gives back all that this thread holds of ``lock``."""
    with suppress(RuntimeError):  # it holds no more
        while True:
            lock.release()
