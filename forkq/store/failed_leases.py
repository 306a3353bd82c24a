"""Jobs that have failed in a process which cannot settle them: the master marks them in their
leases, and the next child that fetches one settles it by its own rules (wire/marks.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import MalformedPayload
from ..wire.lease import lease
from ..wire.marks import mark_failed as add_mark
from ..wire.marks import marks_of
from ..wire.payload import dumps, loads_head
from ..wire.printable import class_and_jid
from .connection import Call
from .crash_record import Lease
from .recovery import Recovery
from .scripts import MARK_FAILED
from .steps import Steps, checked


def mark_failed(
    recovery: Recovery,
    queues: Sequence[str],
    identity: str,
    errors: Mapping[int, BaseException],
    ran: Mapping[int, float],
) -> Steps[list[str]]:
    """Marks the leases of ``identity`` with these sequence numbers; ``ran`` says for how many
    seconds their jobs had run. Returns which jobs they are. May be done again."""
    names = {
        lease(identity, number).encode(): (error, ran.get(number))
        for number, error in errors.items()
    }
    marked = []
    for part, leases in (yield from recovery.list_all(queues, identity)):
        for each in leases:
            if each.name in names:
                marked += yield from _mark(recovery, part, each, *names[each.name])
    return marked


def _mark(
    recovery: Recovery,
    queues: Sequence[str],
    each: Lease,
    error: BaseException,
    ran: float | None,
) -> Steps[list[str]]:
    payload = yield from recovery.payload(queues, each)
    if payload is None:
        return []  # acknowledged just before
    try:
        job = loads_head(payload)
    except MalformedPayload:
        return []
    add_mark(marks_of(job), error, ran)
    inflight = recovery.dead_set.keys.inflight(queues[each.queue - 1])
    [moved] = checked((yield [Call(MARK_FAILED, (inflight,), (each.name, dumps(job)))]))
    return [class_and_jid(payload)] if moved else []
