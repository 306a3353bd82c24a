"""Looking in from outside: what runs, what waits, where a job is, what periodic jobs do.

For an app's own pages, scripts and checks, and for the command line. It talks to Redis on the
connections with which this process pushes (``forkq.configure``), and raises ServerUnavailable if
Redis cannot be reached. What stands in Redis is as old as the last heartbeat: up to ten seconds.
"""

from __future__ import annotations

from . import cron
from .figures import Day, QueueFigures, Stats, damaged_keys, history, queue_names, stats
from .jobs import find, is_alive
from .queue import Queue
from .records import Process, processes
from .states import QueueState, queues
from .work import RunningJob, running, stuck

__all__ = [
    "Day",
    "Process",
    "Queue",
    "QueueFigures",
    "QueueState",
    "RunningJob",
    "Stats",
    "cron",
    "damaged_keys",
    "find",
    "history",
    "is_alive",
    "processes",
    "queue_names",
    "queues",
    "running",
    "stats",
    "stuck",
]
