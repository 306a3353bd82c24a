"""Whether a queue drains: what was seen of it, again and again, for some minutes; and the sentence
over what holds it, on its page."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from .. import api
from ..api.queue_report import HoldKind
from ..units import format_count, format_duration, plural
from .checks import IDLE

_WINDOW: Final = 60.0  # seconds
_SAME: Final = 1.0  # seconds: the age of a job is measured with the time of the question
_LOOK: Final = 10.0  # seconds: what is seen in less says nothing
_NONE_IS_TAKEN: Final = frozenset[HoldKind](
    {"damaged", "paused", "unserved", "quiet", "silent", "refused"}
)


class Sample(NamedTuple):
    """A queue ``at`` that moment (monotonic seconds). ``began``: how many of its jobs forkq's
    children have begun since the first one. ``next_at``: when its next job was queued (epoch
    seconds). ``ready``: it has jobs, threads are free for it, and nothing holds it."""

    at: float
    size: int
    began: int
    next_at: float
    ready: bool


class MeasuredFlow(msgspec.Struct, frozen=True):
    """What was seen of a queue in the last minute, or in the ``seconds`` since the first look.

    ``moves``: at least one job has left it. ``began``: how many of its jobs forkq's children have
    begun, which they tell every ten seconds; Sidekiq's do not tell. ``still``: for how many seconds
    threads have been free for it, nothing has held it, and no job has left it.
    """

    seconds: float
    moves: bool
    began: int
    still: float

    @property
    def a_minute(self) -> float:
        """How many jobs of it begin in a minute; 0 if that is not known."""
        return self.began * 60 / self.seconds if self.seconds else 0.0


class QueueFlow:
    """The samples of one queue."""

    def __init__(self) -> None:
        self._samples = deque[Sample]()
        self._still_since = 0.0

    def add(self, sample: Sample) -> None:
        """Adds the sample of the next look."""
        last = self._samples[-1] if self._samples else None
        if last is None or not (last.ready and sample.ready) or _moved(last, sample):
            self._still_since = sample.at
        self._samples.append(sample)
        while sample.at - self._samples[0].at > _WINDOW:
            self._samples.popleft()

    def flow(self) -> MeasuredFlow:
        """The flow of the queue, as far as it was seen."""
        first, last = self._samples[0], self._samples[-1]
        return MeasuredFlow(
            seconds=last.at - first.at,
            moves=any(_moved(before, after) for before, after in pairwise(self._samples)),
            began=max(0, last.began - first.began),
            still=last.at - self._still_since,
        )


def _moved(before: Sample, after: Sample) -> bool:
    """Whether a job has left the queue in between. Jobs that were pushed together have one age."""
    return (
        after.size < before.size
        or after.began > before.began
        or (before.size > 0 and after.next_at > before.next_at + _SAME)
    )


class Drain(msgspec.Struct, frozen=True):
    """``says`` stands below the ``title``; "" if that is all. ``stands_still``: a person must act
    now."""

    title: str
    says: str = ""
    stands_still: bool = False


def drain(report: api.QueueReport, flow: MeasuredFlow | None) -> Drain:
    """Whether the queue drains, in words. ``flow`` is what was seen of it; None if it was not seen
    before."""
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


def _rate(flow: MeasuredFlow) -> str:
    if flow.began and flow.seconds >= _LOOK:
        return f"{format_count(max(1, flow.a_minute))} of its jobs began a minute."
    return f"Jobs have left it in the last {format_duration(max(1, flow.seconds))}."


def _still(report: api.QueueReport, flow: MeasuredFlow) -> str:
    free = sum(max(0, one.concurrency - one.busy) for one in report.served_by)
    threads = plural(free, "thread is", "threads are")
    since = format_duration(flow.still)
    says = f"{threads} free for it, but none has taken a job for {since}."
    return f"{says} See the logs of its processes: they may have lost Redis."
