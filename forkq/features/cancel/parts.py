"""What is cancelled, as one hash in Redis says it: values, without I/O.

A field names a job, a class or a batch, its value has the moment at which it was cancelled in
Redis's time, and for how many seconds a job that runs may go on before its child is killed
(nothing: for ever). docs/internals.md, "The way of a cancel".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...wire.keys import Keys
from ...wire.marks import KEY, needs_in
from ...wire.times import seconds
from ..batch.parts import place_in
from ..effects import NONE, Effect

_JID: Final = "jid:"
_CLASS: Final = "class:"
_BATCH: Final = "batch:"
_KINDS: Final = (_JID, _CLASS, _BATCH)
# How many marks may be open: each child reads all of them when one is added.
MOST: Final = 10_000
# How many cancelled jobs are remembered, and for how many seconds.
REMEMBERED: Final = 10_000
REMEMBERED_FOR: Final = 86_400


class Mark(NamedTuple):
    """One mark. ``at``: epoch seconds; ``grace``: after so many seconds the child of a job that
    still runs is killed; None: it is not. ``value``: both, as they stand in Redis."""

    at: float
    grace: float | None = None
    value: bytes = b""


NOTHING: Final[Mapping[str, Mark]] = MappingProxyType({})


def field_of_jid(jid: str) -> str:
    """The field of one job."""
    return f"{_JID}{jid}"


def field_of_class(name: str) -> str:
    """The field of all jobs of a class that were made before."""
    return f"{_CLASS}{name}"


def field_of_batch(bid: str) -> str:
    """The field of all members of a batch."""
    return f"{_BATCH}{bid}"


def is_of_many(field: str) -> bool:
    """Whether a field is about all jobs of a class or of a batch."""
    return field.startswith((_CLASS, _BATCH))


def effects(keys: Keys, jid: str) -> tuple[Effect, ...]:
    """What happens together with the end of a cancelled job."""
    if not jid:
        return NONE
    noted = Effect("uncancel", keys.cancelled, (jid,))
    remembered = Effect("remember", keys.cancelled_lately, (jid,))
    return (noted, remembered, Effect("forget", keys.iteration(jid)))


def read_marks(reply: Mapping[bytes, bytes]) -> dict[str, Mark]:
    """The marks of the hash. What another program has written there is left out, and what is only
    paused (features/batch/pause.py)."""
    found = ((str(field, "utf-8", "replace"), _mark(value)) for field, value in reply.items())
    known = {field: mark for field, mark in found if mark is not None}
    return {field: mark for field, mark in known.items() if field.startswith(_KINDS)}


def fields_about(job: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that may cancel ``job``: its own, that of its class, and that of its batch."""
    fields = (f"{_JID}{job.get('jid')}", f"{_CLASS}{job.get('wrapped') or job.get('class')}")
    place = place_in(needs_in(job.get(KEY)))
    is_member = place is not None and place.member is not None
    return (*fields, field_of_batch(place.bid)) if place and is_member else fields


def field_in(marks: Mapping[str, Mark], job: Mapping[str, Any]) -> str:
    """The field of the mark that cancels ``job``; "" if none does. A mark of a class concerns the
    jobs that were made before it."""
    own, field, *batch = fields_about(job)
    if own in marks:
        return own
    if batch and batch[0] in marks:
        return batch[0]
    mark, made = marks.get(field), job.get("created_at")
    is_known = type(made) is float or type(made) is int
    return field if mark and not (is_known and seconds(made) >= mark.at) else ""  # type: ignore[arg-type]


def _mark(value: bytes) -> Mark | None:
    at, _, grace = value.partition(b" ")
    try:
        return Mark(float(at), float(grace) if grace else None, value)
    except ValueError:
        return None
