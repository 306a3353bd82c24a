"""Looking in and acting from any process: what runs, what waits, what failed and why, what periodic
jobs do; and to retry, move, edit, kill, cancel and delete jobs.

For an app's own pages, scripts and checks; forkq's commands use it, too. It uses the connections
with which this process pushes (``forkq.configure``). Every function asks Redis, and raises
ServerUnavailable if Redis cannot be reached, ServerRefused if it refuses. What processes report is
as old as their last heartbeat. A key that holds another type is shown as empty (``damaged_keys``).

Each action on a job is one atomic step on that very member of a set or queue. Sidekiq's processes
and its web UI may work on the same Redis at the same time. As in Sidekiq, no client middleware runs
when a job goes back to its queue. Death handlers run in children only, so not for ``kill``.
"""

from __future__ import annotations

from ..servers import Server, Servers
from . import cron
from .bulk import Outcome, undo
from .classes import HeldClass, held_classes, release_class
from .door import server, servers, shards, shards_of
from .entry import JobEntry
from .features.batches import BatchEntry as Batch
from .features.batches import BatchReport, FlowReport, batches
from .features.flows import FlowEntry as Flow
from .features.flows import StepReport, flows
from .features.iteration import JobIteration, iteration
from .features.locks import LockFilter, UniqueLock, free_lock, lock_of, unique_locks
from .filters import Filter
from .find import (
    RanTwice,
    cancel,
    cancel_class,
    cancel_jobs,
    cancelled_at,
    entry,
    find,
    is_alive,
    is_being_cancelled,
    ran_twice,
)
from .groups import FailureGroup, FailureGroups, failures
from .job_sets import DeadSet, JobSet, RetrySet, ScheduledSet, job_set
from .life import Crash, JobEvent
from .metrics import ClassMetrics, Deploy, Histogram, Metrics, MetricsReport, Point
from .processes import Process, ProcessSet, Tree, processes
from .queue import Queue
from .queue_report import Hold, QueueReport, queue_reports
from .queues import Limits, QueueState, queues
from .running import RunningJob, WorkSet, progress, running, stuck
from .stats import Day, QueueFigures, Stats, damaged_keys, history, queue_names, stats

__all__ = [
    "Batch",
    "BatchReport",
    "ClassMetrics",
    "Crash",
    "Day",
    "DeadSet",
    "Deploy",
    "FailureGroup",
    "FailureGroups",
    "Filter",
    "Flow",
    "FlowReport",
    "HeldClass",
    "Histogram",
    "Hold",
    "JobEntry",
    "JobEvent",
    "JobIteration",
    "JobSet",
    "Limits",
    "LockFilter",
    "Metrics",
    "MetricsReport",
    "Outcome",
    "Point",
    "Process",
    "ProcessSet",
    "Queue",
    "QueueFigures",
    "QueueReport",
    "QueueState",
    "RanTwice",
    "RetrySet",
    "RunningJob",
    "ScheduledSet",
    "Server",
    "Servers",
    "Stats",
    "StepReport",
    "Tree",
    "UniqueLock",
    "WorkSet",
    "batches",
    "cancel",
    "cancel_class",
    "cancel_jobs",
    "cancelled_at",
    "cron",
    "damaged_keys",
    "entry",
    "failures",
    "find",
    "flows",
    "free_lock",
    "held_classes",
    "history",
    "is_alive",
    "is_being_cancelled",
    "iteration",
    "job_set",
    "lock_of",
    "processes",
    "progress",
    "queue_names",
    "queue_reports",
    "queues",
    "ran_twice",
    "release_class",
    "running",
    "server",
    "servers",
    "shards",
    "shards_of",
    "stats",
    "stuck",
    "undo",
    "unique_locks",
]
