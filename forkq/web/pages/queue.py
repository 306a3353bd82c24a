"""One queue: why it drains or does not, its jobs, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ... import api
from ...api.queue import whole_queue
from ...errors import InvalidRule
from ...limits.overrides import Fields, limit_to, process_limit_to, rate_to
from ...screens import queue_acts
from ...screens.facts import drains_in
from ...screens.flow import drain
from ...screens.jobs import IN_QUEUE, of_entries
from ...screens.plans import ActionDone, Plan
from ...screens.processes import SERVING, of_processes
from ...screens.queue_acts import path_of, suspects_beside_others
from ...screens.running import IN_FLIGHT, of_jobs
from ...screens.shards import size_of_part
from ...screens.table import Sheet, Table
from ...screens.texts import name as shown
from .. import job_actions
from ..paging import paging
from ..routing import action, page
from ..visit import View, Visit

T = TypeVar("T")

_FEW: Final = 25  # rows of a table beside others


def queue(visit: Visit) -> View:
    name = visit.query("name")
    visit.problems()  # looks at the other shards, too, which may have parts of a queue
    one = api.Queue(name, visit.server)
    [report] = api.queue_reports(name, server=visit.server)
    listed = paging(visit, report.state.size, 25)
    sizes, flow = visit.observer.sizes(name), visit.observer.flow(name)
    entries = one.page(listed.start, listed.per_page)
    return View(
        "queue.html",
        {
            "report": report,
            "state": report.state,
            "suspects": suspects_beside_others(report.state),
            "spread": _parts(visit, name),
            "serving": _few(SERVING, of_processes(visit.server, report.served_by)),
            "running": _few(IN_FLIGHT, of_jobs(report.in_flight)),
            "table": IN_QUEUE.table("web", of_entries(entries, listed.start + 1)),
            "paging": listed,
            "queues": visit.queues,
            "sizes": [size for _, size in sizes],
            "trend": drains_in(sizes),
            "moves": flow is not None and flow.moves,
            "drain": drain(report, flow),
            "shared": any(process.queues != (name,) for process in report.served_by),
        },
    )


def _parts(visit: Visit, name: str) -> list[tuple[str, str, str]]:
    """The parts of a queue that is spread over several shards: the shard of each, its size in
    words, and its page; "" for the part of this page."""
    pages = {shard: visit.url_on(shard, path_of(name)) for shard in visit.shards}
    return [
        (shard, size_of_part(size), "" if shard == visit.shard else pages.get(shard, ""))
        for shard, size in visit.observer.parts(name).items()
    ]


def _few(sheet: Sheet[T], values: Sequence[T]) -> Table:
    shown = values[:_FEW]
    return sheet.table("web", shown, len(values) - len(shown))


def _of_queue(act: Callable[[api.Server, str], Plan]) -> Callable[[Visit], Plan]:
    """Makes an action on the queue that the form names."""
    return lambda visit: act(visit.server, visit.form.get("name"))


def pause(visit: Visit) -> Plan:
    """The plan to pause a queue, in the name of the user, if the web UI knows one."""
    return queue_acts.pause(visit.server, visit.form.get("name"), visit.user)


def limits(visit: Visit) -> Plan:
    """The plan to set the rules that the form has. An empty field lifts its rule."""
    one = whole_queue(visit.form.get("name"), visit.server)
    fields = _rules(visit)

    def do() -> ActionDone:
        one.change(fields)
        return ActionDone(
            f"Changed the rules of {shown(one.name)}; they count at once on all hosts."
        )

    return Plan(f"Change the rules of {shown(one.name)}?", do, back=path_of(one.name), ask=False)


def _rules(visit: Visit) -> Fields:
    rate, burst = visit.form.get("rate").strip(), _number(visit, "burst")
    if burst is not None and not rate:
        raise InvalidRule("a burst belongs to a rate: give both")
    return {
        **limit_to(_number(visit, "limit")),
        **process_limit_to(_number(visit, "process_limit")),
        **rate_to(rate or None, burst),
    }


def _number(visit: Visit, field: str) -> int | None:
    text = visit.form.get(field).strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        shown = text[:40]
        raise InvalidRule(f"{field.replace('_', ' ')}: expected a whole number, found {shown!r}")
    return int(text)


def reset(visit: Visit) -> Plan:
    one = whole_queue(visit.form.get("name"), visit.server)

    def do() -> ActionDone:
        one.reset()
        return ActionDone(f"The rules of {shown(one.name)} are those of the configuration again.")

    return Plan(f"Forget the rules of {shown(one.name)}?", do, back=path_of(one.name), ask=False)


ROUTES: Final = [
    page("/queue", queue),
    action("/queue/pause", "pause queue", pause),
    action("/queue/resume", "resume queue", _of_queue(queue_acts.resume)),
    action("/queue/clear", "clear queue", _of_queue(queue_acts.clear)),
    action("/queue/limits", "change limits", limits),
    *job_actions.queue_routes(),
    action("/queue/reset", "change limits", reset),
]
