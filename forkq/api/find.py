"""One job, by its jid."""

from __future__ import annotations

from ..default_client import default
from ..store.find_job import ALIVE, Found
from ..store.find_job import find as look_up


def find(jid: str) -> Found | None:
    """Where the job is, or None if it is nowhere: done, discarded, deleted, or never pushed.

    Exact even while it moves (see lookup.find). Raises ServerUnavailable.
    """
    client = default()
    with client.connection() as connection:
        return look_up(connection, client.keys, jid)


def is_alive(jid: str) -> bool:
    """Whether the job runs, or will: it is leased, queued, scheduled or awaits a retry.

    False if it is dead or gone. It tells from Redis alone, so a job whose process was killed is
    alive, and rightly so: it will run again. Raises ServerUnavailable, so that a Redis that cannot
    be asked is not taken for a job that is gone. Reads all that waits if the job is not found: ask
    about the few that are suspicious.
    """
    client = default()
    with client.connection() as connection:
        return look_up(connection, client.keys, jid, ALIVE) is not None
