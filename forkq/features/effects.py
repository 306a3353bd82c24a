"""What must happen in Redis together with the end of a job, or when it goes on: values, without
I/O. ``store/scripts/effects.lua`` carries them out, in the script that makes the job end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ..wire.payload import Payload, encode

_LONGEST_NAME: Final = 200  # characters of the name of a class

# "unlock": frees the lock if the job has it. "lock": takes it if it is free, or holds it for
# longer. "hold": holds it for longer if the job has it. "leased": what stands behind it is done
# only if the lease is there. "uncancel": removes the note that cancels
# the job. "remember": notes that it has ended so.
# "ticket_ends", "ticket_waits", "ticket_runs": the same for a job of which at most one waits;
# "ticket_cancelled": the newest one of these ends.
# "debounce_again": takes the lock of a debounced job that waits in the schedule once more.
# "forget": deletes its cursor. "keep": keeps that for longer.
# "asleep": the job sleeps at one of its steps. "wait": it waits there for a signal. "unwait": it
# waits for that no more.
# "batch": a member of a batch has ended, or waits again; "batch_failing": it is retried;
# "batch_called": a callback of a batch has ended, or waits again.
# "flow": a step of a flow has ended, or waits again.
# "result": writes its result, or the placeholder of that.
# "note": notes an effect on another shard (notes.py). "due": puts a job into the schedule, once.
# The arguments are those that the script says.
Name: TypeAlias = Literal[
    "unlock",
    "lock",
    "hold",
    "leased",
    "ticket_ends",
    "ticket_waits",
    "ticket_runs",
    "ticket_cancelled",
    "debounce_again",
    "uncancel",
    "remember",
    "forget",
    "keep",
    "asleep",
    "wait",
    "unwait",
    "batch",
    "batch_failing",
    "batch_called",
    "flow",
    "result",
    "note",
    "due",
]


class Effect(NamedTuple):
    """One effect on the ``key``, and on ``more`` keys behind it."""

    name: Name
    key: str
    arguments: tuple[str | int, ...] = ()
    more: tuple[str, ...] = ()


NONE: Final[tuple[Effect, ...]] = ()


def packed(effects: Sequence[Effect], keys: list[Any], totals: str) -> str:
    """The effects of one job as a script takes them; "" if there are none. Adds their keys to
    ``keys``, which that call has. ``totals``: the key that counts ends."""
    if not effects:
        return ""
    if totals not in keys:
        keys.append(totals)
    made: list[object] = [keys.index(totals) + 1]
    for effect in effects:
        keys.append(effect.key)
        made.append([effect.name, len(keys), *effect.arguments])
        keys += effect.more
    return encode(made).decode()


def name_of(job: Payload) -> str:
    """The class under which the job's end counts, as people know it."""
    wrapped, name = job.get("wrapped"), job.get("class")
    found = wrapped if wrapped and type(wrapped) is str else name
    return str(found)[:_LONGEST_NAME]


def jid_of(job: Payload) -> str:
    """The jid of a job; "" if the payload has none that is text."""
    jid = job.get("jid")
    return jid if type(jid) is str else ""
