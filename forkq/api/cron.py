"""Periodic jobs at run time: looking at them, adding, pausing, running one by hand.

What stands in Redis is what the clocks go by: entries that the apps have published from their code
and their forkq.toml, and those that were added here.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from .. import history as lines
from .. import registry
from ..client import default
from ..cron import Entry, Missed, Overlap
from ..errors import ForkqError, InvalidJob, InvalidSchedule, ServerUnavailable, UnknownJob
from ..payload import DEFAULT_QUEUE, Job
from ..schema import nearest
from ..scripts import PUBLISH, REBASE
from ..times import now
from .asking import ask, keys
from .runs import Run, merged

ORIGIN: Final = "api"

_DAY: Final = 86_400
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic job as it stands: its definition, whether somebody has paused it, and the last
    tick that was dealt with (whole epoch seconds; None before the first)."""

    entry: Entry
    paused: bool
    last: int | None

    @property
    def name(self) -> str:
        """What it is called, in the whole cluster."""
        return self.entry.name

    @property
    def resting(self) -> bool:
        """Whether no tick of it is enqueued: it is paused, or defined with ``enabled = False``."""
        return self.paused or not self.entry.enabled

    def ticks(self, count: int) -> builtins.list[int]:
        """Its next ticks from now on, were it not resting."""
        schedule, after = self.entry.schedule, time.time()
        return schedule.ticks(after, float("inf"), count)


def list() -> builtins.list[Periodic]:  # noqa: A001 - cron.list() says it best
    """Every periodic job, by name. A definition that this forkq cannot read is left out; the clock
    names it in its log."""
    return [one for one in (_readable(*found) for found in _definitions()) if one is not None]


def get(name: str) -> Periodic:
    """The periodic job of that name. Raises ForkqError, with the nearest name, if there is none;
    InvalidSchedule if this forkq cannot read its definition."""
    found = {defined: (raw, paused, last) for defined, raw, paused, last in _definitions()}
    if name not in found:
        raise ForkqError(_unknown(name, builtins.list(found)))
    raw, paused, last = found[name]
    return Periodic(Entry.decode(raw), paused, last)


def add(
    name: str,
    cron: str,
    job: str | Any,
    *,
    args: Sequence[Any] = (),
    tz: str = "UTC",
    overlap: Overlap = "allow",
    missed: Missed = "once",
    jitter: float = 0,
    enabled: bool = True,
    **options: Any,
) -> Periodic:
    """Adds a periodic job, or replaces one that was added here; no tick before now counts.

    ``job`` is a job class or function, or a registered name (any name, if the job is another
    app's); ``options`` are those of a job (``queue``, ``retry``, ...); the rest is as for
    ``forkq.every``. Raises InvalidSchedule or InvalidJob for what could never run, ForkqError for a
    name that is defined in code or in a forkq.toml.
    """
    entry = Entry.make(
        name=name,
        cron=cron,
        job=_template(job, args, options),
        tz=tz,
        overlap=overlap,
        missed=missed,
        jitter=jitter,
        enabled=enabled,
        origin=ORIGIN,
    )
    _change(name, entry, force=False)
    return get(name)


def remove(name: str, *, force: bool = False) -> None:
    """Removes a periodic job that was added here, with its pause and its history.

    With ``force`` any: for what an app has left behind that is no more. One that an app still
    defines comes back with that app's next start.
    """
    _change(name, None, force=force)
    ask(("SREM", keys().cron_paused, name), ("DEL", keys().cron_runs(name)))


def pause(name: str) -> bool:
    """Lets its ticks pass by until ``resume``. Returns whether it was not paused before."""
    get(name)
    [added] = ask(("SADD", keys().cron_paused, name))
    return bool(added)


def resume(name: str) -> bool:
    """Lets it go on with the next tick; nothing is made up for. Returns whether it was paused."""
    for _ in range(_ATTEMPTS):
        periodic = get(name)
        if not periodic.paused:
            return False
        # The last tick first: a clock that looks in between must find nothing to make up for.
        if _rebased(periodic, int(time.time())):
            [removed] = ask(("SREM", keys().cron_paused, name))
            return bool(removed)
    raise ForkqError(_restless(name))


