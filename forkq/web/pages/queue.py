"""One queue: why it drains or does not, its jobs, and what can be done with it."""

from __future__ import annotations

from typing import Final

from ... import api
from ...errors import InvalidRule
from ...limits.overrides import Fields, limit_to, process_limit_to, rate_to
from ..facts import drains_in
from ..paging import paging
from ..routing import Done, Plan, action, page
from ..texts import name as shown
from ..texts import plural
from ..visit import View, Visit

_MOST_TO_KEEP: Final = 100_000  # jobs that a clear keeps for its undo


def queue(visit: Visit) -> View:
    name = visit.query("name")
    one = api.Queue(name)
    [report] = api.queue_reports(name)
    listed = paging(visit, report.state.size, 25)
    sizes = visit.observer.sizes(name)
    return View(
        "queue.html",
        {
            "report": report,
            "state": report.state,
            "jobs": one.page(listed.start, listed.per_page),
            "paging": listed,
            "sizes": [size for _, size in sizes],
            "trend": drains_in(sizes),
        },
    )


def _named(visit: Visit) -> tuple[api.Queue, str]:
    """The queue that a form names, and its page."""
    one = api.Queue(visit.form.get("name"))
    return one, visit.path_of("/queue", name=one.name)


def pause(visit: Visit) -> Plan:
    one, back = _named(visit)

    def do() -> Done:
        one.pause()
        undo = ("/queue/resume", {"name": one.name})
        return Done(f"Paused {shown(one.name)}: no process takes its jobs.", undo=undo)

    return Plan(f"Pause {shown(one.name)}?", do, back=back, ask=False)


def resume(visit: Visit) -> Plan:
    one, back = _named(visit)

    def do() -> Done:
        one.resume()
        return Done(f"Resumed {shown(one.name)}.")

    return Plan(f"Resume {shown(one.name)}?", do, back=back, ask=False)


def clear(visit: Visit) -> Plan:
    one, back = _named(visit)
    count = one.size
    jobs = plural(count, "job")
    keeps = count <= _MOST_TO_KEEP

    def do() -> Done:
        if not keeps:
            cleared = one.clear()
            return Done(f"Deleted {plural(cleared, 'job')} from {shown(one.name)}.", count=cleared)
        outcome = one.delete_all(undo=True)
        undo = ("/undo", {"token": outcome.undo, "back": back}) if outcome.undo else None
        text = f"Deleted {plural(outcome.done, 'job')} from {shown(one.name)}."
        return Done(text, undo=undo, count=outcome.done)

    says = f"Delete {jobs} from {shown(one.name)}?"
    details = () if not keeps else ("They can be put back for ten minutes.",)
    return Plan(
        says, do, f"Delete {jobs}", back, ask=True, danger=not keeps,
        details=(*details, "Jobs that run now go on."),
    )  # fmt: skip


def limits(visit: Visit) -> Plan:
    """Sets the rules that the form has. An empty field lifts its rule."""
    one, back = _named(visit)
    fields = _rules(visit)

    def do() -> Done:
        one.change(fields)
        return Done(f"Changed the rules of {shown(one.name)}; they count at once on all hosts.")

    return Plan(f"Change the rules of {shown(one.name)}?", do, back=back, ask=False)


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
    one, back = _named(visit)

    def do() -> Done:
        one.reset()
        return Done(f"The rules of {shown(one.name)} are those of the configuration again.")

    return Plan(f"Forget the rules of {shown(one.name)}?", do, back=back, ask=False)


ROUTES: Final = [
    page("/queue", queue),
    action("/queue/pause", "pause queue", pause),
    action("/queue/resume", "resume queue", resume),
    action("/queue/clear", "clear queue", clear),
    action("/queue/limits", "change limits", limits),
    action("/queue/reset", "change limits", reset),
]
