"""Does a queue drain? The title and the sentence over what holds it, on the page of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .. import api
from ..api.queue_report import HoldKind
from ..units import format_count, format_duration, plural
from .checks import IDLE
from .flow import Flow

_LOOK: Final = 10.0  # seconds: what is seen in less says nothing
_NONE_IS_TAKEN: Final = frozenset[HoldKind](
    {"damaged", "paused", "unserved", "quiet", "silent", "refused"}
)


@dataclass(frozen=True, slots=True)
class Drain:
    """``says`` stands below the ``title``; "" if that is all. ``stands_still``: a person must act
    now."""

    title: str
    says: str = ""
    stands_still: bool = False


def drain(report: api.QueueReport, flow: Flow | None) -> Drain:
    """``flow`` is what was seen of the queue; None if it was not seen before."""
    if not report.state.size:
        return Drain("It is empty")
    holds = {hold.kind for hold in report.holds}
    if holds & _NONE_IS_TAKEN:
        return Drain("Why it does not drain")
    if flow is not None and flow.moves:
        return Drain("It drains, held back" if holds else "It drains", _rate(flow))
    if holds:
        return Drain("Why it does not drain")
    if flow is None or flow.still < _LOOK:
        return Drain("Nothing is known to hold it", "Whether it drains is known in some seconds.")
    return Drain("It does not drain", _still(report, flow), flow.still >= IDLE.limit)


def _rate(flow: Flow) -> str:
    if flow.began and flow.seconds >= _LOOK:
        return f"{format_count(max(1, flow.a_minute))} of its jobs began a minute."
    return f"Jobs have left it in the last {format_duration(max(1, flow.seconds))}."


def _still(report: api.QueueReport, flow: Flow) -> str:
    free = sum(max(0, one.concurrency - one.busy) for one in report.served_by)
    threads = plural(free, "thread is", "threads are")
    since = format_duration(flow.still)
    says = f"{threads} free for it, but none has taken a job for {since}."
    return f"{says} See the logs of its processes: they may have lost Redis."
