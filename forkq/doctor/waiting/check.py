"""Compares all jobs that wait with the code that is imported here, and counts what does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec

from ... import registry
from ...errors import MalformedPayload
from ...limits.patterns import matches_any
from ...servers import Server
from ...units import plural
from ...wire.payload import DEFAULT_QUEUE
from ...wire.printable import cut, shown_name
from ..finding import listed
from .fit import REMEDIES, CheckedJob, Problem, Unfit, checked_job, unfit
from .pages import PageOfJobs, pages

# How many lines there are at most: payloads may have any class.
MOST_LINES: Final = 500
# How many queues of other apps are remembered by their names.
_MOST_QUEUES: Final = 100
_GONE: Final = Unfit("class", "the code has no such job")


class Mismatch(msgspec.Struct):
    """``count`` jobs of a class that do not fit for one reason; ``jid`` is one of them, and
    ``where`` it is."""

    name: str
    problem: Problem
    what: str
    jid: str
    where: str
    count: int = 0

    def __str__(self) -> str:
        one = f"{self.jid or 'one without a jid'} in {self.where}"
        about = f"{shown_name(self.name)}: {self.what}"
        return f"{about} (jobs: {self.count:,}; one is {one}); {REMEDIES[self.problem]}"

    def as_dict(self) -> dict[str, Any]:
        """The mismatch for JSON."""
        named = {"class": self.name, "problem": self.problem, "what": self.what}
        example = {"count": self.count, "jid": self.jid, "where": self.where}
        return {**named, **example, "remedy": REMEDIES[self.problem]}


class JobCheck:
    """What was found so far of the jobs that wait. ``queues`` are those of the configuration: in
    others a class that is unknown here is one of another app."""

    __slots__ = ("_beyond", "_elsewhere", "_found", "_looked", "_queues", "_served", "_unreadable")

    def __init__(self, queues: Collection[str]) -> None:
        self._queues = queues
        self._served: dict[str, bool] = {}
        self._found: dict[tuple[str, Unfit], Mismatch] = {}
        self._elsewhere = Counter[str]()
        self._looked = self._unreadable = self._beyond = 0

    def look_at(self, server: Server) -> None:
        """Reads all jobs of a server. Raises ServerUnavailable."""
        shard = f" of shard {server.name}" if server.name else ""
        for page in pages(server):
            self._look_at(page, shard)

    @property
    def mismatches(self) -> list[Mismatch]:
        """What does not fit, by class, the most jobs first."""
        return sorted(self._found.values(), key=lambda one: (one.name, -one.count))

    @property
    def fits(self) -> bool:
        """Whether each job fits that was looked at."""
        return not self._found

    def notes(self) -> Iterator[str]:
        """What was looked at, and what was not, in words."""
        bad = sum(one.count for one in self._found.values()) + self._beyond
        verdict = f"{bad:,} of them do not fit the code" if bad else "all fit the code"
        yield f"looked at {plural(self._looked, 'job')}: {verdict}"
        if self._beyond:
            yield f"{plural(self._beyond, 'job')} more do not fit: there is no line for each reason"
        if self._elsewhere:
            where = listed(map(shown_name, sorted(self._elsewhere)))
            count = plural(self._elsewhere.total(), "job")
            yield f"not checked: {count} of unknown classes in queues that are not served: {where}"
        if self._unreadable:
            yield f"not checked: {plural(self._unreadable, 'payload')} that no child can read"

    def _look_at(self, page: PageOfJobs, shard: str) -> None:
        self._looked += len(page.payloads)
        for raw in page.payloads:
            try:
                job = checked_job(raw)
            except MalformedPayload:
                self._unreadable += 1  # it is buried when it is fetched, by any code
                continue
            spec = registry.find(job.name)
            problem = _GONE if spec is None else unfit(spec, job)
            if problem is not None:
                self._note(job, problem, page, shard)

    def _note(self, job: CheckedJob, problem: Unfit, page: PageOfJobs, shard: str) -> None:
        if problem is _GONE and not self._serves(queue := _queue_of(job, page)):
            known = queue in self._elsewhere or len(self._elsewhere) < _MOST_QUEUES
            self._elsewhere[queue if known else "..."] += 1
            return
        found = self._found.get((job.name, problem))
        if found is None:
            if len(self._found) == MOST_LINES:
                self._beyond += 1
                return
            jid = cut(job.jid) if type(job.jid) is str else ""
            found = Mismatch(job.name, *problem, jid, page.where + shard)
            self._found[job.name, problem] = found
        found.count += 1

    def _serves(self, queue: str) -> bool:
        if len(self._served) > _MOST_QUEUES:
            self._served.clear()
        if queue not in self._served:
            self._served[queue] = matches_any(queue, self._queues)
        return self._served[queue]


def _queue_of(job: CheckedJob, page: PageOfJobs) -> str:
    return page.queue or (job.queue if type(job.queue) is str else "") or DEFAULT_QUEUE


def check_waiting(servers: Iterable[Server], queues: Collection[str]) -> JobCheck:
    """Looks at all jobs of these servers. Raises ServerUnavailable."""
    found = JobCheck(queues)
    for server in servers:
        found.look_at(server)
    return found
