"""Jobs that wait in a queue: those that a person has selected, found near where they were shown."""

from __future__ import annotations

from collections.abc import Sequence

from .. import api
from ..api.filters import EVERY
from ..api.find import find_among
from .job_acts import Chosen


def selected(server: api.Server, queue: str, keys: Sequence[str], at: int) -> Chosen:
    """Those of the jobs with these ``JobEntry.key`` that are still there. The last of them had
    about the number ``at``; 0 is the next one."""
    found = find(server, queue, keys, at)
    where = api.Filter(keys=[entry.key for entry in found], near=at)
    jids = tuple(entry.jid for entry in found)
    return Chosen(server, "queued", where, len(found), jids, queue=queue)


def every(server: api.Server, queue: str) -> Chosen:
    """All jobs of the queue."""
    size = api.Queue(queue, server).size
    return Chosen(server, "queued", EVERY, size, (), by_filter=True, queue=queue)


def find(server: api.Server, queue: str, keys: Sequence[str], at: int) -> list[api.JobEntry]:
    """The jobs with these keys: first those around the number ``at``, then nearer to the head."""
    return list(api.Queue(queue, server).scan(api.Filter(keys=keys, near=at)))


def find_jid(server: api.Server, queue: str, jid: str) -> api.JobEntry | None:
    """The job of that id, if it runs or waits in the queue, or runs in a process of Sidekiq. Reads
    no other queue."""
    return find_among(server, jid, ("running", "queued"), (queue,))
