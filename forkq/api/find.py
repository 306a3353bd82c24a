"""One job, by its jid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..servers import Server, Servers, first_found
from ..store.find_job import ALIVE, ALL, Found, Location
from ..store.find_job import find as find_job
from .door import servers as all_servers
from .entry import JobEntry, found_entry
from .running import in_sidekiq


@dataclass(frozen=True, slots=True)
class RanTwice:
    """A job that ended in the process ``identity`` after it had been given to another host, and
    when that process knew (epoch seconds)."""

    identity: str
    at: float


def find(jid: str, where: Server | Servers | None = None) -> Found | None:
    """Finds a job. Returns where it is; None if it is nowhere: done, discarded, deleted, or never
    pushed.

    Finds a job also while it moves from one place to another. A job that a process of Sidekiq runs
    is found from one of its heartbeats to another. Looks on one shard after the other, or ``where``
    it is told. Raises ServerUnavailable.
    """
    return _find(where or all_servers(), jid)


def is_alive(jid: str, where: Server | Servers | None = None) -> bool:
    """Whether the job runs or will run: it is leased, queued, scheduled or waits for a retry.

    False if it is dead or gone. A job whose process was killed is alive: its lease stays until it
    goes back to its queue, and it will run again. If Redis cannot be asked, this raises
    ServerUnavailable and does not answer False. A job that is nowhere costs a search through all
    queues, so ask only about jobs that you suspect.
    """
    return _find(where or all_servers(), jid, ALIVE) is not None


def ran_twice(jid: str, where: Server | Servers | None = None) -> RanTwice | None:
    """What is known of a job that ran twice, for a day; None if nothing is.

    That happens if its host was cut off from Redis while it ran, so that another host got it. The
    job may be running, or done, or anywhere else. Raises ServerUnavailable.
    """
    return first_found(where or all_servers(), lambda server: _ran_twice(server, jid))


def _ran_twice(server: Server, jid: str) -> RanTwice | None:
    [note] = server.ask_leniently(("GET", server.keys.ran_twice_of(jid)))
    identity, _, at = str(note or b"", "utf-8", "replace").rpartition(" ")
    try:
        return RanTwice(identity, float(at))
    except ValueError:  # no note, or another program's
        return None


def entry(jid: str, where: Server | Servers | None = None) -> JobEntry | None:
    """The job, wherever it waits or runs, as an entry that can be acted on; None if it is nowhere.

    The actions of a running job return False: only its process may end it. It is searched for as by
    ``find``.
    """

    def look(server: Server) -> JobEntry | None:
        found = _find(server, jid)
        return None if found is None else found_entry(server, found)

    return first_found(where or all_servers(), look)


def find_among(
    server: Server, jid: str, locations: Sequence[Location], queues: Sequence[str]
) -> JobEntry | None:
    """The job of that id, if it is in one of these places; ``queues`` are those that are read. A
    job that runs may run in a process of Sidekiq."""
    with server.connection() as connection:
        found = find_job(connection, server.keys, jid, locations, queues)
    if found is None and "running" in locations:
        found = in_sidekiq(server, jid)
    return None if found is None else found_entry(server, found)


def _find(where: Server | Servers, jid: str, locations: Sequence[Location] = ALL) -> Found | None:
    """Looks in all of Redis first; then in the processes of Sidekiq, which hold jobs that stand
    nowhere else."""

    def in_redis(server: Server) -> Found | None:
        with server.connection() as connection:
            return find_job(connection, server.keys, jid, locations)

    found = first_found(where, in_redis)
    return found or first_found(where, lambda server: in_sidekiq(server, jid))
