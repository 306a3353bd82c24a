"""Queues as tables: all of them, those with jobs that wait, those with rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import msgspec

from .. import api
from ..units import format_count, format_duration
from .facts import Facts, Observer, drains_in
from .problems import BEHIND
from .shards import whole_in_words
from .table import (
    BROWSER,
    COMMAND,
    LIVE,
    Button,
    Cell,
    Column,
    Empty,
    PageLink,
    Phrase,
    Share,
    Sheet,
    Tone,
    Trend,
    note,
    tag,
)

_STEADY: Final = 0.02  # jobs a second by which a queue may grow or shrink and is called steady
CHANGED: Final = "* changed at run time; `forkq limits reset QUEUE` goes back to the configuration"


class QueueLine(msgspec.Struct, frozen=True):
    """A queue, as far as it is known: ``latency`` is for how many seconds its next job has waited,
    ``sizes`` its sizes in the last minutes with their times, ``parts`` those of all parts of a
    queue that is spread over several shards, by the shard (None: not known)."""

    name: str
    size: int
    latency: float
    state: api.QueueState | None = None
    sizes: tuple[tuple[float, int], ...] = ()
    report: api.QueueReport | None = None
    parts: Mapping[str, int | None] = msgspec.field(default_factory=dict)


def of_figures(queues: Iterable[api.QueueFigures]) -> list[QueueLine]:
    """The lines of queues of which only the figures are known."""
    return [QueueLine(one.name, one.size, one.latency) for one in queues]


def waiting(facts: Facts) -> list[QueueLine]:
    """The queues with jobs, that with the longest wait first."""
    return WAITING.chosen(of_figures(one for one in facts.stats.queues if one.size))


def of_reports(reports: Iterable[api.QueueReport]) -> list[QueueLine]:
    """The lines of queues with all that is known of them."""
    return [
        QueueLine(one.state.name, one.state.size, one.latency, one.state, report=one)
        for one in reports
    ]


def of_states(states: Iterable[api.QueueState]) -> list[QueueLine]:
    """The lines of queues with their rules."""
    return [QueueLine(one.name, one.size, 0.0, one) for one in states]


def observed(facts: Facts, observer: Observer) -> list[QueueLine]:
    """The lines of queues with what was seen of them in the last minutes."""
    waits = {one.name: one.latency for one in facts.stats.queues}
    return [
        QueueLine(
            one.name, one.size, waits.get(one.name, 0.0), one, tuple(observer.sizes(one.name)),
            parts=observer.parts(one.name),
        )
        for one in facts.states
    ]  # fmt: skip


def _name(line: QueueLine) -> Cell:
    name = Phrase(line.name, link=PageLink("/queue", {"name": line.name}))
    paused = line.state is not None and line.state.paused
    return (name, tag("paused", "warn")) if paused else (name,)


def _size(line: QueueLine) -> Cell:
    size = Phrase(format_count(line.size))
    return (size, note(whole_in_words(line.parts))) if line.parts else (size,)


def _trend(line: QueueLine) -> Cell:
    """The sizes of a queue over time, and by how many jobs a minute it grows or shrinks."""
    shown = Trend([size for _, size in line.sizes], "its size in the last minutes")
    trend = drains_in(list(line.sizes))
    if trend is None or abs(trend[0]) < _STEADY:
        return (shown,)
    sign = "+" if trend[0] > 0 else "-"
    return shown, note(f"{sign}{format_count(abs(trend[0]) * 60)} a minute")


def _latency(line: QueueLine) -> Cell:
    late: Tone = "warn" if line.latency > BEHIND else ""
    return (Phrase(format_duration(line.latency), late),) if line.size else ()


def _busy(line: QueueLine) -> Cell:
    """How many jobs of a queue run. The limit does not count those that run in Sidekiq."""
    state = _state(line)
    busy = Phrase(format_count(state.busy))
    if state.limit is None:
        return (busy,)
    counted = f"in all, {format_count(state.leased)} " if state.in_sidekiq else ""
    return busy, note(f"{counted}of {format_count(state.limit)}")


def _used(line: QueueLine) -> Cell:
    """How much of a queue's limit is used up."""
    state, shown = _state(line), _busy(line)
    if state.limit is None:
        return shown
    used = state.leased
    return *shown, Share(used, state.limit, f"{used} of {state.limit}", is_said=True)


def _rules(line: QueueLine) -> Cell:
    """The rules of a queue in words; no words where it has none."""
    return tuple(tag(text) for text in _rules_of(_state(line))) or (Phrase(""),)


def _rules_of(state: api.QueueState) -> Iterator[str]:
    if state.limit is not None:
        yield f"limit {format_count(state.limit)}"
    if state.process_limit is not None:
        yield f"{format_count(state.process_limit)} per child"
    if state.rate:
        yield state.rate
    if state.blocking:
        yield "blocking"


def _set_rules(line: QueueLine) -> Cell:
    """The rules of a queue in words, and which of them the configuration does not have."""
    changed = _state(line).changed
    return (
        (*_rules(line), note(f"{', '.join(changed)}: set at run time")) if changed else _rules(line)
    )


