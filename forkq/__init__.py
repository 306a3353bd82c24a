"""forkq: Sidekiq's job model for Python, run by a pre-forking supervisor.

What stands here is all that an app needs, and none of it loads server code.
"""

from __future__ import annotations

from . import middleware
from .client import Client, configure
from .errors import ForkqError, InvalidJob, Shutdown
from .job import Job, current_job, job
from .registry import DISCARD, KILL, on, on_death, on_error
from .standing import is_leader, stopping

__version__ = "0.1.0"

__all__ = [
    "DISCARD",
    "KILL",
    "Client",
    "ForkqError",
    "InvalidJob",
    "Job",
    "Shutdown",
    "__version__",
    "configure",
    "current_job",
    "is_leader",
    "job",
    "middleware",
    "on",
    "on_death",
    "on_error",
    "stopping",
]
