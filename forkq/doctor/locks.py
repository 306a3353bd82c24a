"""The checks of jobs with features: locks whose jobs the leader must look for, and queues that
Sidekiq serves too.

Neither looks at all locks: a push that meets one in doubt has noted it, and at most 1,000 are noted
at a time (store/scripts/doubt.lua).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ..limits.patterns import decoded_names, matches_any
from ..store.process_info import live_processes
from ..store.steps import checked
from ..units import format_duration, plural
from ..wire.keys import keys_of
from ..wire.printable import shown_name
from ..wire.times import now
from .finding import Finding, listed
from .server import ExaminedServer

# The notes are kept for so many seconds from the newest on: store/scripts/doubt.lua.
_NOTED_FOR: Final = 86_400.0
# Seconds after which a leader has settled a note, with queues of up to 10,000 jobs.
_SETTLED_WITHIN: Final = 120.0


def locks(server: ExaminedServer) -> Finding:
    """Whether pushes have met locks in doubt for whose jobs no leader looks, or not soon enough."""
    keys = server.keys
    asked = (("HKEYS", keys.doubted), ("PTTL", keys.doubted), ("EXISTS", keys.leader))
    digests, ttl, leads = checked(server.connection.pipeline(asked))
    doubted = _doubted(server, digests)
    count = plural(doubted.total(), "lock")
    if not doubted:
        return Finding("ok", "locks", "no push has met a lock whose job must be looked for")
    age = _NOTED_FOR - ttl / 1000 if ttl > 0 else 0.0
    what = f"pushes have met {count} in doubt: {_named(doubted)}"
    why = "such a push counts as a duplicate, though the job that has the lock may be gone"
    if not leads:
        told = f"{what}; no clock leads that looks for their jobs"
        remedy = "start forkq; `forkq unique free` frees a lock by hand"
        return Finding("warn", "locks", told, why, remedy)
    if age > _SETTLED_WITHIN:
        told = f"{what}; they still are, {format_duration(age)} after the last such push"
        remedy = "see the log of the clock on its host; `forkq unique free` frees a lock by hand"
        return Finding("warn", "locks", told, why, remedy)
    return Finding("ok", "locks", f"{what}; the leader looks for their jobs")


def _doubted(server: ExaminedServer, digests: list[bytes]) -> Counter[str]:
    """How many of these locks are held by jobs that nothing confirms, by class."""
    found: Counter[str] = Counter()
    names = keys_of(server.keys.unique, digests)
    asked = [("HMGET", name, "jid", "sure", "class") for name in names]
    for reply in server.connection.pipeline(asked) if asked else ():
        if type(reply) is not list:
            continue  # a damaged key, which is no lock
        jid, sure, name = (each or b"" for each in reply)
        if jid and not (sure.isdigit() and int(sure) / 1000 >= now()):
            found[name.decode("utf-8", "replace")] += 1
    return found


def _named(doubted: Counter[str]) -> str:
    return listed(f"{shown_name(n)} (locks: {count:,})" for n, count in doubted.most_common())


def sidekiq(server: ExaminedServer) -> Finding:
    """Whether a process of Sidekiq fetches from queues that may have jobs with features."""
    marked = decoded_names(server.connection.call("ZRANGE", server.keys.marked, 0, -1))
    found = live_processes(server.connection, server.keys, quiet=False) if marked else []
    ruby = {name for info in found if not info.master for name in info.all_queues}
    shared = sorted(name for name in marked if matches_any(name, ruby))
    if not shared:
        return Finding("ok", "sidekiq", "no process of Sidekiq fetches jobs with features of forkq")
    queues = listed(map(shown_name, shared))
    what = f"processes of Sidekiq fetch from queues with jobs that have features of forkq: {queues}"
    why = "Sidekiq runs expired and cancelled jobs, and its ends free no lock and end no batch"
    return Finding("warn", "sidekiq", what, why, "give these jobs queues that only forkq serves")
