"""Jobs of which at most one waits: ``on_duplicate`` is "replace" or "latest".

Values, without I/O. The lock is a hash that holds the newest job (``store/scripts/ticket.lua``).
The entry in the list is a ticket, which keeps the place of the job that came first: the child that
fetches it asks ``ticket_start.lua`` which job is to be run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from ...wire.keys import Keys
from ..effects import NONE, Effect

if TYPE_CHECKING:
    from .parts import Fate, Lock

# What a push does with the job that waits: "replace": it takes its place, also beside one that
# runs; "latest": it waits until that one has ended.
TicketKind: TypeAlias = Literal["replace", "latest"]
KINDS: Final[tuple[TicketKind, ...]] = ("replace", "latest")
# Such a lock holds a job: so it lives for so many seconds at least.
LIVES: Final = 30 * 86400.0
# In the place of the jid of a job that ends together with another one: whichever that is.
ALL: Final = "*"
# What ticket_start.lua says, but for "run": docs/internals.md.
Start: TypeAlias = Literal["run", "newer", "over", "replaced", "gone"]


class Marked(NamedTuple):
    """A job with a lock, as the effects need it. ``due_in``: in how many seconds it is due."""

    jid: str
    name: str
    queue: str
    due_in: float = 0.0


def effects(
    keys: Keys, lock: Lock, fate: Fate, job: Marked, together_with: str = ""
) -> tuple[Effect, ...]:
    """What becomes of the lock of the job. ``together_with``: the jid of the newest one, if that
    ends as well, instead of getting an entry of its own."""
    if fate in ("freed", "the newest job's"):
        return (_effect("ticket_ends", keys, lock, job, together_with),)
    if fate in ("held", "taken again"):
        return (_effect("ticket_waits", keys, lock, job),)
    return NONE


def while_running(keys: Keys, lock: Lock, job: Marked) -> tuple[Effect, ...]:
    """What holds the lock of a job that runs."""
    return (_effect("ticket_runs", keys, lock, job),) if lock.kind == "latest" else NONE


def cancelled(keys: Keys, lock: Lock, job: Marked) -> Effect:
    """The effect that ends the newest job, which waits without an entry, as cancelled."""
    return _effect("ticket_cancelled", keys, lock, job)


def start_call(
    keys: Keys, lock: Lock, job: Marked, lease: str
) -> tuple[Sequence[str], Sequence[Any]]:
    """The keys and the arguments of ticket_start.lua."""
    names = [keys.inflight(job.queue), *keys.of_ticket(lock.digest, job.queue)]
    holds = int(lock.kind == "latest")
    milliseconds = round(1000 * lock.held_for)
    return names, (lease, job.jid, job.name, milliseconds, job.queue, holds)


def kind_of(on_duplicate: str | None) -> TicketKind | None:
    """The kind of lock that this value of the option makes; None if it is another value."""
    return next((kind for kind in KINDS if kind == on_duplicate), None)


def kind_in(found: Mapping[str, Any]) -> TicketKind | None:
    """The kind of a lock, of which the needs of a job say so; None if it has none."""
    return kind_of(found.get("on", ""))


def _effect(
    name: Literal["ticket_ends", "ticket_waits", "ticket_runs", "ticket_cancelled"],
    keys: Keys,
    lock: Lock,
    job: Marked,
    *more: str,
) -> Effect:
    milliseconds = round(1000 * (max(0.0, job.due_in) + lock.held_for))
    first, *others = keys.of_ticket(lock.digest, job.queue)
    arguments: tuple[str | int, ...] = (job.jid, job.name, milliseconds, job.queue, *more)
    return Effect(name, first, arguments, tuple(others))
