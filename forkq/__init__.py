"""forkq: Sidekiq's job model for Python, run by a pre-forking supervisor.

This is the public API of an app. Importing it loads no server code.
"""

from __future__ import annotations

from . import command_imports  # noqa: F401 - before all others, which Ctrl-C may interrupt

# isort: split
import importlib
from typing import TYPE_CHECKING, Any

from . import middleware
from .client import Client
from .current_job import CurrentJob as JobContext
from .current_job import current_job, idempotency_key, lease_lost
from .default_client import configure
from .errors import (
    BatchFinished,
    BlockingPushWarning,
    Cancelled,
    CannotSave,
    Dead,
    Discard,
    Duplicate,
    ForkqError,
    InvalidJob,
    InvalidSchedule,
    JobCancelled,
    JobExpired,
    JobFailed,
    NotPermitted,
    PushOutcome,
    ResultNotKept,
    ResultTooLarge,
    ResultUnknown,
    ServerFull,
    ServerReadOnly,
    ServerRefused,
    ServerUnavailable,
    Shutdown,
    Snooze,
    TimeLimit,
    TooFewReplicas,
    WrongPassword,
    WrongType,
    push_outcome,
)
from .every import every
from .job import Job, job
from .middleware import AroundMiddleware, Middleware, NextCall
from .process_state import is_leader, stopping
from .registry import (
    DISCARD,
    KILL,
    DeathHandler,
    DuplicateHandler,
    ErrorContext,
    ErrorHandler,
    Event,
    Exhausted,
    RetryIn,
    on,
    on_death,
    on_duplicate,
    on_error,
)
from .store.route import replicated
from .version import __version__
from .wire.payload import Payload
from .wire.prepared import BEFORE, PreparedJob, chain, group

if TYPE_CHECKING:
    from . import api, cursors
    from .api import Queue, cancel, is_alive
    from .batches.batch import Batch
    from .features.steps.parts import Signal
    from .flows.flow import Flow
    from .iterable import IterableJob
    from .results.waiting import aresult, result
    from .steps.calls import asleep, astep, await_for, sleep, step, wait_for
    from .steps.signals import signal

__all__ = [
    "BEFORE",
    "DISCARD",
    "KILL",
    "AroundMiddleware",
    "Batch",
    "BatchFinished",
    "BlockingPushWarning",
    "Cancelled",
    "CannotSave",
    "Client",
    "Dead",
    "DeathHandler",
    "Discard",
    "Duplicate",
    "DuplicateHandler",
    "ErrorContext",
    "ErrorHandler",
    "Event",
    "Exhausted",
    "Flow",
    "ForkqError",
    "InvalidJob",
    "InvalidSchedule",
    "IterableJob",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobExpired",
    "JobFailed",
    "Middleware",
    "NextCall",
    "NotPermitted",
    "Payload",
    "PreparedJob",
    "PushOutcome",
    "Queue",
    "ResultNotKept",
    "ResultTooLarge",
    "ResultUnknown",
    "RetryIn",
    "ServerFull",
    "ServerReadOnly",
    "ServerRefused",
    "ServerUnavailable",
    "Shutdown",
    "Signal",
    "Snooze",
    "TimeLimit",
    "TooFewReplicas",
    "WrongPassword",
    "WrongType",
    "__version__",
    "api",
    "aresult",
    "asleep",
    "astep",
    "await_for",
    "cancel",
    "chain",
    "configure",
    "current_job",
    "cursors",
    "every",
    "group",
    "idempotency_key",
    "is_alive",
    "is_leader",
    "job",
    "lease_lost",
    "middleware",
    "on",
    "on_death",
    "on_duplicate",
    "on_error",
    "push_outcome",
    "replicated",
    "result",
    "signal",
    "sleep",
    "step",
    "stopping",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    """Loads at first use what few programs need; ``api`` needs a Redis library."""
    if name in {"api", "cursors"}:
        return importlib.import_module(f".{name}", __name__)
    if name == "Batch":
        return importlib.import_module(".batches.batch", __name__).Batch
    if name == "Flow":
        return importlib.import_module(".flows.flow", __name__).Flow
    if name == "IterableJob":
        return importlib.import_module(".iterable", __name__).IterableJob
    if name in {"aresult", "result"}:
        return getattr(importlib.import_module(".results.waiting", __name__), name)
    if name in {"asleep", "astep", "await_for", "sleep", "step", "wait_for"}:
        return getattr(importlib.import_module(".steps.calls", __name__), name)
    if name in {"Signal", "signal"}:
        where = ".features.steps.parts" if name == "Signal" else ".steps.signals"
        return getattr(importlib.import_module(where, __name__), name)
    if name in {"Queue", "cancel", "is_alive"}:
        return getattr(importlib.import_module(".api", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
