"""Which jobs of a queue or a set are meant: by class, error, id, text and age."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from ..errors import ForkqError, shown
from ..features.batch.parts import bids_in
from ..wire import times
from ..wire.marks import KEY, needs_in
from .masks import MASK

if TYPE_CHECKING:
    from .entry import JobEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Jobs that have everything that is given here; ``Filter()`` is every job.

    ``job`` and ``error`` are the name of a class, or its last part: "Timeout" also finds
    "requests.exceptions.Timeout". They may have ``*`` and ``?``; "=Timeout" is that name alone.
    ``queue`` is a name, ``tag`` one of the job's tags. ``match`` is text anywhere in the payload,
    upper and lower case alike; not in a value that is masked. ``batch`` is the id of a batch: its
    members and its callbacks, and those of the batches within it.
    ``older_than`` and ``newer_than`` are seconds or a timedelta, and compare how long the job has
    been where it is (``JobEntry.since``). ``keys`` are those of a selection (``JobEntry.key``); a
    set finds them without reading the others. A queue does so only near the number ``near`` (0 is
    the next job), which the last of them had when it was shown; without ``near`` it is read whole.
    """

    job: str | None = None
    error: str | None = None
    jid: str | None = None
    queue: str | None = None
    tag: str | None = None
    match: str | None = None
    batch: str | None = None
    older_than: float | timedelta | None = None
    newer_than: float | timedelta | None = None
    keys: Collection[str] | None = None
    near: int | None = None

    def matches(self, entry: JobEntry, now: float | None = None) -> bool:
        """Whether ``entry`` is one of these jobs; ``now`` (epoch seconds) is the moment for their
        age."""
        return (
            self._fits(entry)
            and (self.match is None or _has(entry, self.match.casefold()))
            and (self.keys is None or entry.key in self.keys)
            and (self.older_than is self.newer_than is None or self._has_age(entry, now))
        )

    def _fits(self, entry: JobEntry) -> bool:
        return (
            (
                self.job is None
                or is_named(self.job, entry.name)
                or is_named(self.job, entry.wrapper)
            )
            and (self.error is None or is_named(self.error, entry.error_class))
            and (self.jid is None or self.jid == entry.jid)
            and (self.queue is None or self.queue == entry.queue)
            and (self.tag is None or self.tag in entry.tags)
            and (self.batch is None or self.batch in bids_in(needs_in(entry.job.get(KEY))))
        )

    def _has_age(self, entry: JobEntry, now: float | None) -> bool:
        since = entry.since
        if since is None:
            return False
        age = (times.now() if now is None else now) - since
        older, newer = _in_seconds(self.older_than), _in_seconds(self.newer_than)
        return (older is None or age > older) and (newer is None or age < newer)


EVERY: Final = Filter()


def check_filter(where: object) -> None:
    """Raises ForkqError for a value in the place of a filter that is none: a jid, say."""
    if not isinstance(where, Filter):
        raise ForkqError(
            f"{shown(where)} is no filter: pass forkq.api.Filter(job=...), or Filter(jid=...) for "
            "one job"
        )


def is_named(pattern: str, name: str) -> bool:
    """Whether a class or its last part has that name, or matches that pattern."""
    if pattern.startswith("="):
        return pattern[1:] == name
    last = name.replace("::", ".").rpartition(".")[2]
    return pattern in (name, last) or fnmatchcase(name, pattern) or fnmatchcase(last, pattern)


def _has(entry: JobEntry, wanted: str) -> bool:
    """Whether the job has that text, and not only in what is masked: else a person who may see no
    secret could guess one, a letter after the other."""
    if wanted not in _text(entry.raw):
        return False
    masked = entry.masked
    hides = MASK.encode() in masked
    return not hides or wanted in _text(masked) or wanted in _spaced(masked)


def _spaced(masked: bytes) -> str:
    """A text of JSON in the form in which other programs write it."""
    with suppress(ValueError, RecursionError):
        return json.dumps(json.loads(masked), ensure_ascii=False).casefold()
    return ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").casefold()


def _in_seconds(length: float | timedelta | None) -> float | None:
    return length.total_seconds() if isinstance(length, timedelta) else length
