"""The history of periodic jobs: one list of JSON lines per entry, newest first (keys.cron_runs).

The clock (cron_tick.lua), the child that ran the job (cron_ended.lua) and ``api.cron.run`` write
the lines. The API reads them, and merges the lines of one job by its jid.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ..features.marked import EndOutcome
from ..wire.payload import dumps
from ..wire.times import now

Event: TypeAlias = (
    Literal["enqueued", "skipped", "missed", "run by hand", "done", "retry", "dead", "dropped"]
    | EndOutcome
)

KEEP: Final = 100
EXPIRES: Final = 90 * 86_400


def line(event: Event, **more: Any) -> bytes:
    """One line of the history: ``event``, ``at`` (epoch seconds of writing), and each of these that
    is not None:

    ``tick``: the whole epoch second of the tick; for "missed", the last of several. ``jid``: the
    job; "skipped" and "missed" have none. ``elapsed``: seconds that the job ran ("done", "retry",
    "dead", "dropped"). ``running``: the jid of the job because of which a tick was "skipped";
    "" if its throttle has left it out.
    ``count``: how many ticks were "missed"; left out if they were too many to count. ``since``: the
    first of them. ``why``: what kept a single tick from being enqueued ("missed").
    """
    known = {key: value for key, value in more.items() if value is not None}
    return dumps({"event": event, "at": now(), **known})
