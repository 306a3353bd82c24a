"""All queues, and why the one under the cursor drains or does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from rich.text import Text

from ... import api
from ...api.queue import whole_queue
from ...screens import queue_acts
from ...screens import queues as screen
from ...screens.facts import drains_in
from ...screens.flow import drain
from ...screens.shards import sizes_in_words
from ...screens.texts import name
from ...units import format_duration, plural
from ..cells import BAD, QUIET, STRONG, WARN, cell, words
from ..content import Act, Content, Look, Page, Selection, cut, grid
from .queue_jobs import QueueJobsPage

_MOST: Final = 200
_STEADY: Final = 0.02  # jobs a second


class QueuesPage(Page):
    """The page of all queues: size, trend and latency of each; below, what holds the one under the
    cursor, and who serves it."""

    title: ClassVar[str] = "Queues"
    number: ClassVar[str] = "2"
    tab: ClassVar[bool] = True
    letter: ClassVar[str] = "q"
    path: ClassVar[str] = "/queues"
    question: ClassVar[str] = "Why does this queue not drain?"

    def content(self, look: Look) -> Content:
        lines = screen.observed(look.observer.facts(), look.observer)
        found = screen.QUEUES.chosen(lines, look.wanted)
        chosen = found[:_MOST]
        names = [one.name for one in chosen]
        known = look.cursor.key if look.cursor else ""
        named = known if known in names else next(iter(names), None)
        foot = [] if named is None else list(_why(named, look))
        table = screen.QUEUES.table("top", chosen, len(found) - len(chosen))
        return Content(cut(table), *grid(table, look), foot=foot, empty=" ".join(table.empty[:2]))

    def acts(self) -> Mapping[str, Act]:
        return {
            "pause": _pause,
            "clear": lambda server, chosen: queue_acts.clear(server, _only(chosen)),
        }

    def open(self, target: Any) -> Page | None:
        return QueueJobsPage(target.name)


def _only(chosen: Selection) -> str:
    [line] = chosen.targets
    return str(line.name)


def _pause(server: api.Server, chosen: Selection) -> Any:
    name = _only(chosen)
    paused = whole_queue(name, server).paused  # not as it was a second ago
    return (queue_acts.resume if paused else queue_acts.pause)(server, name)


def _why(queue: str, look: Look) -> Iterator[Text]:
    """The lines that say why the queue under the cursor drains or does not."""
    [report] = api.queue_reports(queue, server=look.server)
    state = report.state
    flow = look.observer.flow(queue)
    told = drain(report, flow)
    ends = _ends(look.observer.sizes(queue), state, moves=flow is not None and flow.moves)
    yield words((name(queue), STRONG), f"  {told.title}", ends)
    for hold in report.holds:
        usual = hold.kind in {"rate", "full", "limit", "paused", "alone"}
        yield words((f"  {hold.kind:9} ", WARN if usual else BAD), cell(hold.text))
    if told.says:
        yield words((f"  {told.says}", BAD if told.stands_still else QUIET))
    if suspects := queue_acts.suspects_beside_others(state):
        yield words((f"  {suspects}", QUIET))
    yield words(("  served by ", QUIET), cell(_served(report)))
    if parts := look.observer.parts(queue):
        yield words((f"  {sizes_in_words(queue, parts)}", QUIET))


def _ends(sizes: list[tuple[float, int]], state: api.QueueState, *, moves: bool) -> str:
    trend = drains_in(sizes)
    if trend is None or not state.size:
        return ""
    if trend[1]:
        return f": empty in {format_duration(trend[1])} at this rate"
    steady = ": as many come as go" if moves else ": none is taken, none comes"
    return ": it grows" if trend[0] > _STEADY else steady


def _served(report: api.QueueReport) -> str:
    if not report.served_by:
        return "no process: add it to a capsule, or start the service that has it"
    busy = sum(one.busy for one in report.served_by)
    hosts = sorted({name(one.hostname) for one in report.served_by})
    who = f"{plural(len(report.served_by), 'process', 'processes')} on {', '.join(hosts)}"
    return f"{who}, {busy} of {plural(report.threads, 'thread')} busy"
