"""Actions on the jobs of a set: on those that are selected, or on all of a filter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.routing import Route

from .. import api
from ..store.find_job import Location
from .job_lists import FIELDS, asked
from .refused import Refused
from .routing import Done, Plan, action
from .texts import name as shown
from .texts import plural
from .visit import Visit

PATHS: Final[dict[Location, str]] = {
    "dead": "/dead", "retrying": "/retries", "scheduled": "/scheduled",
}  # fmt: skip
WORDS: Final[dict[Location, str]] = {
    "dead": "the dead set", "retrying": "the retries", "scheduled": "the schedule",
}  # fmt: skip
_SECONDS: Final = 1.5  # for counting before the question
_MOST_JIDS: Final = 1000  # for the audit log
_MOST_TO_KEEP: Final = 100_000  # jobs that a delete keeps for its undo


@dataclass(frozen=True, slots=True)
class Chosen:
    """The jobs that a form means: ``count`` of them, ``whole`` if all were counted."""

    jobs: api.JobSet
    where: api.Filter
    count: int
    whole: bool
    jids: tuple[str, ...]

    @property
    def text(self) -> str:
        """How many, in words."""
        return ("" if self.whole else "at least ") + plural(self.count, "job")


def routes(location: Location) -> list[Route]:
    """The actions of one set. A dead job is not killed again."""
    path = PATHS[location]
    kinds: dict[str, Callable[[Visit, Location], Plan]] = {
        "retry": _retry, "delete": _delete, "kill": _kill, "move": _move,
    }  # fmt: skip
    if location == "dead":
        del kinds["kill"]
    return [
        action(f"{path}/{kind}", f"{kind} jobs", _bound(plan, location))
        for kind, plan in kinds.items()
    ]


def _bound(plan: Callable[[Visit, Location], Plan], location: Location) -> Callable[[Visit], Plan]:
    return lambda visit: plan(visit, location)


def _chosen(visit: Visit, location: Location) -> Chosen:
    jobs, form = api.job_set(location), visit.form
    if form.get("scope") != "all":
        keys = tuple(form.all("key"))
        if not keys:
            raise Refused(400, "No job is selected.", "Select jobs, or choose all of the list.")
        found = [entry for key in keys if (entry := jobs.get(key)) is not None]
        where = api.Filter(keys=[entry.key for entry in found])
        return Chosen(jobs, where, len(found), True, tuple(entry.jid for entry in found))
    return _counted(jobs, asked({name: form.get(name) for name in FIELDS}))


def _counted(jobs: api.JobSet, where: api.Filter) -> Chosen:
    end, count, jids = time.monotonic() + _SECONDS, 0, list[str]()
    everything = where == api.Filter()
    for entry in jobs.scan(where):
        count += 1
        if len(jids) < _MOST_JIDS:
            jids.append(entry.jid)
        elif everything:
            break
        if time.monotonic() > end:
            return Chosen(jobs, where, count, False, tuple(jids))
    return Chosen(jobs, where, jobs.size if everything else count, True, tuple(jids))


def _back(visit: Visit, location: Location) -> str:
    """The list from which the form came; a job's own page is gone with the job."""
    given = {name: visit.form.get(name) for name in FIELDS}
    return visit.path_of(PATHS[location], **given)


def _plan(
    visit: Visit, location: Location, verb: str, past: str, do: Callable[[Chosen], api.Outcome],
    *, danger: bool = False, details: tuple[str, ...] = (),
) -> Plan:  # fmt: skip
    chosen = _chosen(visit, location)
    of = f"of {WORDS[location]}"
    many = visit.form.get("scope") == "all" or chosen.count != 1
    back = _back(visit, location)

    def act() -> Done:
        outcome = do(chosen)
        undo = ("/undo", {"token": outcome.undo, "back": back}) if outcome.undo else None
        return Done(
            f"{past} {plural(outcome.done, 'job')} {of}.{_rest(outcome)}",
            chosen.jids,
            undo,
            outcome.done,
        )

    says = f"{verb} {chosen.text} {of}?"
    return Plan(says, act, f"{verb} {chosen.text}", back, many or danger, danger, details)


def _rest(outcome: api.Outcome) -> str:
    gone = f" {plural(outcome.gone, 'job')} had already left." if outcome.gone else ""
    refused = (
        f" {plural(outcome.refused, 'payload')} cannot run: no job." if outcome.refused else ""
    )
    return gone + refused


def _retry(visit: Visit, location: Location) -> Plan:
    details = ("They go to their queues now.",)
    return _plan(
        visit, location, "Retry", "Retried", lambda c: c.jobs.retry_all(c.where), details=details
    )


def _delete(visit: Visit, location: Location) -> Plan:
    keeps = api.job_set(location).size <= _MOST_TO_KEEP or visit.form.get("scope") != "all"
    details = ("They can be put back for ten minutes.",) if keeps else ()
    return _plan(
        visit, location, "Delete", "Deleted", lambda c: c.jobs.delete_all(c.where, undo=keeps),
        danger=not keeps, details=details,
    )  # fmt: skip


def _kill(visit: Visit, location: Location) -> Plan:
    details = ("They go to the dead set, and are not tried again.",)
    return _plan(
        visit, location, "Kill", "Killed", lambda c: c.jobs.kill_all(c.where), details=details
    )


def _move(visit: Visit, location: Location) -> Plan:
    to = visit.form.get("to").strip()
    if not to:
        raise Refused(400, "No queue is named.", "Write the queue to which the jobs go.")
    queue = api.Queue(to).name
    details = (f"They go to the queue {shown(queue)}.",)
    return _plan(
        visit, location, "Move", "Moved", lambda c: c.jobs.move_all(queue, c.where),
        details=details,
    )  # fmt: skip
