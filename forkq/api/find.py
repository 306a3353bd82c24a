"""One job, by its jid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..store.find_job import ALIVE, ALL, Found, Location
from ..store.find_job import find as find_job
from .entry import JobEntry, found_entry
from .query import ask_leniently, keys, session
from .running import in_sidekiq
from .shards import first_found


@dataclass(frozen=True, slots=True)
class RanTwice:
    """A job that ended in the process ``identity`` after it had been given to another host, and
    when that process knew (epoch seconds)."""

    identity: str
    at: float


def find(jid: str) -> Found | None:
    """Where the job is; None if it is nowhere: done, discarded, deleted, or never pushed.

    Finds a job also while it moves from one place to another. A job that a process of Sidekiq runs
    is found from one of its heartbeats to another. Raises ServerUnavailable.
    """
    return _find(jid)


def is_alive(jid: str) -> bool:
    """Whether the job runs or will run: it is leased, queued, scheduled or waits for a retry.

    False if it is dead or gone. A job whose process was killed is alive: its lease stands until it
    goes back to its queue, and it will run again. If Redis cannot be asked, this raises
    ServerUnavailable and does not answer False. A job that is nowhere costs a search through all
    queues, so ask only about jobs that you suspect.
    """
    return _find(jid, ALIVE) is not None


def ran_twice(jid: str) -> RanTwice | None:
    """What is known of a job that ran twice, for a day; None if nothing is.

    That happens if its host was cut off from Redis while it ran, so that another host got it. The
    job may be running, or done, or anywhere else. Raises ServerUnavailable.
    """
    return first_found(lambda: _ran_twice(jid))


def _ran_twice(jid: str) -> RanTwice | None:
    [note] = ask_leniently(("GET", keys().ran_twice_of(jid)))
    identity, _, at = str(note or b"", "utf-8", "replace").rpartition(" ")
    try:
        return RanTwice(identity, float(at))
    except ValueError:  # no note, or another program's
        return None


def _find(jid: str, locations: Sequence[Location] = ALL) -> Found | None:
    """Looks on one shard after the other, or on the one that is chosen; then in the processes of
    Sidekiq, which hold jobs that stand nowhere else."""
    return first_found(lambda: _in_redis(jid, locations)) or first_found(lambda: in_sidekiq(jid))


def _in_redis(jid: str, locations: Sequence[Location]) -> Found | None:
    here = session()
    with here.connection() as connection:
        return find_job(connection, here.keys, jid, locations)


def entry(jid: str) -> JobEntry | None:
    """The job, wherever it waits or runs, as an entry that can be acted on; None if it is nowhere.

    The actions of a running job return False: only its process may end it. Searches as ``find``.
    """
    return first_found(lambda: _entry(jid))


def _entry(jid: str) -> JobEntry | None:
    found = find(jid)
    return None if found is None else found_entry(found)
