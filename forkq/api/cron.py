"""Periodic jobs at run time: looking at them, adding, pausing, running one by hand.

What stands in Redis is what the clocks go by: entries that the apps have published from their code
and their forkq.toml, and those that were added here.
"""

from __future__ import annotations

import builtins
import difflib
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any, Final

from ..client import default
from ..cron import history as lines
from ..cron.entry import ASTRAY, Entry, Missed, Overlap
from ..errors import ForkqError, InvalidSchedule, ServerUnavailable
from ..every import template_of
from ..store.scripts import CRON_PUBLISH, CRON_REBASE, SET_ADD
from ..store.services import running_services
from ..wire.payload import Payload
from .cron_runs import Run, merged
from .query import ask, ask_leniently, keys, server_now

ORIGIN: Final = "api"

_ATTEMPTS: Final = 5
_MOST_NAMES: Final = 10


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic job as it stands: its definition, whether somebody has ``paused`` it, the ``last``
    tick that was dealt with (whole epoch seconds; None before the first), whether it is ``asleep``
    because nobody runs the app that defines it, and the ``latest`` that is known of its runs."""

    entry: Entry
    paused: bool
    last: int | None
    asleep: bool = False
    latest: Run | None = None

    @property
    def name(self) -> str:
        """What it is called, in the whole cluster."""
        return self.entry.name

    @property
    def resting(self) -> bool:
        """Whether no tick of it is enqueued: it is paused, asleep, or defined with ``enabled =
        False``."""
        return self.paused or self.asleep or not self.entry.enabled

    def ticks(self, count: int) -> builtins.list[int]:
        """Its next ticks from now on, were it not resting."""
        schedule, after = self.entry.schedule, time.time()
        return schedule.ticks(after, float("inf"), count)


def list() -> builtins.list[Periodic]:  # noqa: A001 - cron.list() says it best
    """Every periodic job, by name. A definition that this forkq cannot read is left out; the clock
    names it in its log."""
    found = (_readable(*defined) for defined in _definitions())
    return _looked_after([one for one in found if one is not None])


def led() -> bool:
    """Whether a clock leads: if none does, nothing is enqueued."""
    [there] = ask(("EXISTS", keys().leader))
    return bool(there)


def get(name: str) -> Periodic:
    """The periodic job of that name. Raises ForkqError, with the nearest name, if there is none;
    InvalidSchedule if this forkq cannot read its definition."""
    found = {defined: (raw, paused, last) for defined, raw, paused, last in _definitions()}
    if name not in found:
        raise ForkqError(_unknown(name, builtins.list(found)))
    raw, paused, last = found[name]
    [one] = _looked_after([Periodic(Entry.decode(raw), paused, last)])
    return one


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
    **options: Any,
) -> Periodic:
    """Adds a periodic job, or replaces one that was added here; no tick before now counts.

    ``job`` is a job class or function, or a registered name (any name, if the job is another
    app's); ``options`` are those of a job (``queue``, ``retry``, ...) and payload keys of your
    own; the rest is as for ``forkq.every``. Raises InvalidSchedule or InvalidJob for what could
    never run, ForkqError for a name that is defined in code or in a forkq.toml.
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
    _change(name, entry)
    return get(name)


def remove(name: str) -> None:
    """Removes a periodic job that was added here, or was left behind by an app that does not run,
    with its pause and its history. Raises ForkqError for one of an app that runs."""
    _change(name, None)
    ask(("SREM", keys().cron_paused, name), ("DEL", keys().cron_runs(name)))


def pause(name: str) -> bool:
    """Lets its ticks pass by until ``resume``. Returns whether it was not paused before."""
    get(name)
    with default().connection() as connection:
        return bool(connection.script(SET_ADD, (keys().cron_paused,), (name,)))


def resume(name: str) -> bool:
    """Lets it go on with the next tick; nothing is made up for. Returns whether it was paused."""
    for _ in range(_ATTEMPTS):
        periodic = get(name)
        if not periodic.paused:
            return False
        # The last tick first: a clock that looks in between must find nothing to make up for.
        if _rebased(periodic, int(server_now())):
            [removed] = ask(("SREM", keys().cron_paused, name))
            return bool(removed)
    raise ForkqError(_restless(name))


def run(name: str) -> str:
    """Pushes its job now, outside of the schedule, whose ticks stay as they are, be it paused or
    not. Returns the jid, or "" if a client middleware vetoed it."""
    entry = get(name).entry
    job: Payload = {**entry.job, "forkq": {"cron": name, "by_hand": True}}
    jid = default().push(job)
    if jid is None:
        return ""
    runs = keys().cron_runs(name)
    with suppress(ServerUnavailable):  # the job is on its way: that is what was asked for
        ask(
            ("LPUSH", runs, lines.line("run by hand", jid=jid)),
            ("LTRIM", runs, 0, lines.KEEP - 1),
            ("EXPIRE", runs, lines.EXPIRES),
        )
    return jid


def history(name: str, limit: int = 20) -> builtins.list[Run]:
    """What became of its last ticks and of runs by hand, newest first; about a hundred are kept."""
    get(name)
    [found] = ask(("LRANGE", keys().cron_runs(name), 0, -1))
    return merged(found)[:limit]


def _definitions() -> builtins.list[tuple[str, bytes, bool, int | None]]:
    """Name, definition, whether paused, and last tick of every periodic job, by name."""
    definitions, paused, lasts = ask(
        ("HGETALL", keys().cron), ("SMEMBERS", keys().cron_paused), ("HGETALL", keys().cron_last)
    )
    return [
        (name.decode("utf-8", "replace"), raw, name in paused, _whole(lasts.get(name)))
        for name, raw in sorted(definitions.items())
    ]


def _readable(name: str, raw: bytes, paused: bool, last: int | None) -> Periodic | None:
    try:
        return Periodic(Entry.decode(raw), paused, last)
    except InvalidSchedule:
        return None


def _looked_after(found: builtins.list[Periodic]) -> builtins.list[Periodic]:
    """These, with what two more keys each say: whether their app runs, and their latest run."""
    services = {one.entry.service for one in found if one.entry.service is not None}
    asleep = services - _running(services)
    lines = ask_leniently(*(("LINDEX", keys().cron_runs(one.name), 0) for one in found))
    return [
        replace(one, asleep=one.entry.service in asleep, latest=_run(raw))
        for one, raw in zip(found, lines, strict=True)
    ]


def _running(services: Collection[str]) -> frozenset[str]:
    """Which of these services run, as their clocks say."""
    if not services:
        return frozenset()
    with default().connection() as connection:
        return running_services(connection, keys(), services)


def _run(raw: bytes | None) -> Run | None:
    return next(iter(merged([raw] if raw else [])), None)


def _whole(stamp: bytes | None) -> int | None:
    return int(stamp) if stamp is not None and stamp.isdigit() else None


def _rebased(periodic: Periodic, moment: int) -> bool:
    """Moves its last tick to ``moment``, unless a clock moves it under our hands."""
    before = "" if periodic.last is None else periodic.last
    after = max(periodic.last or 0, moment)
    with default().connection() as connection:
        return bool(
            connection.script(CRON_REBASE, [keys().cron_last], (periodic.name, before, after))
        )


def _change(name: str, entry: Entry | None) -> None:
    """Writes or removes a definition, unless it changes under our hands. Raises ForkqError."""
    for _ in range(_ATTEMPTS):
        [before] = ask(("HGET", keys().cron, name))
        if before is None and entry is None:
            raise ForkqError(_unknown(name, [found.name for found in list()]))
        if before is not None:
            _refuse_others(name, before, removes=entry is None)
        if _written(name, before, entry):
            return
    raise ForkqError(_restless(name))


def _written(name: str, before: bytes | None, entry: Entry | None) -> bool:
    mode = "afresh" if before is None or _other_times(before, entry) else "kept"
    after = b"" if entry is None else entry.encode()
    with default().connection() as connection:
        names = (keys().cron, keys().cron_last, keys().cron_pending)
        change = (ASTRAY, name, before or b"", after, mode)
        return not connection.script(CRON_PUBLISH, names, change)


def _other_times(before: bytes, entry: Entry | None) -> bool:
    try:
        return entry is None or entry.begins_anew(Entry.decode(before))
    except InvalidSchedule:
        return True


def _refuse_others(name: str, before: bytes, *, removes: bool) -> None:
    """Raises ForkqError if it is an app's definition, unless that is gone and this ``removes`` it.
    What nobody can read is nobody's, and may be replaced."""
    try:
        old = Entry.decode(before)
    except InvalidSchedule:
        return
    if old.service is None:
        return
    kind, _, _ = old.origin.partition(":")
    where = "the code" if kind == "code" else "the forkq.toml"
    defined = f"the periodic job {name!r} is defined by {where} of {old.service or 'an app'}"
    if _running([old.service]):
        other = "" if removes else ", or choose another name"
        raise ForkqError(f"{defined}, which runs: change it there or pause it{other}")
    if not removes:
        raise ForkqError(f"{defined}, which does not run: remove it first")


def _restless(name: str) -> str:
    return f"the periodic job {name!r} is being changed by others; try again"


def _unknown(name: str, names: builtins.list[str]) -> str:
    near = difflib.get_close_matches(name, names, len(names) or 1)
    if near:
        verb = "nearest is" if len(near) == 1 else "nearest are"
        return f"there is no periodic job {name!r}; the {verb} {_listed(near)}"
    known = f"there are: {_listed(names)}" if names else "there are none at all"
    return f"there is no periodic job {name!r}; {known}"


def _listed(names: builtins.list[str]) -> str:
    shown = ", ".join(map(repr, names[:_MOST_NAMES]))
    return f"{shown} and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else shown
