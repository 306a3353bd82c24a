"""``forkq jobs``: the jobs that wait in queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from .. import api
from ..api import Filter, JobEntry, Outcome, Queue
from ..api.bulk import OnProgress
from ..errors import ServerUnavailable
from .job_group import DELETE, KILL, MOVE, Place, job_group

_EVERY: Final = Filter()


class QueuedJobs:
    """The jobs of all queues, or of the one that a filter names."""

    def __init__(self, server: api.Server) -> None:
        self._server = server

    def scan(self, where: Filter = _EVERY, *, newest_first: bool = False) -> Iterator[JobEntry]:
        """Queue after queue, the next job first."""
        found = (queue.scan(where, newest_first=newest_first) for queue in self._queues(where))
        return chain.from_iterable(found)

    def find(self, jid: str) -> JobEntry | None:
        """The queued job with that id."""
        found = api.entry(jid, self._server)
        return found if found is not None and found.location == "queued" else None

    def delete_all(self, where: Filter, **more: Any) -> Outcome:
        """As ``Queue.delete_all``, in each queue."""
        return _in_each(self._queues(where), where, lambda queue: queue.delete_all, more)

    def kill_all(self, where: Filter, **more: Any) -> Outcome:
        """As ``Queue.kill_all``."""
        return _in_each(self._queues(where), where, lambda queue: queue.kill_all, more)

    def move_all(self, where: Filter, *, queue: str, **more: Any) -> Outcome:
        """As ``Queue.move_all``, but for the target itself."""
        named = {"queue": queue, **more}
        return _in_each(self._queues(where), where, lambda source: source.move_all, named)

    def _queues(self, where: Filter) -> list[Queue]:
        names = api.queue_names(self._server) if where.queue is None else [where.queue]
        return [Queue(name, self._server) for name in names]


def _in_each(
    queues: Iterable[Queue],
    where: Filter,
    method: Callable[[Queue], Callable[..., Outcome]],
    more: dict[str, Any],
) -> Outcome:
    """The outcomes together; ``most`` bounds the sum. If Redis is lost, ServerUnavailable has the
    sum so far."""
    total, most, progress = Outcome(), more.pop("most", None), more.pop("progress", None)
    for queue in queues:
        if queue.name == more.get("queue"):
            continue
        if most is not None and total.matched >= most:
            break
        left = None if most is None else most - total.matched
        watch = None if progress is None else _added_to(total, progress)
        try:
            outcome = method(queue)(where=where, most=left, progress=watch, **more)
        except ServerUnavailable as error:
            error.outcome = _sum(total, error.outcome or Outcome())
            raise
        total = _sum(total, outcome)
    return total


def _added_to(before: Outcome, progress: OnProgress) -> OnProgress:
    return lambda so_far: progress(_sum(before, so_far))


def _sum(one: Outcome, other: Outcome) -> Outcome:
    numbers = ("total", "seen", "matched", "done", "gone", "refused")
    sums = {name: getattr(one, name) + getattr(other, name) for name in numbers}
    return replace(one, **sums, undo=f"{one.undo} {other.undo}".strip())


_QUEUED: Final = Place("queued", "queued job", QueuedJobs)
jobs = job_group("jobs", "Jobs that wait in queues.", _QUEUED, (KILL, MOVE, DELETE))
