"""The counts of Redis as of now, as far as this host knows them.

Children add their counts to those in Redis with each heartbeat. What a child of the tree that runs
here has counted since, its master knows. So ``forkq stats`` shows what ``forkq status`` shows, and
no job and no heartbeat costs Redis more.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from .. import api
from ..config.config import Config
from ..errors import ForkqError

_LOOKS = 5
_COUNTS = ("processed", "failed")


def with_local_counts(server: api.Server, found: api.Stats, config: Config) -> api.Stats | None:
    """``found`` with what the children of this host's tree have counted since their last
    heartbeats; None if no tree runs here, or it may not be asked."""
    children = _children(config) if hasattr(os, "fork") else []
    for _ in range(_LOOKS if children else 0):
        before, after, counts, busy = _look(server, children)
        if before == after:  # else a child has flushed in between: look again
            return _added(found, children, after, counts, busy)
    return None


def _children(config: Config) -> list[dict[str, Any]]:
    """What the master of this host says of its children, as of now."""
    from ..master.pidfile import running_master  # noqa: PLC0415 - there is none on Windows
    from .tree_status import fresh_status  # noqa: PLC0415

    try:
        master = running_master(config.pidfile)
        status = None if master is None else fresh_status(config, master)
    except (ForkqError, OSError):
        return []
    children = [] if status is None else status["children"]
    return [child for child in children if child["concurrency"] and "identity" in child]


def _look(
    server: api.Server, children: list[dict[str, Any]]
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """What each child has flushed, before and after the look at the counters; the counters; and how
    many jobs the record of each child says that it runs."""
    names = [child["identity"] for child in children]
    keys = server.keys
    flushed = [("HMGET", keys.flushed(name), *_COUNTS) for name in names]
    replies = server.ask(
        *flushed,
        *(("GET", keys.stat(name)) for name in _COUNTS),
        *flushed,
        *(("HGET", keys.process(name), "busy") for name in names),
    )
    size, rest = len(names), replies[len(names) :]
    return replies[:size], rest[2 : 2 + size], rest[:2], rest[2 + size :]


def _added(
    found: api.Stats,
    children: list[dict[str, Any]],
    flushed: list[Any],
    counts: list[Any],
    busy: list[Any],
) -> api.Stats:
    """A child without a note of its flushes uses another Redis, or has not begun."""
    more = [0, 0, 0]
    for child, (processed, failed), running in zip(children, flushed, busy, strict=True):
        if processed is not None:
            more[0] += max(0, child["processed"] - int(processed))
            more[1] += max(0, child["failed"] - int(failed))
            more[2] += child["busy"] - int(running or 0)
    return replace(
        found,
        processed=int(counts[0] or 0) + more[0],
        failed=int(counts[1] or 0) + more[1],
        busy=max(0, found.busy + more[2]),
    )
