"""One job, by its jid: where it is, and cancelling it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ..cancelling import check_seconds, note_cancelled
from ..errors import InvalidJob, shown
from ..features.cancel.parts import (
    field_in,
    field_of_class,
    field_of_jid,
    fields_about,
    read_marks,
)
from ..servers import Server, Servers, first_found
from ..store.find_job import ALIVE, ALL, Found, Location
from ..store.find_job import find as find_job
from .door import servers as all_servers
from .entry import JobEntry, found_entry
from .features.locks import UniqueLock, lock_with_newest
from .running import in_sidekiq

Cancellation: TypeAlias = Literal["removed", "asked", "unknown", "pending"]

_LOOK_EVERY: Final = 0.05  # seconds
_GRACE: Final = 10.0  # seconds
# The answer of several shards is the first of these that one of them gives.
_STRONGEST_FIRST: Final[tuple[Cancellation, ...]] = ("removed", "asked", "pending", "unknown")


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
    """Whether the job runs or will run: it is leased, queued, scheduled, waits for a retry, or is
    the newest one of a lock (``on_duplicate="latest"``).

    False if it is dead or gone. A job whose process was killed is alive: its lease stays until it
    goes back to its queue, and it will run again. If Redis cannot be asked, this raises
    ServerUnavailable and does not answer False. A job that is nowhere costs a search through all
    queues, so ask only about jobs that you suspect.
    """
    servers = where or all_servers()

    def look(server: Server) -> Found | UniqueLock | None:
        return lock_with_newest(server, jid) or _in_redis(server, jid, ALIVE)

    return bool(first_found(servers, look) or first_found(servers, lambda s: in_sidekiq(s, jid)))


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


def _find(where: Server | Servers, jid: str) -> Found | None:
    """Looks in all of Redis first; then in the processes of Sidekiq, which hold jobs that stand
    nowhere else."""
    found = first_found(where, lambda server: _in_redis(server, jid, ALL))
    return found or first_found(where, lambda server: in_sidekiq(server, jid))


def _in_redis(server: Server, jid: str, locations: Sequence[Location]) -> Found | None:
    with server.connection() as connection:
        return find_job(connection, server.keys, jid, locations)


def cancel(
    jid: str,
    *,
    wait: float = 0.0,
    force: bool = False,
    grace: float | None = None,
    where: Server | Servers | None = None,
) -> Cancellation:
    """Cancels the job ``jid``, wherever it is. It returns at once, or waits up to ``wait`` seconds
    for what becomes of it.

    The leader removes a job that waits. One that runs gets a ``forkq.Cancelled``; with ``force``
    its child is killed if the job has not ended ``grace`` seconds later (10 by default). Returns
    "removed": the job has ended as cancelled; "asked": it runs, and has been told; "unknown": it
    neither waits nor runs; "pending": no leader has looked for it yet. Raises ForkqError if too
    many jobs are being cancelled, and ServerUnavailable; InvalidJob for ``grace`` without
    ``force``.
    """
    [found] = cancel_jobs([jid], wait=wait, force=force, grace=grace, where=where).values()
    return found


def cancel_jobs(
    jids: Iterable[str],
    *,
    wait: float = 0.0,
    force: bool = False,
    grace: float | None = None,
    where: Server | Servers | None = None,
) -> dict[str, Cancellation]:
    """Cancels these jobs as ``cancel`` does, all or none. Returns what has become of each after
    ``wait`` seconds at most. The errors are those of ``cancel``."""
    if isinstance(jids, str):
        raise InvalidJob(f"cancel_jobs({shown(jids)}): pass a list of jids, or use `cancel`")
    given = list(jids)
    for jid in given:
        if type(jid) is not str or not jid:
            raise InvalidJob(f"{shown(jid)} is no jid: pass what a push has returned")
    check_seconds("wait", wait)
    named, found = list(dict.fromkeys(given)), _servers(where)
    note_cancelled(found, [(field_of_jid(jid), jid) for jid in named], _grace(force, grace))
    return _outcomes(found, named, wait)


def cancel_class(
    name: str,
    *,
    force: bool = False,
    grace: float | None = None,
    where: Server | Servers | None = None,
) -> None:
    """Cancels all jobs of the class ``name`` that were made before now. The errors are those of
    ``cancel``."""
    if type(name) is not str or not name:
        raise InvalidJob(f"cancel_class({shown(name)}): pass the name of a class of jobs, a text")
    if set("*?") & set(name):
        raise InvalidJob(
            f"cancel_class({shown(name)}): a class is cancelled by its whole name, and this is a "
            "pattern; the sets and queues have `cancel_all(Filter(job=...))`"
        )
    note_cancelled(_servers(where), [(field_of_class(name), "")], _grace(force, grace))


def _grace(force: bool, grace: float | None) -> float | None:
    """How long a running job has to end before its child is killed; None: for ever. Raises
    InvalidJob for a time that means nothing."""
    if grace is not None and not force:
        raise InvalidJob("`grace` means nothing without `force`: only force=True kills a child")
    return (_GRACE if grace is None else grace) if force else None


def cancel_entries(entries: Sequence[JobEntry]) -> None:
    """Cancels jobs that were read, each on the server that has it. Those of one server are
    cancelled all or none. The errors are those of ``cancel``."""
    by_server: dict[Server, list[tuple[str, str]]] = defaultdict(list)
    for entry in entries:
        by_server[entry.server].append((field_of_jid(entry.jid), entry.jid))
    for server, fields in by_server.items():
        note_cancelled([server], fields, None)


def is_being_cancelled(jid: str, where: Server | Servers | None = None) -> bool:
    """Whether the job is cancelled, by its jid, and may still wait or run. Raises
    ServerUnavailable."""
    return any(_is_open(server, [jid])[0] for server in _servers(where))


def entry_is_being_cancelled(entry: JobEntry) -> bool:
    """Whether the job, or its class, is cancelled, and the job may still wait or run. Raises
    ServerUnavailable."""
    fields, key = fields_about(entry.job), entry.server.keys.cancelled
    [found] = entry.server.ask_leniently(("HMGET", key, *fields))
    notes = zip(fields, found or (), strict=False)
    marks = read_marks({name.encode(): note for name, note in notes if note is not None})
    return entry.location != "dead" and bool(field_in(marks, entry.job))


def cancelled_at(jid: str, where: Server | Servers | None = None) -> float | None:
    """When the job ended as cancelled, epoch seconds, if it did in the last day; else None. Raises
    ServerUnavailable."""
    found = [_ended_at(server, [jid])[0] for server in _servers(where)]
    return max((at for at in found if at is not None), default=None)


def _servers(where: Server | Servers | None) -> list[Server]:
    return [where] if isinstance(where, Server) else list(where or all_servers())


def _outcomes(
    servers: Sequence[Server], jids: Sequence[str], wait: float
) -> dict[str, Cancellation]:
    """What has become of the jobs, once that is known of all, or the time is up."""
    until, known = time.monotonic() + wait, dict[str, Cancellation]()
    while True:
        known |= _states(servers, [jid for jid in jids if known.get(jid, "pending") == "pending"])
        pending = [jid for jid in jids if known[jid] == "pending"]
        if not pending or time.monotonic() >= until:
            break
        time.sleep(_LOOK_EVERY)
    running = [jid for jid in pending if wait and any(_runs(server, jid) for server in servers)]
    return known | dict.fromkeys(running, "asked")


def _states(servers: Sequence[Server], jids: Sequence[str]) -> dict[str, Cancellation]:
    """What the servers know of each job; of several answers the strongest one."""
    answers = [_states_on(server, jids) for server in servers]
    return {
        jid: next(one for one in _STRONGEST_FIRST if any(found[jid] == one for found in answers))
        for jid in jids
    }


def _states_on(server: Server, jids: Sequence[str]) -> dict[str, Cancellation]:
    """What this server knows of the jobs. One step closes a note and remembers its job. So the
    notes are asked for first: a job that ends meanwhile is not unknown. One that has ended so
    before may be there again, by another push: as long as its note is open, that is not known."""
    are_open, ended = _is_open(server, jids), _ended_at(server, jids)
    return {
        jid: "pending" if is_open else "unknown" if at is None else "removed"
        for jid, is_open, at in zip(jids, are_open, ended, strict=True)
    }


def _runs(server: Server, jid: str) -> bool:
    with server.connection() as connection:
        return find_job(connection, server.keys, jid, ("running",)) is not None


def _is_open(server: Server, jids: Sequence[str]) -> list[bool]:
    if not jids:
        return []
    fields = map(field_of_jid, jids)
    [found] = server.ask_leniently(("HMGET", server.keys.cancelled, *fields))
    return [value is not None for value in found or [None] * len(jids)]


def _ended_at(server: Server, jids: Sequence[str]) -> list[float | None]:
    if not jids:
        return []
    [found] = server.ask_leniently(("ZMSCORE", server.keys.cancelled_lately, *jids))
    return [None if score is None else float(score) for score in found or [None] * len(jids)]
