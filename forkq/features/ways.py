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


# What most ways on, and most ends, have in common.
_ON: Final = Way("", (), "kept", "kept", "kept", "kept", "waits", "kept", ends=False)
_END: Final = Way(
    "", (), "gone", "freed", "freed", "deleted", "ended otherwise", "error", ends=True
)

WAYS: Final = (
    _END._replace(name="done", by=("child",), batch="done", result="value"),
    _ON._replace(name="due", by=("clock", "person"), debounce="freed"),
    _ON._replace(
        name="retried", by=("child",), lock="held", cursor="held", batch="failing", result="none"
    ),
    _ON._replace(name="snoozed", by=("child",), lock="held", cursor="held", result="none"),
    _ON._replace(name="requeued", by=("child", "master", "clock")),
    _ON._replace(name="made a suspect", by=("child", "master", "clock")),
    _ON._replace(name="left to a newer forkq", by=("child",)),
    _ON._replace(name="moved to another queue or shard", by=("person",)),
    _END._replace(
        name="dead",
        by=("child", "master", "clock", "person"),
        expiry="kept",
        cursor="held long",
        batch="dead",
    ),
    _END._replace(name="dropped", by=("child",)),
    _END._replace(name="discarded", by=("child",)),
    _END._replace(name="expired", by=("child", "clock")),
    _END._replace(name="cancelled", by=("child", "clock")),
    _END._replace(
        name="replaced",
        by=("child", "push"),
        lock="the newest job's",
        debounce="the newest job's",
        result="replaced",
    ),
    _END._replace(name="deleted", by=("person",)),
    _ON._replace(
        name="retried from the dead set",
        by=("person",),
        expiry="forgotten",
        lock="taken again",
        batch="waits again",
        result="none",
    ),
    _ON._replace(
        name="restored by undo",
        by=("person",),
        lock="taken again",
        debounce="taken again",
        batch="waits again",
        result="none",
    ),
    _END._replace(
        name="run or deleted by Ruby",
        by=("Ruby",),
        lock="by TTL",
        debounce="by TTL",
        cursor="by TTL",
        batch="found when it stands still",
        result="by TTL",
    ),
)

BY_NAME: Final = {way.name: way for way in WAYS}
