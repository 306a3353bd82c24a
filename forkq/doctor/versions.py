"""Checks which versions of forkq's payloads the living processes know, and whether a job waits for
one that no process knows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from ..errors import MalformedPayload, shown
from ..store.process_info import ProcessInfo, live_processes
from ..wire.marks import KEY, POSTPONED_FOR, VERSION, needs_newer
from ..wire.payload import loads_head
from ..wire.printable import shown_name
from ..wire.times import now
from .finding import Finding, listed
from .server import ExaminedServer

# A job that was put back for its version is due within this time, so it is read of the schedule.
_DUE_WITHIN: Final = 60.0
# How many jobs one command reads, and what all of them may be: jobs, bytes and seconds.
_PAGE: Final = 10
_MOST_JOBS: Final = 1000
_MOST_BYTES: Final = 32 << 20
_MOST_SECONDS: Final = 5.0
_NONE_FETCHES: Final = f"no process fetches; this forkq knows version {VERSION} of payloads"


def versions(server: ExaminedServer) -> Finding:
    """Whether all processes that fetch know the same version, and one of them the version of each
    job that was postponed. Sidekiq's processes know none."""
    found = live_processes(server.connection, server.keys, quiet=False)
    known = [info for info in found if info.knows is not None]
    highest = max((info.knows or 0 for info in known), default=VERSION)
    if waiting := _that_need_more(server, highest):
        return _unserved(waiting, highest)
    if any(info.knows != highest for info in known):
        return _mixed(known, highest)
    if not known:
        return Finding("ok", "versions", _NONE_FETCHES)
    what = f"all processes that fetch know version {highest} of payloads: {len(known)}"
    return Finding("ok", "versions", what)


def _unserved(waiting: Counter[str], highest: int) -> Finding:
    jobs = listed(f"{shown_name(v)} (jobs: {count:,})" for v, count in waiting.most_common())
    what = (
        f"no process knows the version of payloads that jobs need: {jobs}; the highest is {highest}"
    )
    why = f"each is buried {POSTPONED_FOR / 3600:.0f} hours after it was first put back"
    remedy = "deploy the forkq that pushed them to the hosts that run jobs"
    return Finding("warn", "versions", what, why, remedy)


def _mixed(known: list[ProcessInfo], highest: int) -> Finding:
    older = Counter(info.hostname for info in known if info.knows != highest)
    hosts = listed(f"{shown_name(host)} (processes: {n})" for host, n in sorted(older.items()))
    what = f"not all processes know version {highest} of payloads; older ones run on {hosts}"
    why = "they put back each job that needs it: it waits for another process"
    remedy = "end the rolling deploy: the same forkq on all hosts, then `forkq restart` there"
    return Finding("warn", "versions", what, why, remedy)


def _that_need_more(server: ExaminedServer, highest: int) -> Counter[str]:
    """How many jobs at the head of the schedule need a higher version, by that version."""
    found: Counter[str] = Counter()
    for payload in _postponed(server):
        try:
            marks = loads_head(payload).get(KEY)
        except MalformedPayload:
            continue  # it is buried when it is fetched
        if type(marks) is dict and needs_newer(marks, highest):
            found[shown(marks["v"])] += 1
    return found


def _postponed(server: ExaminedServer) -> Iterator[bytes]:
    """The jobs that are due next, until enough was read."""
    until, end, read = now() + _DUE_WITHIN, time.monotonic() + _MOST_SECONDS, 0
    for at in range(0, _MOST_JOBS, _PAGE):
        page: Any = server.connection.call(
            "ZRANGE", server.keys.schedule, "-inf", until, "BYSCORE", "LIMIT", at, _PAGE
        )
        yield from page
        read += sum(map(len, page))
        if len(page) < _PAGE or read > _MOST_BYTES or time.monotonic() > end:
            return
