"""Which jobs of a queue or a set are meant: by class, error, id, text and age."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .entry import JobEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Jobs that have everything that is given here; ``Filter()`` is every job.

    ``job`` and ``error`` are the name of a class, or its last part: "Timeout" also finds
    "requests.exceptions.Timeout". They may have ``*`` and ``?``. ``queue`` is a name, ``tag`` one
    of the job's tags. ``match`` is text anywhere in the payload, upper and lower case alike.
    ``older_than`` and ``newer_than`` are seconds or a timedelta, and compare how long the job has
    been where it is (``JobEntry.since``). ``keys`` are those of a selection (``JobEntry.key``); a
    set finds them without reading the others.
    """

    job: str | None = None
    error: str | None = None
    jid: str | None = None
    queue: str | None = None
    tag: str | None = None
    match: str | None = None
    older_than: float | timedelta | None = None
    newer_than: float | timedelta | None = None
    keys: Collection[str] | None = None

    def matches(self, entry: JobEntry, now: float | None = None) -> bool:
        """Whether it is one of these jobs; ``now`` (epoch seconds) is the moment for their age."""
        raise NotImplementedError


EVERY: Final = Filter()
