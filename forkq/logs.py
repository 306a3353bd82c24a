"""For the logging of your own app: the job that a line belongs to.

forkq binds these values to each line by itself, see docs/logging.md. Use this module where forkq
cannot: in a handler or a chain of processors that is made after the child has booted.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

from .current_job import running_job

# On a log record, ``class`` would be a keyword: there it is ``job_class``.
_ATTRIBUTES: Final = {"jid": "jid", "class": "job_class", "queue": "queue", "attempt": "attempt"}


def job_values() -> dict[str, Any]:
    """``class``, ``jid``, ``queue`` and ``attempt`` of the job that this thread performs; empty
    outside of a job."""
    job = running_job()
    if job is None:
        return {}
    payload = job.payload
    return {
        "class": payload.get("wrapped") or payload.get("class"),
        "jid": payload.get("jid"),
        "queue": payload.get("queue"),
        "attempt": attempt_of(payload.get("retry_count")),
    }


def attempt_of(retry_count: object) -> int:
    """Which attempt a run is, from 1: the first failure makes ``retry_count`` 0."""
    return retry_count + 2 if type(retry_count) is int and retry_count >= 0 else 1


class JobFilter(logging.Filter):
    """Adds ``jid``, ``job_class``, ``queue`` and ``attempt`` to each record, for a format such as
    ``%(jid)s``. Outside of a job they are None. What the record has already stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        values, known = job_values(), record.__dict__
        for key, attribute in _ATTRIBUTES.items():
            known.setdefault(attribute, values.get(key))
        return True


def add_job(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """A processor for structlog: adds ``class``, ``jid``, ``queue`` and ``attempt``."""
    for key, value in job_values().items():
        event.setdefault(key, value)
    return event
