"""Every way out of a job, as data: who decides, whether it is an end, and what becomes of what a
feature has noted. docs/internals.md shows this table."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from .unique.parts import Fate as LockFate

Decider: TypeAlias = Literal["child", "clock", "master", "person", "push", "Ruby"]
# What becomes of a feature's part: "kept": it stays as it is; "gone": it ends with the job;
# "forgotten": the job goes on without it.
Fate: TypeAlias = Literal["kept", "gone", "forgotten"]


class Way(NamedTuple):
    """One way. ``by``: the processes and people that decide so. ``ends``: whether the job is over.
    ``expiry``: what becomes of the moment at which the job expires; ``lock``: of the lock of a
    unique job."""

    name: str
    by: tuple[Decider, ...]
    ends: bool
    expiry: Fate
    lock: LockFate


WAYS: Final = (
    Way("done", ("child",), ends=True, expiry="gone", lock="freed"),
    Way("retried", ("child",), ends=False, expiry="kept", lock="held"),
    Way("snoozed", ("child",), ends=False, expiry="kept", lock="held"),
    Way("requeued", ("child", "master", "clock"), ends=False, expiry="kept", lock="kept"),
    Way("made a suspect", ("child", "master", "clock"), ends=False, expiry="kept", lock="kept"),
    Way("left to a newer forkq", ("child",), ends=False, expiry="kept", lock="kept"),
    Way("moved to another queue or shard", ("person",), ends=False, expiry="kept", lock="kept"),
    Way("dead", ("child", "master", "clock", "person"), ends=True, expiry="kept", lock="freed"),
    Way("dropped", ("child",), ends=True, expiry="gone", lock="freed"),
    Way("discarded", ("child",), ends=True, expiry="gone", lock="freed"),
    Way("expired", ("child", "clock"), ends=True, expiry="gone", lock="freed"),
    Way("cancelled", ("child", "clock"), ends=True, expiry="gone", lock="freed"),
    Way("replaced", ("child", "push"), ends=True, expiry="gone", lock="the newest job's"),
    Way("deleted", ("person",), ends=True, expiry="gone", lock="freed"),
    Way(
        "retried from the dead set", ("person",), ends=False, expiry="forgotten", lock="taken again"
    ),
    Way("restored by undo", ("person",), ends=False, expiry="kept", lock="taken again"),
    Way("run or deleted by Ruby", ("Ruby",), ends=True, expiry="gone", lock="by TTL"),
)

BY_NAME: Final = {way.name: way for way in WAYS}
