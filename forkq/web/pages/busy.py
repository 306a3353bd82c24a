"""What runs, where, and whether it moves: hosts, their children, their jobs."""

from __future__ import annotations

from typing import Final

from ... import api
from ...screens import process_acts
from ...screens.busy import hosts, usual
from ..refused import Refused
from ..routing import NavItem, action, page
from ..visit import View, Visit

ORDER: Final = 30
NAV: Final = NavItem("Busy", "/busy", "b")

_MOST_PROCESSES: Final = 200
_MOST_JOBS: Final = 200


def busy(visit: Visit) -> View:
    facts = visit.observer.facts()
    jobs = api.running()[:_MOST_JOBS]
    values = {
        "facts": facts,
        "hosts": hosts(facts.processes[:_MOST_PROCESSES]),
        "left_out": max(0, len(facts.processes) - _MOST_PROCESSES),
        "jobs": jobs,
        "usual": usual(jobs),
        "by_identity": {process.identity: process for process in facts.processes},
    }
    return View("busy.html", values)


def _chosen(visit: Visit) -> api.Process:
    """The process that a form names."""
    identity = visit.form.get("identity")
    process = api.ProcessSet().get(identity)
    if process is None:
        raise Refused(404, "This process has ended.")
    return process


ROUTES: Final = [
    page("/busy", busy),
    action("/busy/quiet", "quiet process", lambda visit: process_acts.quiet(_chosen(visit))),
    action("/busy/stop", "stop process", lambda visit: process_acts.stop(_chosen(visit))),
    action("/busy/stacks", "dump stacks", lambda visit: process_acts.stacks(_chosen(visit))),
]
