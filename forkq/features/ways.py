"""Every way out of a job, as data: who decides, whether it is an end, and what becomes of what a
feature has noted. docs/internals.md shows this table."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from .batch.parts import Fate as BatchFate
from .iterable.parts import Fate as CursorFate
from .results.parts import Fate as ResultFate
from .unique.debounce import Fate as DebounceFate
from .unique.parts import Fate as LockFate

Decider: TypeAlias = Literal["child", "clock", "master", "person", "push", "Ruby"]
# What becomes of a feature's part: "kept": it stays as it is; "gone": it ends with the job;
# "forgotten": the job goes on without it.
Fate: TypeAlias = Literal["kept", "gone", "forgotten"]


class Way(NamedTuple):
    """One way. ``by``: the processes and people that decide so. ``expiry``: what becomes of the
    moment at which the job expires; ``lock``: of the lock of a unique job; ``debounce``: of that
    of a debounced one; ``cursor``: of the cursor of an iterable one; ``batch``: what a member
    of a batch is then; ``result``: what becomes of the result. ``ends``: whether the job is over.
    """

    name: str
    by: tuple[Decider, ...]
    expiry: Fate
    lock: LockFate
    debounce: DebounceFate
    cursor: CursorFate
    batch: BatchFate
    result: ResultFate
    ends: bool


WAYS: Final = (
    Way("done", ("child",), "gone", "freed", "freed", "deleted", "done", "value", ends=True),
    Way("due", ("clock", "person"), "kept", "kept", "freed", "kept", "waits", "kept", ends=False),
    Way("retried", ("child",), "kept", "held", "kept", "held", "failing", "none", ends=False),
    Way("snoozed", ("child",), "kept", "held", "kept", "held", "waits", "none", ends=False),
    Way(
        "requeued",
        ("child", "master", "clock"),
        "kept",
        "kept",
        "kept",
        "kept",
        "waits",
        "kept",
        ends=False,
    ),
    Way(
        "made a suspect",
        ("child", "master", "clock"),
        "kept",
        "kept",
        "kept",
        "kept",
        "waits",
        "kept",
        ends=False,
    ),
    Way(
        "left to a newer forkq",
        ("child",),
        "kept",
        "kept",
        "kept",
        "kept",
        "waits",
        "kept",
        ends=False,
    ),
    Way(
        "moved to another queue or shard",
        ("person",),
        "kept",
        "kept",
        "kept",
        "kept",
        "waits",
        "kept",
        ends=False,
    ),
    Way(
        "dead",
        ("child", "master", "clock", "person"),
        "kept",
        "freed",
        "freed",
        "held long",
        "dead",
        "error",
        ends=True,
    ),
    Way(
        "dropped",
        ("child",),
        "gone",
        "freed",
        "freed",
        "deleted",
        "ended otherwise",
        "error",
        ends=True,
    ),
    Way(
        "discarded",
        ("child",),
        "gone",
        "freed",
        "freed",
        "deleted",
        "ended otherwise",
        "error",
        ends=True,
    ),
    Way(
        "expired",
        ("child", "clock"),
        "gone",
        "freed",
        "freed",
        "deleted",
        "ended otherwise",
        "error",
        ends=True,
    ),
    Way(
        "cancelled",
        ("child", "clock"),
        "gone",
        "freed",
        "freed",
        "deleted",
        "ended otherwise",
        "error",
        ends=True,
    ),
    Way(
        "replaced",
        ("child", "push"),
        "gone",
        "the newest job's",
        "the newest job's",
        "deleted",
        "ended otherwise",
        "replaced",
        ends=True,
    ),
    Way(
        "deleted",
        ("person",),
        "gone",
        "freed",
        "freed",
        "deleted",
        "ended otherwise",
        "error",
        ends=True,
    ),
    Way(
        "retried from the dead set",
        ("person",),
        "forgotten",
        "taken again",
        "kept",
        "kept",
        "waits again",
        "none",
        ends=False,
    ),
    Way(
        "restored by undo",
        ("person",),
        "kept",
        "taken again",
        "taken again",
        "kept",
        "waits again",
        "none",
        ends=False,
    ),
    Way(
        "run or deleted by Ruby",
        ("Ruby",),
        "gone",
        "by TTL",
        "by TTL",
        "by TTL",
        "found when it stands still",
        "by TTL",
        ends=True,
    ),
)

BY_NAME: Final = {way.name: way for way in WAYS}
