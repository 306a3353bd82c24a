"""The checks of flows that stand behind dead steps, and of jobs that wait for signals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ..errors import MalformedPayload
from ..features.steps.parts import STAYS_FOR, event_in, since_in
from ..store.steps import checked
from ..units import format_duration, plural
from ..wire.marks import KEY, needs_in
from ..wire.payload import loads_head
from ..wire.times import now
from .finding import Finding, listed
from .server import ExaminedServer

# The latest of those batches, and the scheduled jobs that are due first.
_MOST: Final = 1000
# Seconds. In a flow that changed a shorter time ago, steps may run.
_STILL: Final = 600.0
_PAGE: Final = 50
# Bytes and seconds that the scheduled jobs may take.
_MOST_BYTES: Final = 32 << 20
_MOST_SECONDS: Final = 5.0


class _Wait(NamedTuple):
    event: str
    jid: str


def flows(server: ExaminedServer) -> Finding:
    """Which flows have dead steps, and have not changed for a while: others wait behind those."""
    keys, pipeline = server.keys, server.connection.pipeline
    until = f"{now() - _STILL:.3f}"
    asked = ("ZRANGE", keys.batches, until, "-inf", "BYSCORE", "REV", "LIMIT", 0, _MOST)
    [names] = checked(pipeline([asked]))
    fields = ("flow", "state", "total", "done", "dead", "other")
    rows = pipeline([("HMGET", name, *fields) for name in names]) if names else []
    still = [row for row in rows if _is_flow(row) and _is_held(row)]
    if not still:
        looked = plural(sum(map(_is_flow, rows)), "flow")
        said = f"{looked} without a change for 10 min: none stands behind a dead step"
        return Finding("ok", "flows", said)
    dead = plural(sum(int(row[4]) for row in still), "dead step")
    what = f"{plural(len(still), 'flow')} with {dead}, and without a change for 10 min"
    remedy = "`forkq flows` shows them, `forkq flows retry` tries their dead steps again"
    return Finding("warn", "flows", what, "what waits for a dead step does not start", remedy)


def _is_flow(row: Any) -> bool:
    return type(row) is list and row[0] is not None


def _is_held(row: Sequence[bytes | None]) -> bool:
    """Whether the flow has dead steps, and others that have not ended."""
    try:
        total, *ended = (int(found or 0) for found in row[2:])
    except ValueError:  # another program has written it
        return False
    return row[1] == b"sealed" and ended[1] > 0 and sum(ended) < total


def signals(server: ExaminedServer) -> Finding:
    """Which jobs wait for a signal for a longer time than one stays, and which no signal wakes."""
    waits, looked = _waits(server)
    if not waits:
        return Finding("ok", "signals", f"looked at {looked}: none waits for a signal")
    keys, pipeline = server.keys, server.connection.pipeline
    found = pipeline([("HGET", keys.event(one.event), one.jid) for one in waits])
    since = [since_in(raw) if type(raw) is bytes else None for raw in found]
    longest = max((now() - at for at in since if at is not None), default=0.0)
    names = Counter(one.event.partition(":")[0] for one in waits)
    each = listed(f"{name} ({count:,})" for name, count in names.most_common())
    what = f"{plural(len(waits), 'job waits', 'jobs wait')} for signals: {each}; looked at {looked}"
    remedy = "`forkq steps` lists them, and `forkq signal` sends one by hand"
    if lost := since.count(None):
        what = f"{what}; no signal wakes {lost:,} of these"
        return Finding("warn", "signals", what, "they go on at their time-out", remedy)
    if longest > STAYS_FOR:
        what = f"{what}; the first has waited for {format_duration(longest)}"
        why = "the name or the key of its signal may be another one"
        return Finding("warn", "signals", what, why, remedy)
    return Finding("ok", "signals", f"{what}; the longest for {format_duration(longest)}")


def _waits(server: ExaminedServer) -> tuple[list[_Wait], str]:
    """The waits of the jobs that are due first, and how many jobs were looked at."""
    found, looked = list[_Wait](), 0
    for raw in _scheduled(server):
        looked += 1
        try:
            job = loads_head(raw)
        except MalformedPayload:
            continue
        if event := event_in(needs_in(job.get(KEY))):
            found.append(_Wait(event, str(job.get("jid"))))
    [total] = checked(server.connection.pipeline([("ZCARD", server.keys.schedule)]))
    of = f"{looked:,} of " if looked < total else ""
    return found, f"{of}{plural(max(looked, total), 'scheduled job')}"


def _scheduled(server: ExaminedServer) -> Iterator[bytes]:
    end, size = time.monotonic() + _MOST_SECONDS, 0
    for first in range(0, _MOST, _PAGE):
        asked = ("ZRANGE", server.keys.schedule, first, first + _PAGE - 1)
        [page] = checked(server.connection.pipeline([asked]))
        yield from page
        size += sum(map(len, page))
        if len(page) < _PAGE or size > _MOST_BYTES or time.monotonic() > end:
            return
