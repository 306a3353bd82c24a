"""Looking in from outside: what runs, what waits, where a job is, what periodic jobs do.

For an app's own pages, scripts and checks, and for the command line. It talks to Redis on the
connections with which this process pushes (``forkq.configure``), and raises ServerUnavailable if
Redis cannot be reached. What stands in Redis is as old as the last heartbeat: up to ten seconds.
"""

from __future__ import annotations

from . import cron
from .find import find, is_alive
from .processes import Process, processes
from .queue import Queue
from .queues import QueueState, queues
from .running import RunningJob, running, stuck
from .stats import Day, QueueFigures, Stats, damaged_keys, history, queue_names, stats

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
