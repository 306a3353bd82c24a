"""What a push returns that has met duplicates: values, without I/O. Client side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ...errors import Duplicate, shown
from ...units import plural

if TYPE_CHECKING:
    from ..marked import PushNeeds
    from .parts import OnDuplicate


def answer(
    jobs: Iterable[tuple[str, PushNeeds | None]], duplicates: Mapping[str, str]
) -> list[str]:
    """The jids that a push returns. ``jobs`` are the jid of each job and its needs. In the place of
    a duplicate stands "", or the jid of the job that has the lock, if its class asks for that; ""
    if none has, and the job is throttled. Raises Duplicate if one of them asks for that."""
    known = [*jobs]
    jids = [_jid_of(jid, needs, duplicates) for jid, needs in known]
    for jid, needs in known:
        if needs is not None and _how(needs) == "raise" and duplicates.get(jid):
            raise _duplicate(needs, duplicates[jid], jids)
    return jids


def _jid_of(jid: str, needs: PushNeeds | None, duplicates: Mapping[str, str]) -> str:
    if jid not in duplicates or needs is None:
        return jid
    return duplicates[jid] if _how(needs) == "return" else ""


def _how(needs: PushNeeds) -> OnDuplicate:
    return "skip" if needs.unique is None else needs.unique.on_duplicate


def _duplicate(needs: PushNeeds, holder: str, jids: list[str]) -> Duplicate:
    until = needs.unique.until if needs.unique is not None else "end"
    pushed = sum(map(bool, jids))
    others = f"; {plural(pushed, 'other job was', 'other jobs were')} pushed" if pushed else ""
    return Duplicate(
        f"job {shown(needs.name)} was not pushed: job {holder} has the lock of its arguments "
        f"({'for its time' if until == 'expiry' else 'it waits or runs'}){others}",
        holder,
        jids,
    )
