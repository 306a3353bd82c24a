"""The state of this child: is it stopping, does it hold the leadership, is it a test instead.

The child's main thread writes it; every job may read it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final

_stopping = False
_served: Sequence[str] = ()
_leads_until = 0.0
_in_thread_of_test: Final = ContextVar("in_thread_of_test", default=False)


def stopping() -> bool:
    """Whether this child was ordered to quiet or stop: a long job should end soon."""
    return _stopping


def announce_stopping() -> None:
    """Makes ``stopping()`` true and ``is_leader()`` false, for good. The child calls it once."""
    global _stopping  # noqa: PLW0603 - one flag for the whole process, read by every job
    _stopping = True


def served() -> Sequence[str]:
    """The queues, and patterns of such, on which the capsule of this child works; none outside of a
    child."""
    return _served


def note_served(queues: Sequence[str]) -> None:
    """Notes on which queues this child works. The child calls it once."""
    global _served  # noqa: PLW0603 - a property of the process
    _served = queues


def is_leader() -> bool:
    """Whether this process is the leader of the cluster.

    The clock process of one host holds the leader's lease, and one child of that host is the leader
    for it. True in at most one process at a time, if the hosts' clocks run at the same speed and no
    host is suspended: a lease that cannot be renewed ends here before another clock may take it.
    Call it each time: the answer holds for this moment. False outside of a child, and in a child
    that was ordered to quiet or stop.
    """
    return not _stopping and time.monotonic() < _leads_until


def set_leader_until(until: float) -> bool:
    """Makes this process the leader until ``until`` (monotonic seconds); 0 ends the leadership.
    Returns whether it has become the leader. The child calls it."""
    global _leads_until
    led, _leads_until = is_leader(), until
    return is_leader() and not led


def in_thread_of_test() -> bool:
    """Whether ``forkq.testing`` runs this job, in the thread of the test. Then what that thread has
    open, such as connections to a database, is the test's."""
    return _in_thread_of_test.get()


def enter_thread_of_test() -> None:
    """Makes ``in_thread_of_test()`` true in this context. ``forkq.testing`` calls it."""
    _in_thread_of_test.set(True)