def _threads(line: QueueLine) -> Cell:
    return (Phrase(format_count(_report(line).threads)),)


def _why(line: QueueLine) -> Cell:
    holds = _report(line).holds
    return (Phrase(holds[0].text if holds else ""),)


def _rule(rule: str, value: object, line: QueueLine) -> Cell:
    """A rule in words. One that was set at run time has a star."""
    if rule in _state(line).changed:
        return (Phrase(f"{'none' if value is None else value}*"),)
    return () if value is None else (Phrase(str(value)),)


def _limit(line: QueueLine) -> Cell:
    return _rule("limit", _state(line).limit, line)


def _process_limit(line: QueueLine) -> Cell:
    return _rule("process_limit", _state(line).process_limit, line)


def _rate(line: QueueLine) -> Cell:
    return _rule("rate", rate_of(_state(line)), line)


def rate_of(state: api.QueueState) -> str | None:
    """The rate of a queue in words, such as "100/minute burst 20"."""
    if state.rate is None or state.burst is None:
        return state.rate
    return f"{state.rate} burst {state.burst:g}"


def _tokens(line: QueueLine) -> Cell:
    tokens = _state(line).tokens
    return () if tokens is None else (Phrase(f"{tokens:.1f}"),)


def _marks(line: QueueLine) -> Cell:
    state = _state(line)
    marks = [*(["paused"] if state.paused else []), *(["blocking"] if state.blocking else [])]
    return (Phrase(", ".join(marks)),)


def _state(line: QueueLine) -> api.QueueState:
    assert line.state is not None
    return line.state


def _report(line: QueueLine) -> api.QueueReport:
    assert line.report is not None
    return line.report


def _facts(line: QueueLine) -> dict[str, Any]:
    report = line.report
    if report is None:
        return asdict(_state(line))
    return {
        **asdict(report.state),
        "latency": report.latency,
        "threads": report.threads,
        "served_by": [process.identity for process in report.served_by],
        "in_flight": [job.jid for job in report.in_flight],
        "holds": [asdict(hold) for hold in report.holds],
        "parts": {name: part.state.size for name, part in report.parts.items()},
    }


def _buttons(line: QueueLine) -> tuple[Button, ...]:
    fields = {"name": line.name}
    if _state(line).paused:
        return (Button("/queue/resume", "Resume", "resume queue", fields),)
    return (Button("/queue/pause", "Pause", "pause queue", fields),)


def _key(line: QueueLine) -> str:
    return line.name


def _need(line: QueueLine) -> tuple[float, str]:
    return -line.latency, line.name


_NAME: Final[Column[QueueLine]] = Column("name", "Queue", _name, least=10)
_SIZE: Final[Column[QueueLine]] = Column("size", "Jobs", _size, "right", brief="SIZE")
_LATENCY: Final[Column[QueueLine]] = Column(
    "latency", "The next waits for", _latency, "right", brief="LATENCY"
)
_NO_QUEUES: Final = "no job has been pushed to any queue"

QUEUES: Final[Sheet[QueueLine]] = Sheet(
    "Queues",
    (
        _NAME,
        _SIZE,
        Column("trend", "Trend", _trend, on=LIVE),
        Column("busy", "Running", _busy, "right", brief="BUSY"),
        _LATENCY,
        Column("rules", "Rules", _rules, least=6, on=LIVE),
        Column("threads", "Threads", _threads, "right", on=COMMAND),
        Column("holds", "Why it waits", _why, on=COMMAND),
    ),
    _key,
    Empty(
        "No queue yet.",
        "A queue stands here from its first job on: MyJob.perform_async(...)",
        _NO_QUEUES,
    ),
    facts=_facts,
    words=lambda line: (line.name,),
    order=_need,
    buttons=_buttons,
    command="forkq queues",
)

# The queues with jobs; a command lists the empty ones, too.
WAITING: Final[Sheet[QueueLine]] = Sheet(
    "Waiting",
    (_NAME, _SIZE, _LATENCY),
    _key,
    Empty(
        "No job waits.",
        "Jobs that are pushed faster than they are done stand here, by queue.",
        _NO_QUEUES,
    ),
    words=lambda line: (line.name,),
    order=_need,
    command="forkq queues",
)

LIMITS: Final[Sheet[QueueLine]] = Sheet(
    "Limits",
    (
        _NAME,
        Column("rules", "Rules", _set_rules, on=BROWSER),
        Column("busy", "Running", _used, "right", brief="BUSY"),
        Column("limit", "Limit", _limit, "right", on=COMMAND),
        Column("process_limit", "Per child", _process_limit, "right", on=COMMAND),
        Column("rate", "Rate", _rate, on=COMMAND),
        Column("tokens", "May start now", _tokens, "right", brief="TOKENS"),
        _SIZE,
        Column("marks", "State", _marks, on=COMMAND, brief=""),
    ),
    _key,
    Empty(
        "No queue has a rule.",
        "forkq limits set QUEUE 3, or the page of a queue: how many of its jobs run, and how fast "
        "they start.",
        "no job has been pushed to any queue, and no queue has a rule",
    ),
    facts=_facts,
    command="forkq limits show",
)  # fmt: skip
