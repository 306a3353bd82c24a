"""What became of periodic jobs: one list of JSON lines per entry, newest first (keys.cron_runs).

Written by the clock (cron_tick.lua), by the child that ran the job (cron_ended.lua) and by
``Cron.run``, which runs an entry by hand. The API reads them, and puts the lines of one job
together by its jid.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from ..wire.payload import dumps
from ..wire.times import now

Event: TypeAlias = Literal[
    "enqueued", "skipped", "missed", "run by hand", "done", "retry", "dead", "dropped"
]

KEEP: Final = 100
EXPIRES: Final = 90 * 86_400


def line(event: Event, **more: Any) -> bytes:
    """One line: ``event``, ``at`` (epoch seconds, when it was written) and what of these is known:

    ``tick``: the whole epoch second that the job was for; of "missed", the last of several.
    ``jid``: the job; in all but "skipped" and "missed", which have none.
    ``elapsed``: seconds that the job ran ("done", "retry", "dead", "dropped").
    ``running``: the jid that stood in the way of a "skipped" tick.
    ``count``: how many ticks were "missed"; left out if they are more than were worth counting.
    ``since``: the first of them.
    ``why``: what kept a single tick from being enqueued ("missed").

    What is given as None is left out.
    """
    known = {key: value for key, value in more.items() if value is not None}
    return dumps({"event": event, "at": now(), **known})
