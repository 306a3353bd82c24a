"""Periodic jobs at run time: listing, adding, pausing, and running one by hand.

The clocks enqueue the entries that are in Redis: those that apps have published from their code
and their forkq.toml, and those that were added here.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from contextlib import suppress
from datetime import tzinfo
from typing import Any, Final

from ..cron import history as lines
from ..cron.entry import MAX_CLOCK_ERROR, Entry, Missed, Overlap
from ..errors import ForkqError, InvalidSchedule, ServerUnavailable
from ..every import template_of
from ..servers import Server
from ..store.scripts import CRON_PUBLISH, CRON_REBASE, SET_ADD
from ..wire.payload import Payload
from .cron_entries import Periodic, Run, load, load_all, merged, running_among, unknown
from .door import server as default_server
from .door import servers

__all__ = [
    "Periodic",
    "Run",
    "add",
    "get",
    "has_leader",
    "history",
    "list",
    "pause",
    "remove",
    "resume",
    "run",
]

ORIGIN: Final = "api"

_ATTEMPTS: Final = 5


def list(server: Server | None = None) -> builtins.list[Periodic]:  # noqa: A001 - cron.list() says it best
    """Every periodic job, by name. A definition that this forkq cannot read is left out; the clock
    names it in its log."""
    return load_all(server or default_server())


def has_leader(server: Server | None = None) -> bool:
    """Whether a clock leads the cluster. Without a leader no periodic job is enqueued."""
    server = server or default_server()
    [exists] = server.ask(("EXISTS", server.keys.leader))
    return bool(exists)


def get(name: str, server: Server | None = None) -> Periodic:
    """The periodic job of that name.

    Raises ForkqError, with the nearest name, if there is none; InvalidSchedule if this forkq cannot
    read its definition.
    """
    return load(server or default_server(), name)


def add(
    name: str,
    cron: str,
    job: str | Any,
    *,
    args: Sequence[Any] = (),
    tz: str | tzinfo = "UTC",
    overlap: Overlap = "allow",
    missed: Missed = "once",
    jitter: float = 0,
    enabled: bool = True,
    server: Server | None = None,
    **options: Any,
) -> Periodic:
    """Adds a periodic job, or replaces one that was added at run time. Returns it.

    ``job`` is a job class or function, or a name; the name may be that of another app's job.
    Without a server it is added on the shard of the job's queue. ``options`` are those of a job
    (``queue``, ``retry``, ...) and payload keys of your own. The other arguments are those of
    ``forkq.every``. Ticks before now are not enqueued.

    Raises InvalidSchedule or InvalidJob for what could never run, and ForkqError for a name that is
    defined in an app's code or forkq.toml.
    """
    entry = Entry.make(
        name=name,
        cron=cron,
        job=template_of(job, args, options),
        tz=tz,
        overlap=overlap,
        missed=missed,
        jitter=jitter,
        enabled=enabled,
        origin=ORIGIN,
    )
    server = server or servers().of_queue(entry.job["queue"], name)
    server.bounds.dumps(entry.job)
    _change(server, name, entry)
    return load(server, name)


def remove(name: str, server: Server | None = None) -> None:
    """Removes a periodic job that was added at run time, or whose app does not run, with its pause
    and its history. Raises ForkqError if there is none, or if the app that defines it runs."""
    server = server or default_server()
    _change(server, name, None)
    keys = server.keys
    server.ask(("SREM", keys.cron_paused, name), ("DEL", keys.cron_runs(name)))


def pause(name: str, server: Server | None = None) -> bool:
    """Stops enqueueing its ticks until ``resume``. Returns whether it was not paused before. Raises
    as ``get``."""
    server = server or default_server()
    load(server, name)
    return bool(server.run(SET_ADD, (server.keys.cron_paused,), (name,)))


def resume(name: str, server: Server | None = None) -> bool:
    """Starts enqueueing its ticks again, from the next one on; those of the pause are left out.
    Returns whether it was paused. Raises as ``get``."""
    server = server or default_server()
    for _ in range(_ATTEMPTS):
        periodic = load(server, name)
        if not periodic.paused:
            return False
        # The last tick first: a clock that reads in between must find no missed ticks.
        if _rebased(server, periodic, int(server.now())):
            [removed] = server.ask(("SREM", server.keys.cron_paused, name))
            return bool(removed)
    raise _keeps_changing(name)


def run(name: str, server: Server | None = None) -> str:
    """Pushes its job now, even if it is paused. Its ticks stay as they are.

    Returns the jid, or "" if a client middleware vetoed the push. Raises as ``get``.
    """
    server = server or default_server()
    entry = load(server, name).entry
    job: Payload = {**entry.job, "forkq": {"cron": name, "by_hand": True}}
    jid = server.push(job)
    if jid is None:
        return ""
    runs = server.keys.cron_runs(name)
    with suppress(ServerUnavailable):  # the job is pushed; only its line in the history is missing
        server.ask(
            ("LPUSH", runs, lines.line("run by hand", jid=jid)),
            ("LTRIM", runs, 0, lines.KEEP - 1),
            ("EXPIRE", runs, lines.EXPIRES),
        )
    return jid


def history(name: str, limit: int = 20, server: Server | None = None) -> builtins.list[Run]:
    """The outcomes of its last ticks and of runs by hand, newest first, at most ``limit``. Redis
    keeps about a hundred. Raises as ``get``."""
    server = server or default_server()
    load(server, name)
    [found] = server.ask(("LRANGE", server.keys.cron_runs(name), 0, -1))
    return merged(found)[:limit]


def _rebased(server: Server, periodic: Periodic, moment: int) -> bool:
    """Moves the last tick of an entry to ``moment``. False if a clock has moved the last tick
    meanwhile."""
    before = "" if periodic.last is None else periodic.last
    after = max(periodic.last or 0, moment)
    change = (periodic.name, before, after)
    return bool(server.run(CRON_REBASE, [server.keys.cron_last], change))


def _change(server: Server, name: str, entry: Entry | None) -> None:
    """Writes a definition; removes it if ``entry`` is None. Raises ForkqError."""
    for _ in range(_ATTEMPTS):
        [before] = server.ask(("HGET", server.keys.cron, name))
        if before is None and entry is None:
            raise unknown(name, [found.name for found in load_all(server)])
        if before is not None:
            _refuse_app_entry(server, name, before, removes=entry is None)
        if _written(server, name, before, entry):
            return
    raise _keeps_changing(name)


def _written(server: Server, name: str, before: bytes | None, entry: Entry | None) -> bool:
    """Writes ``entry`` in place of ``before``. False if the definition has changed meanwhile."""
    mode = "afresh" if before is None or _ticks_differ(before, entry) else "kept"
    after = b"" if entry is None else entry.encode()
    names = (server.keys.cron, server.keys.cron_last, server.keys.cron_pending)
    change = (MAX_CLOCK_ERROR, name, before or b"", after, mode)
    return not server.run(CRON_PUBLISH, names, change)


def _ticks_differ(before: bytes, entry: Entry | None) -> bool:
    try:
        return entry is None or entry.restarts(Entry.decode(before))
    except InvalidSchedule:
        return True


def _refuse_app_entry(server: Server, name: str, before: bytes, *, removes: bool) -> None:
    """Raises ForkqError if an app defines the entry, unless the app does not run and the entry is
    to be removed. A definition that cannot be read may be replaced."""
    try:
        old = Entry.decode(before)
    except InvalidSchedule:
        return
    if old.service is None:
        return
    kind, _, _ = old.origin.partition(":")
    where = "the code" if kind == "code" else "the forkq.toml"
    defined = f"the periodic job {name!r} is defined by {where} of {old.service or 'an app'}"
    if running_among(server, [old.service]):
        other = "" if removes else ", or choose another name"
        raise ForkqError(f"{defined}, which runs: change it there or pause it{other}")
    if not removes:
        raise ForkqError(f"{defined}, which does not run: remove it first")


def _keeps_changing(name: str) -> ForkqError:
    return ForkqError(f"the periodic job {name!r} is being changed by other processes; try again")
