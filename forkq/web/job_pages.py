"""The pages of the three sets of jobs: one list with a filter, a selection and actions."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route

from .. import api
from ..screens import job_acts, job_lists, jobs
from ..store.find_job import Location
from . import job_actions
from .routing import page
from .visit import View, Visit


def routes(location: Location) -> list[Route]:
    """The routes of the list of one set, and of its actions."""
    return [page(job_acts.PATHS[location], _list_page(location)), *job_actions.routes(location)]


def _list_page(location: Location) -> Callable[[Visit], View]:
    def listed(visit: Visit) -> View:
        given = _given(visit)
        found = job_lists.read(visit.server, location, job_lists.asked(given), visit.query("after"))
        values = {
            "location": location,
            "path": job_acts.PATHS[location],
            "size": api.job_set(location, visit.server).size,
            "given": given,
            "fields": job_lists.FIELDS,
            "list": found,
            "table": jobs.JOBS[location].table("web", jobs.of_entries(found.jobs)),
            "queues": visit.queues,
        }
        return View("jobs.html", values)

    return listed


def _given(visit: Visit) -> dict[str, str]:
    """The fields of the filter in the address."""
    return {name: visit.query(name) for name in job_lists.FIELDS if visit.query(name).strip()}