def run(name: str) -> str:
    """Pushes its job now, outside of the schedule, whose ticks stay as they are, be it paused or
    not. Returns the jid, or "" if a client middleware vetoed it."""
    entry = get(name).entry
    job: Job = {**entry.job, "forkq": {"cron": name, "by_hand": True}}
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


def _whole(stamp: bytes | None) -> int | None:
    return int(stamp) if stamp is not None and stamp.isdigit() else None


def _rebased(periodic: Periodic, moment: int) -> bool:
    """Moves its last tick to ``moment``, unless a clock moves it under our hands."""
    before = "" if periodic.last is None else periodic.last
    after = max(periodic.last or 0, moment)
    with default().wire() as wire:
        return bool(wire.script(REBASE, [keys().cron_last], (periodic.name, before, after)))


def _change(name: str, entry: Entry | None, *, force: bool) -> None:
    """Writes or removes a definition, unless it changes under our hands. Raises ForkqError."""
    for _ in range(_ATTEMPTS):
        [before] = ask(("HGET", keys().cron, name))
        if before is None and entry is None:
            raise ForkqError(_unknown(name, [found.name for found in list()]))
        known = None if before is None else _origin(before)
        if not force and known not in (None, ORIGIN):
            raise ForkqError(_not_ours(name, str(known)))
        if _written(name, before, entry):
            return
    raise ForkqError(_restless(name))


def _written(name: str, before: bytes | None, entry: Entry | None) -> bool:
    at = int(now())
    mode = "afresh" if before is None or _other_times(before, entry) else "kept"
    after = b"" if entry is None else entry.encode()
    with default().wire() as wire:
        names = (keys().cron, keys().cron_last, keys().cron_pending)
        change = (at, at + _DAY, name, before or b"", after, mode)
        return not wire.script(PUBLISH, names, change)


def _other_times(before: bytes, entry: Entry | None) -> bool:
    try:
        old = None if entry is None else Entry.decode(before)
        return (
            old is None
            or entry is None
            or old.schedule != entry.schedule
            or (entry.enabled and not old.enabled)
        )
    except InvalidSchedule:
        return True


def _origin(raw: bytes) -> str:
    """Whose definition it is; what nobody can read is nobody's, and may be replaced."""
    try:
        return Entry.decode(raw).origin
    except InvalidSchedule:
        return ORIGIN


def _template(job: Any, args: Sequence[Any], options: dict[str, Any]) -> Job:
    """The payload that each tick pushes, with the job's own options if it is known here."""
    name = job if isinstance(job, str) else job.set().name
    try:
        spec = registry.lookup(name)
    except UnknownJob:
        return {"retry": True, "queue": DEFAULT_QUEUE, **options, "class": name, "args": [*args]}
    fewest, most = spec.arity
    if not fewest <= len(args) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise InvalidJob(f"job {name!r} takes {takes} arguments, but args has {len(args)}")
    base = {"retry": True, "queue": DEFAULT_QUEUE, **spec.options}
    return {**base, **options, "class": name, "args": [*args]}


def _not_ours(name: str, origin: str) -> str:
    kind, _, app = origin.partition(":")
    where = {"code": "the code", "file": "the forkq.toml"}.get(kind, origin or "somebody else")
    of_app = f" of {app}" if app else ""
    return (
        f"the periodic job {name!r} is defined by {where}{of_app}: change it there, pause it, or "
        "choose another name"
    )


def _restless(name: str) -> str:
    return f"the periodic job {name!r} is being changed by others; try again"


def _unknown(name: str, names: builtins.list[str]) -> str:
    near = nearest(name, names)
    if near is not None:
        return f"there is no periodic job {name!r}; the nearest is {near!r}"
    known = f"there are: {', '.join(names[:10])}" if names else "there are none at all"
    return f"there is no periodic job {name!r}; {known}"
