"""Looking in from any process: what runs, what is queued, where a job is, what periodic jobs do.

For an app's own pages, scripts and checks; forkq's commands use it, too. It uses the connections
with which this process pushes (``forkq.configure``). Every function asks Redis, and raises
ServerUnavailable if Redis cannot be reached, ServerRefused if it refuses. What processes report is
as old as their last heartbeat.
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
