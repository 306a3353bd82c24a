"""For tests of apps that push jobs: pushes are recorded, performed at once, or run in a real tree.

The guide is docs/testing.md. An app that is no test never imports this.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .case import JobsMixin
from .crash import crash_everywhere
from .expectation import ANY
from .frozen_time import FrozenTime, freeze_time
from .jobs import RecordedJobs
from .modes import PushRefused, fake, inline, real, recorded, refused
from .recorded_job import RecordedJob

if TYPE_CHECKING:
    from .server import ForkqServer

__all__ = [
    "ForkqServer",
    "FrozenTime",
    "JobsMixin",
    "PushRefused",
    "RecordedJob",
    "RecordedJobs",
    "adrain",
    "crash_everywhere",
    "drain",
    "enqueued",
    "fake",
    "freeze_time",
    "inline",
    "not_enqueued",
    "real",
    "recorded",
    "refused",
]


def drain(what: object = ANY, **options: Any) -> int:
    """``RecordedJobs.drain`` of the innermost ``fake`` or ``inline``."""
    return recorded().drain(what, **options)


async def adrain(what: object = ANY, **options: Any) -> int:
    """``RecordedJobs.adrain`` of the innermost ``fake`` or ``inline``."""
    return await recorded().adrain(what, **options)


def enqueued(job: object = ANY, **expected: Any) -> list[RecordedJob]:
    """``RecordedJobs.enqueued`` of the innermost ``fake`` or ``inline``."""
    return recorded().enqueued(job, **expected)


def not_enqueued(job: object = ANY, **expected: Any) -> None:
    """``RecordedJobs.not_enqueued`` of the innermost ``fake`` or ``inline``."""
    recorded().not_enqueued(job, **expected)


def __getattr__(name: str) -> Any:
    """Loads what needs a Redis library when it is first used."""
    if name == "ForkqServer":
        return importlib.import_module(".server", __name__).ForkqServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
