"""Actions on the jobs of a set or a queue, from a form: on those that are selected, or on all of a
filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from starlette.routing import Route

from .. import api
from ..screens import job_acts
from ..screens.job_acts import PATHS, ChosenJobs
from ..screens.job_lists import FIELDS, asked
from ..screens.plans import Plan
from ..screens.queue_acts import path_of
from ..store.find_job import Location
from ..values import replace
from .refused import PageRefused
from .routing import action
from .visit import Visit

_Act: TypeAlias = "Callable[[Visit, ChosenJobs], Plan]"


def routes(location: Location) -> list[Route]:
    """The routes of the actions on one set. A dead job is not killed again, nor cancelled."""
    return [
        action(f"{PATHS[location]}/{kind}", f"{kind} jobs", _bound(act, location))
        for kind, act in _ACTS.items()
        if location != "dead" or kind not in ("kill", "cancel")
    ]


def _bound(act: _Act, location: Location) -> Callable[[Visit], Plan]:
    def plan(visit: Visit) -> Plan:
        """The plan of the action. It returns to the list from which the form came; a job's own page
        is gone with it."""
        given = {name: visit.form.get(name) for name in FIELDS}
        back = visit.path_of(PATHS[location], **given)
        return replace(act(visit, _chosen(visit, location)), back=back)

    return plan


def _chosen(visit: Visit, location: Location) -> ChosenJobs:
    form = visit.form
    if form.get("scope") == "all":
        return job_acts.filtered(
            visit.server, location, asked({name: form.get(name) for name in FIELDS})
        )
    return job_acts.selected(visit.server, location, _keys(visit))


def _keys(visit: Visit) -> list[str]:
    keys = visit.form.all("key")
    if not keys:
        raise PageRefused(400, "No job is selected.", "Select jobs, or choose all of the list.")
    return keys


def queue_routes() -> list[Route]:
    """The routes of the actions on the jobs of a queue. These jobs are to run anyway: there is no
    retry."""
    return [
        action(f"/queue/jobs/{kind}", f"{kind} jobs", _on_queue(act))
        for kind, act in _ACTS.items()
        if kind != "retry"
    ]


def _on_queue(act: _Act) -> Callable[[Visit], Plan]:
    def plan(visit: Visit) -> Plan:
        """The plan of the action. The form has the queue, and the number of the last job that its
        page shows."""
        name = api.Queue(visit.form.get("name"), visit.server).name
        every = visit.form.get("scope") == "all"
        at = visit.form.number("at")
        if every:
            chosen = job_acts.all_in_queue(visit.server, name)
        else:
            chosen = job_acts.selected_in_queue(visit.server, name, _keys(visit), at)
        return replace(act(visit, chosen), back=path_of(name))

    return plan


def _move(visit: Visit, chosen: ChosenJobs) -> Plan:
    to = visit.form.get("to").strip()
    if not to:
        raise PageRefused(400, "No queue is named.", "Write the queue to which the jobs go.")
    return job_acts.move(chosen, to)


_ACTS: Final[dict[str, _Act]] = {
    "retry": lambda _, chosen: job_acts.retry(chosen),
    "delete": lambda _, chosen: job_acts.delete(chosen),
    "kill": lambda _, chosen: job_acts.kill(chosen),
    "cancel": lambda _, chosen: job_acts.cancel(chosen),
    "move": _move,
}
