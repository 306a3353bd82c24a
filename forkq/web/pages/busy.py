"""What runs, where, and whether it moves: hosts, their children, their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ... import api
from ..refused import Refused
from ..routing import Done, NavItem, Plan, action, page
from ..texts import name as shown
from ..texts import plural
from ..visit import View, Visit

ORDER: Final = 30
NAV: Final = NavItem("Busy", "/busy", "b")

_MOST_PROCESSES: Final = 200
_MOST_JOBS: Final = 200
_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Host:
    """The processes of one host, and what they have together. ``rss`` in KiB."""

    name: str
    processes: tuple[api.Process, ...]

    @property
    def busy(self) -> int:
        return sum(process.busy for process in self.processes)

    @property
    def threads(self) -> int:
        return sum(process.concurrency for process in self.processes)

    @property
    def rss(self) -> int:
        return sum(process.rss for process in self.processes)


def busy(visit: Visit) -> View:
    facts = visit.observer.facts()
    jobs = api.running()[:_MOST_JOBS]
    values = {
        "facts": facts,
        "hosts": _hosts(facts.processes[:_MOST_PROCESSES]),
        "left_out": max(0, len(facts.processes) - _MOST_PROCESSES),
        "jobs": jobs,
        "usual": _usual(jobs),
        "by_identity": {process.identity: process for process in facts.processes},
    }
    return View("busy.html", values)


def _hosts(processes: Sequence[api.Process]) -> list[Host]:
    groups = groupby(processes, key=lambda process: process.hostname)
    return [Host(name, tuple(members)) for name, members in groups]


def _usual(jobs: Sequence[api.RunningJob]) -> dict[str, float]:
    """For each class the time that 95 of 100 runs did not exceed, if that is known."""
    names = sorted({job.job for job in jobs})
    found = api.Metrics().histograms(names, _MINUTES) if names else {}
    known = {name: histogram.percentile(95) for name, histogram in found.items()}
    return {name: seconds for name, seconds in known.items() if seconds}


def _chosen(visit: Visit) -> api.Process:
    """The process that a form names."""
    identity = visit.form.get("identity")
    process = api.ProcessSet().get(identity)
    if process is None:
        raise Refused(404, "This process has ended.")
    return process


def _place(process: api.Process) -> str:
    return f"process {process.pid} on {shown(process.hostname)}"


def quiet(visit: Visit) -> Plan:
    process = _chosen(visit)

    def do() -> Done:
        api.ProcessSet().quiet(process.identity)
        return Done(f"Told {_place(process)} to fetch no more; it hears it at its next heartbeat.")

    running = plural(process.busy, "running job")
    return Plan(
        f"Quiet {_place(process)}?", do, "Quiet it", "/busy", danger=True,
        details=(f"It fetches no more jobs. {running} go on.", "Only a restart ends this."),
    )  # fmt: skip


def stop(visit: Visit) -> Plan:
    process = _chosen(visit)

    def do() -> Done:
        api.ProcessSet().stop(process.identity)
        return Done(f"Told {_place(process)} to stop; it hears it at its next heartbeat.")

    running = plural(process.busy, "running job")
    lines = (
        f"{running} may finish; what still runs at the time-out goes back to its queue.",
        "Its master starts a new child in its place."
        if process.master
        else "It is Sidekiq: forkq does not start a new one in its place.",
    )
    return Plan(f"Stop {_place(process)}?", do, "Stop it", "/busy", danger=True, details=lines)


def stacks(visit: Visit) -> Plan:
    process = _chosen(visit)

    def do() -> Done:
        api.ProcessSet().dump_stacks(process.identity)
        return Done(f"Told {_place(process)} to log its stacks: look into its log.")

    return Plan(f"Dump the stacks of {_place(process)}?", do, back="/busy", ask=False)


ROUTES: Final = [
    page("/busy", busy),
    action("/busy/quiet", "quiet process", quiet),
    action("/busy/stop", "stop process", stop),
    action("/busy/stacks", "dump stacks", stacks),
]
