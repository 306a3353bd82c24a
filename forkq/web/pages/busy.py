"""What runs, where, and whether it moves: hosts, their children, their jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ... import api
from ...screens import job_acts, process_acts, processes, running
from ...screens.plans import Plan
from ...screens.table import shown_of
from ..refused import PageRefused
from ..routing import NavItem, action, page
from ..visit import View, Visit

ORDER: Final = 30
NAV: Final = NavItem("Busy", "/busy", "b")

_MOST_PROCESSES: Final = 200
_MOST_JOBS: Final = 200


def busy(visit: Visit) -> View:
    facts, jobs = visit.observer.facts(), api.running(server=visit.server)
    runs = running.compared(visit.server, jobs[:_MOST_JOBS], facts.processes)
    shown = facts.processes[:_MOST_PROCESSES]
    by_host = processes.by_host(processes.of_processes(visit.server, shown))
    values = {
        "facts": facts,
        "all_hosts": processes.hosts(facts.processes),
        "hosts": [(host, processes.PROCESSES.table("web", lines)) for host, lines in by_host],
        "cut": shown_of(len(shown), len(facts.processes), processes.PROCESSES.command),
        "jobs": running.RUNNING.table("web", runs, len(jobs) - len(runs)),
        "no_process": processes.PROCESSES.empty,
    }
    return View("busy.html", values)


def _chosen(visit: Visit) -> api.Process:
    """The process that a form names."""
    identity = visit.form.get("identity")
    process = api.ProcessSet(visit.server).get(identity)
    if process is None:
        raise PageRefused(404, "This process has ended.")
    return process


def _of_process(act: Callable[[api.Server, api.Process], Plan]) -> Callable[[Visit], Plan]:
    """Makes an action on the process that the form names."""
    return lambda visit: act(visit.server, _chosen(visit))


def cancel(visit: Visit) -> Plan:
    """The plan to cancel the running job that a form names."""
    return job_acts.cancel_running(visit.server, visit.form.get("jid"))


ROUTES: Final = [
    page("/busy", busy),
    action("/busy/cancel", "cancel jobs", cancel),
    action("/busy/quiet", "quiet process", _of_process(process_acts.quiet)),
    action("/busy/stop", "stop process", _of_process(process_acts.stop)),
    action("/busy/stacks", "dump stacks", _of_process(process_acts.stacks)),
]
