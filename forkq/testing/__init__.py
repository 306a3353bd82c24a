"""Tests of apps that push jobs: pushes are recorded, performed at once, or run in a real tree.

Nothing of forkq imports this room. ``docs/testing.md`` is its guide, and pytest loads
``plugin.py``.
"""

from __future__ import annotations

from typing import Any

from .case import JobsMixin
from .expectation import ANY
from .jobs import RecordedJobs
from .modes import PushRefused, fake, inline, real, recorded, refused
from .recorded_job import RecordedJob

__all__ = [
    "JobsMixin",
    "PushRefused",
    "RecordedJob",
    "RecordedJobs",
    "drain",
    "enqueued",
    "fake",
    "inline",
    "not_enqueued",
    "real",
    "recorded",
    "refused",
]


def drain(what: object = ANY, **options: Any) -> int:
    """``RecordedJobs.drain`` of the innermost ``fake`` or ``inline``."""
    return recorded().drain(what, **options)


def enqueued(job: object = ANY, **expected: Any) -> list[RecordedJob]:
    """``RecordedJobs.enqueued`` of the innermost ``fake`` or ``inline``."""
    return recorded().enqueued(job, **expected)


def not_enqueued(job: object = ANY, **expected: Any) -> None:
    """``RecordedJobs.not_enqueued`` of the innermost ``fake`` or ``inline``."""
    recorded().not_enqueued(job, **expected)
