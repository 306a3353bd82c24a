"""What this process has been told of its standing: is it stopping, does it lead.

Written by the child's main thread, read by every job.
"""

from __future__ import annotations

import time

_stopping = False
_leads_until = 0.0


def stopping() -> bool:
    """Whether this child has been told to quiet or stop: a long job should come to its end."""
    return _stopping


def announce_stopping() -> None:
    """Makes ``stopping()`` true, and ``is_leader()`` false. Called by the child, once, for good."""
    global _stopping  # noqa: PLW0603 - one flag for the whole process, read by every job
    _stopping = True


def is_leader() -> bool:
    """Whether this process is the one of the whole cluster that leads.

    The clock of one host holds the leader's lease; one child of that host leads in its name. True
    in at most one process at a time, as long as hosts' clocks run at the same speed and no host is
    suspended: when the lease cannot be renewed, it ends here before anybody else may take it. Ask
    each time; an answer is good for this moment. False outside of a child, and in one that has been
    told to quiet or stop.
    """
    return not _stopping and time.monotonic() < _leads_until


def lead(until: float) -> bool:
    """Leads until then (monotonic seconds); 0 ends it. Returns whether that is news to the app.
    Called by the child."""
    global _leads_until
    led, _leads_until = is_leader(), until
    return is_leader() and not led
